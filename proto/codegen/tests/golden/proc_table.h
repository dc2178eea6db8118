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
/// the asked one the highest is taken; with kProcPerThread its per-thread twin where it has one.
/// Stores null when the answer is not kFound. A null name is not found.
ProcStatus find_proc(const char* name, int version, std::uint64_t flags, void** entry) noexcept;

}  // namespace gantry::cuda
