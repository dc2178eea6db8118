#include "host-daemon/execution/memory/variable_memory.h"

#include <fmt/format.h>

namespace gantry::worker {
namespace {

constexpr std::uint64_t kPieceBytes = ArenaAllocator::kGranuleBytes;

std::uint64_t down(std::uint64_t address, std::uint64_t unit) { return address / unit * unit; }

Error refused(const driver::DriverApi& api, CUresult result, std::uint64_t address) {
    const Error why = driver::to_error(api, result, "module.globals.not_now",
                                       fmt::format("getting memory at {:#x}", address));
    return Error{Code::kFailedPrecondition, why.reason,
                 "module variables cannot be put where the program has them now: " + why.text};
}

}  // namespace

VariableMemory::~VariableMemory() {
    for (const auto& [base, bytes] : reserved_) {
        device_.api().cuMemAddressFree(base, bytes);
    }
}

Result<std::unique_ptr<VariableMemory::Hold>> VariableMemory::hold(
    std::span<const VariableRange> ranges) {
    auto held = std::make_unique<Hold>(*this);
    MutexLock lock(mutex_);
    for (const VariableRange& range : ranges) {
        const std::uint64_t end = range.address + std::max<std::uint64_t>(range.bytes, 1);
        if (end < range.address) {
            return refused(device_.api(), CUDA_ERROR_INVALID_VALUE, range.address);
        }
        for (std::uint64_t at = down(range.address, kPieceBytes); at < end; at += kPieceBytes) {
            if (!held->granules_.contains(at)) {
                GANTRY_TRY(map(at));
                held->granules_.insert(at);
            }
        }
    }
    return held;
}

Result<void> VariableMemory::reserve_around(std::uint64_t granule) {
    const auto after = reserved_.upper_bound(granule);
    if (after != reserved_.begin() &&
        granule - std::prev(after)->first < std::prev(after)->second) {
        return {};
    }
    if (reserve(down(granule, kZoneBytes), kZoneBytes) == CUDA_SUCCESS) {
        return {};
    }
    // On a driver of the same kind its own memory lies in the zone.
    const CUresult result = reserve(granule, kPieceBytes);
    if (result == CUDA_SUCCESS) {
        return {};
    }
    Error error = refused(device_.api(), result, granule);
    error.text += "; something else lies there in this worker, and may not in another: try again";
    return error;
}

CUresult VariableMemory::reserve(std::uint64_t base, std::uint64_t bytes) {
    CUdeviceptr address = 0;
    CUresult result = device_.api().cuMemAddressReserve(&address, bytes, kPieceBytes, base, 0);
    if (result == CUDA_SUCCESS && address != base) {
        device_.api().cuMemAddressFree(address, bytes);
        result = CUDA_ERROR_ALREADY_MAPPED;
    }
    if (result == CUDA_SUCCESS) {
        reserved_.emplace(base, bytes);
    }
    return result;
}

Result<void> VariableMemory::map(std::uint64_t address) {
    if (const auto there = granules_.find(address); there != granules_.end()) {
        ++there->second.users;
        return {};
    }
    GANTRY_TRY(reserve_around(address));
    const driver::DriverApi& api = device_.api();
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device_.ordinal();
    Granule granule;
    CUresult result = api.cuMemCreate(&granule.handle, kPieceBytes, &properties, 0);
    if (result != CUDA_SUCCESS) {
        return refused(api, result, address);
    }
    result = api.cuMemMap(address, kPieceBytes, 0, granule.handle, 0);
    if (result == CUDA_SUCCESS) {
        result = device_.allow_access(address, kPieceBytes);
        if (result == CUDA_SUCCESS) {
            result = api.cuMemsetD8_v2(address, 0, kPieceBytes);
        }
        if (result == CUDA_SUCCESS) {
            result = api.cuStreamSynchronize(nullptr);  // Whoever holds it may let it go at once.
        }
        if (result != CUDA_SUCCESS) {
            api.cuMemUnmap(address, kPieceBytes);
        }
    }
    if (result != CUDA_SUCCESS) {
        api.cuMemRelease(granule.handle);
        return refused(api, result, address);
    }
    granule.users = 1;
    granules_.emplace(address, granule);
    return {};
}

void VariableMemory::release(const std::set<std::uint64_t>& granules) {
    MutexLock lock(mutex_);
    for (const std::uint64_t address : granules) {
        const auto granule = granules_.find(address);
        if (--granule->second.users != 0) {
            continue;
        }
        device_.api().cuMemUnmap(address, kPieceBytes);
        device_.api().cuMemRelease(granule->second.handle);
        granules_.erase(granule);
    }
}

}  // namespace gantry::worker
