// Device: the arena's memory given to another worker of the same device, and taken from one.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "host-daemon/execution/device/device.h"

namespace gantry::worker {
namespace {

constexpr CUmemAllocationHandleType kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

std::uint64_t mix(std::uint64_t value) {  // The finaliser of MurmurHash3: public domain.
    value = (value ^ (value >> 33)) * 0xff51afd7ed558ccd;
    value = (value ^ (value >> 33)) * 0xc4ceb9fe1a85ec53;
    return value ^ (value >> 33);
}

}  // namespace

void MemorySum::add(const MemoryPiece& piece) {
    ++count;
    bytes += piece.bytes;
    mixed += mix(mix(mix(piece.address) ^ piece.bytes) ^ piece.serial);
}

Result<control::UniqueFd> Device::export_piece(std::uint64_t address, const Physical& piece) {
    int descriptor = -1;
    if (piece.descriptor.valid()) {
        descriptor = fcntl(piece.descriptor.get(), F_DUPFD_CLOEXEC, 3);
        if (descriptor < 0) {
            return Error{Code::kResourceExhausted, "handover.export", std::strerror(errno)};
        }
        return control::UniqueFd(descriptor);
    }
    if (!piece.exportable) {
        return Error{Code::kFailedPrecondition, "handover.not_exportable",
                     "the driver made memory of this process that no other process can take over"};
    }
    const CUresult result = api().cuMemExportToShareableHandle(&descriptor, piece.handle, kFile, 0);
    if (result != CUDA_SUCCESS) {
        return driver::to_error(api(), result, "handover.export",
                                fmt::format("exporting {} bytes at {:#x}", piece.bytes, address));
    }
    return control::UniqueFd(descriptor);
}

Result<std::vector<Device::Exported>> Device::export_pieces(std::uint64_t after_serial,
                                                            std::size_t count_max, bool* more) {
    const MutexLock lock(mutex_);
    std::map<std::uint64_t, std::uint64_t> wanted;  // Serial -> address.
    for (const auto& [address, piece] : physical_) {
        if (piece.serial > after_serial) {
            wanted.emplace(piece.serial, address);
        }
    }
    *more = wanted.size() > count_max;
    std::vector<Exported> exported;
    for (const auto& [serial, address] : wanted) {
        if (exported.size() == count_max) {
            break;
        }
        const Physical& piece = physical_.at(address);
        GANTRY_ASSIGN(control::UniqueFd descriptor, export_piece(address, piece));
        exported.push_back({{address, piece.bytes, serial}, std::move(descriptor)});
    }
    return exported;
}

Result<control::UniqueFd> Device::export_at(DeviceVa address) {
    const MutexLock lock(mutex_);
    const auto piece = physical_.find(address.value);
    if (piece == physical_.end()) {
        return Error{Code::kNotFound, "handover.export",
                     fmt::format("nothing is mapped at {:#x}", address.value)};
    }
    return export_piece(address.value, piece->second);
}

std::uint64_t Device::last_serial() const {
    const MutexLock lock(mutex_);
    return next_serial_ - 1;
}

MemorySum Device::piece_sum() const {
    const MutexLock lock(mutex_);
    MemorySum sum;
    for (const auto& [address, piece] : physical_) {
        sum.add({address, piece.bytes, piece.serial});
    }
    return sum;
}

MemorySum Device::origin_sum() const {
    const MutexLock lock(mutex_);
    MemorySum sum;
    for (const auto& [address, piece] : physical_) {
        sum.add({address, piece.bytes, piece.origin});
    }
    return sum;
}

Result<CUmemGenericAllocationHandle> Device::import_handle(int descriptor,
                                                           const MemoryPiece& piece) {
    if (!exportable_) {
        return Error{Code::kFailedPrecondition, "handover.not_exportable",
                     "the driver of this worker takes no memory over"};
    }
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = api().cuMemImportFromShareableHandle(
        &handle,
        reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),  // As CUDA wants it.
        kFile);
    if (result != CUDA_SUCCESS) {
        return driver::to_error(
            api(), result, "handover.import",
            fmt::format("importing {} bytes for {:#x}", piece.bytes, piece.address));
    }
    return handle;
}

Result<void> Device::offer(const MemoryPiece& piece, control::UniqueFd descriptor) {
    Physical taken;
    GANTRY_ASSIGN(taken.handle, import_handle(descriptor.get(), piece));
    taken.bytes = piece.bytes;
    taken.origin = piece.serial;
    taken.exportable = true;
    int probe = -1;
    if (api().cuMemExportToShareableHandle(&probe, taken.handle, kFile, 0) == CUDA_SUCCESS) {
        const control::UniqueFd closes(probe);
    } else {
        taken.descriptor = std::move(descriptor);
    }
    const MutexLock lock(mutex_);
    Physical& place = offers_[piece.address];
    if (place.handle != 0) {
        api().cuMemRelease(place.handle);
    }
    place = std::move(taken);
    return {};
}

bool Device::is_current(DeviceVa address) const {
    const MutexLock lock(mutex_);
    return !offers_.contains(address.value);
}

/// An empty one: the caller is to make memory.
Result<Device::Physical> Device::take_offer(DeviceVa address, std::uint64_t bytes) {
    const auto offer = offers_.find(address.value);
    if (offer == offers_.end() || offer->second.bytes != bytes) {
        if (!offers_required_) {
            return Physical{};
        }
        return Error{Code::kDataLoss, "handover.memory_missing",
                     fmt::format("no memory came for {} bytes at {:#x}", bytes, address.value)};
    }
    Physical taken = std::move(offer->second);
    offers_.erase(offer);
    return taken;
}

void Device::end_offers() {
    const MutexLock lock(mutex_);
    for (const auto& [address, offer] : offers_) {
        api().cuMemRelease(offer.handle);
    }
    offers_.clear();
    offers_required_ = false;
}

}  // namespace gantry::worker
