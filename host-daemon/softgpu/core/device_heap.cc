#include "host-daemon/softgpu/core/device_heap.h"

#include <cstring>

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kPieceAlign = 16;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

}  // namespace

std::optional<DeviceHeap::Range> DeviceHeap::ensure(
    const std::function<std::optional<Range>()>& make) {
    const std::lock_guard lock(mutex_);
    if (space_ == nullptr) {
        const std::optional<Range> made = make();
        if (!made) {
            return std::nullopt;
        }
        base_ = made->base;
        bytes_ = made->bytes;
        space_ = std::make_unique<RangeAllocator>(base_, bytes_);
    }
    return Range{base_, bytes_};
}

void DeviceHeap::release(const std::function<void(Range)>& give_back) {
    const std::lock_guard lock(mutex_);
    if (space_ == nullptr) {
        return;
    }
    give_back({base_, bytes_});
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
