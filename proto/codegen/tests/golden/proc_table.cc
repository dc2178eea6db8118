// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// The rows of the driver API, sorted by name and version.

#include <cstddef>
#include <cstring>

#include "proto/cuda/gen/exports.h"
#include "proto/cuda/gen/proc_table.h"

namespace gantry::cuda {
namespace {

struct Row {
    const char* name;
    int version;
    bool per_thread;
    void (*entry)();
};

#define GANTRY_ROW(name, version, per_thread, symbol) \
    {name, version, per_thread, reinterpret_cast<void (*)()>(&::symbol)}

const Row kRows[] = {
    GANTRY_ROW("cuEventElapsedTime", 2000, false, cuEventElapsedTime),
    GANTRY_ROW("cuGetProcAddress", 12000, false, cuGetProcAddress_v2),
    GANTRY_ROW("cuGraphAddMemsetNode", 10000, false, cuGraphAddMemsetNode),
    GANTRY_ROW("cuInit", 2000, false, cuInit),
    GANTRY_ROW("cuIpcGetMemHandle", 4010, false, cuIpcGetMemHandle),
    GANTRY_ROW("cuLaunchKernel", 4000, false, cuLaunchKernel),
    GANTRY_ROW("cuLaunchKernel", 7000, true, cuLaunchKernel_ptsz),
    GANTRY_ROW("cuLinkName", 5000, false, cuLinkName),
    GANTRY_ROW("cuMemRangeGetAttribute", 8000, false, cuMemRangeGetAttribute),
    GANTRY_ROW("cuMemsetD8", 3020, false, cuMemsetD8_v2),
    GANTRY_ROW("cuMemsetD8", 7000, true, cuMemsetD8_v2_ptds),
    GANTRY_ROW("cuMemsetD8Async", 3020, false, cuMemsetD8Async),
    GANTRY_ROW("cuMemsetD8Async", 7000, true, cuMemsetD8Async_ptsz),
    GANTRY_ROW("cuModuleGetFunctionCount", 12040, false, cuModuleGetFunctionCount),
    GANTRY_ROW("cuStreamCreate", 2000, false, cuStreamCreate),
    GANTRY_ROW("cuStreamDestroy", 2000, false, cuStreamDestroy),
    GANTRY_ROW("cuStreamDestroy", 4000, false, cuStreamDestroy_v2),
};

#undef GANTRY_ROW

/// First row of `name`, or the end.
std::size_t first_row(const char* name) noexcept {
    std::size_t low = 0;
    std::size_t high = sizeof kRows / sizeof kRows[0];
    while (low < high) {
        const std::size_t middle = low + (high - low) / 2;
        if (std::strcmp(kRows[middle].name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

}  // namespace

ProcStatus find_proc(const char* name, int version, std::uint64_t flags, void** entry) noexcept {
    *entry = nullptr;
    if (name == nullptr) {
        return ProcStatus::kSymbolNotFound;
    }
    const Row* plain = nullptr;
    const Row* per_thread = nullptr;
    bool known = false;
    bool has_twin = false;
    const std::size_t end = sizeof kRows / sizeof kRows[0];
    for (std::size_t i = first_row(name); i < end && std::strcmp(kRows[i].name, name) == 0; ++i) {
        known = true;
        has_twin = has_twin || kRows[i].per_thread;
        if (kRows[i].version <= version) {  // Rows of a name are sorted: the last one wins.
            (kRows[i].per_thread ? per_thread : plain) = &kRows[i];
        }
    }
    if (!known) {
        return ProcStatus::kSymbolNotFound;
    }
    const Row* const chosen = has_twin && (flags & kProcPerThread) != 0 ? per_thread : plain;
    if (chosen == nullptr) {
        return ProcStatus::kVersionNotSufficient;
    }
    *entry = reinterpret_cast<void*>(chosen->entry);
    return ProcStatus::kFound;
}

int get_proc_address(const char* name, void** entry, int version, std::uint64_t flags,
                     ProcStatus* status, int driver_version) noexcept {
    constexpr std::uint64_t kKnownFlags = 3;
    if (name == nullptr || entry == nullptr || version > driver_version || flags > kKnownFlags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const ProcStatus found = find_proc(name, version, flags, entry);
    if (status != nullptr) {
        *status = found;
    }
    return CUDA_SUCCESS;
}

int get_proc_address_v1(const char* name, void** entry, int version, std::uint64_t flags,
                        int driver_version) noexcept {
    void* found = nullptr;
    const int result = get_proc_address(name, entry != nullptr ? &found : nullptr, version, flags,
                                        nullptr, driver_version);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (found == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *entry = found;
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda
