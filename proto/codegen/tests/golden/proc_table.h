// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Lookup behind cuGetProcAddress. Libc only, no allocation, any thread.
#pragma once

#include <cstdint>

namespace gantry::cuda {

/// Values are those of CUdriverProcAddressQueryResult.
enum class ProcStatus : std::uint32_t {
    kFound = 0,
    kSymbolNotFound = 1,
    kVersionNotSufficient = 2,
};

/// The bit of `flags` that asks for entry points on the per-thread default stream.
inline constexpr std::uint64_t kProcPerThread = 2;

/// Finds the entry point of `name` for `version` (such as 12020). Of the name's versions not above
/// the asked one the highest is taken; with kProcPerThread only its per-thread versions count, if it
/// has any. Stores null when the answer is not kFound. A null name is not found. The answers were
/// compared with driver 580.159 for all rows, both kinds of stream and the versions around each.
ProcStatus find_proc(const char* name, int version, std::uint64_t flags, void** entry) noexcept;

/// cuGetProcAddress as that driver answers it, as a CUresult number: a name or version that is not
/// there is success with a null entry and says why in `status` (may be null); a version above the
/// driver's own, an unknown flag or a null argument is an invalid value and changes nothing.
int get_proc_address(const char* name, void** entry, int version, std::uint64_t flags,
                     ProcStatus* status, int driver_version) noexcept;

/// The first ABI, without the status: what is not there is CUDA_ERROR_NOT_FOUND and leaves the
/// entry as it was.
int get_proc_address_v1(const char* name, void** entry, int version, std::uint64_t flags,
                        int driver_version) noexcept;

}  // namespace gantry::cuda
