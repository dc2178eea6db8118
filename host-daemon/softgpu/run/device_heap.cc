#include "host-daemon/softgpu/run/device_heap.h"

#include <cstring>

#include "host-daemon/softgpu/memory/arena.h"
#include "host-daemon/softgpu/memory/map.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kPieceAlign = 16;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

}  // namespace

bool DeviceHeap::adopt(Device& device, std::uint64_t address, std::uint64_t bytes, void* context) {
    MemoryRange range;
    range.base = address;
    range.bytes = bytes;
    range.kind = MemoryKind::kDriver;
    range.device = device.ordinal;
    range.context = context;
    if (!MemoryMap::instance().insert(range)) {
        Arena::instance().free(device, address, bytes);
        return false;
    }
    base_ = address;
    bytes_ = bytes;
    space_ = std::make_unique<RangeAllocator>(base_, bytes_);
    return true;
}

bool DeviceHeap::ensure(Device& device, std::uint64_t bytes, void* context) {
    const std::lock_guard lock(mutex_);
    if (space_ != nullptr) {
        return true;
    }
    bytes = round_up(bytes, kGranuleBytes);
    const auto address = Arena::instance().allocate(device, bytes);
    return address && adopt(device, *address, bytes, context);
}

bool DeviceHeap::ensure_at(Device& device, std::uint64_t address, std::uint64_t bytes,
                           void* context) {
    const std::lock_guard lock(mutex_);
    if (space_ != nullptr) {
        return base_ == address && bytes_ == bytes;
    }
    return bytes % kGranuleBytes == 0 && bytes != 0 &&
           Arena::instance().allocate_at(device, address, bytes) &&
           adopt(device, address, bytes, context);
}

void DeviceHeap::release(Device& device) {
    const std::lock_guard lock(mutex_);
    if (space_ == nullptr) {
        return;
    }
    MemoryMap::instance().erase(base_, MemoryKind::kDriver);
    Arena::instance().free(device, base_, bytes_);
    space_.reset();
    pieces_.clear();
    base_ = bytes_ = 0;
}

std::uint64_t DeviceHeap::allocate(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (space_ == nullptr || bytes == 0 || bytes > bytes_) {
        return 0;
    }
    bytes = round_up(bytes, kPieceAlign);
    const auto address = space_->allocate(bytes, kPieceAlign);
    if (!address) {
        return 0;
    }
    pieces_[*address] = bytes;
    return *address;
}

void DeviceHeap::free(std::uint64_t address) {
    const std::lock_guard lock(mutex_);
    const auto piece = pieces_.find(address);
    if (piece == pieces_.end()) {
        return;  // Like a null pointer: nothing to give back.
    }
    space_->free(piece->first, piece->second);
    pieces_.erase(piece);
}

std::string DeviceHeap::state() const {
    const std::lock_guard lock(mutex_);
    std::string bytes;
    for (const auto& [address, size] : pieces_) {
        bytes.append(reinterpret_cast<const char*>(&address), sizeof address);
        bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
    }
    return bytes;
}

bool DeviceHeap::restore(const std::string& state) {
    const std::lock_guard lock(mutex_);
    constexpr std::size_t kRecord = 2 * sizeof(std::uint64_t);
    if (space_ == nullptr || state.size() % kRecord != 0 || !pieces_.empty()) {
        return false;
    }
    for (std::size_t at = 0; at < state.size(); at += kRecord) {
        std::uint64_t record[2];
        std::memcpy(record, state.data() + at, sizeof record);
        if (record[1] == 0 || !space_->allocate_at(record[0], record[1])) {
            return false;
        }
        pieces_[record[0]] = record[1];
    }
    return true;
}

}  // namespace gantry::softgpu
