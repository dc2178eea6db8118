// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Numbers of the CUDA driver calls on the wire. Append-only; see numbers.lock.
#pragma once

#include <cstdint>

namespace gantry::cuda {

/// Numbers below kFirstOp are Gantry's own commands (proto/wire/control_ops.h).
enum class Op : std::uint16_t {
    kNone = 0,
    cuInit = 64,
    cuStreamCreate = 65,
    cuStreamDestroy_v2 = 66,
    cuStreamDestroy = 67,
    cuMemsetD8Async = 68,
    cuMemsetD8_v2 = 69,
    cuGraphAddMemsetNode = 71,
    cuMemRangeGetAttribute = 72,
    cuLaunchKernel = 73,
    cuGetProcAddress_v2 = 74,
    cuIpcGetMemHandle = 75,
    cuModuleGetFunctionCount = 76,
    cuEventElapsedTime = 77,
    cuLinkName = 78,
};

inline constexpr std::uint16_t kFirstOp = 64;
inline constexpr std::uint16_t kOpEnd = 79;  // One past the last.
inline constexpr std::uint16_t kOpCount = 14;
/// Hash of all wire layouts: two ends that differ in it must not talk.
inline constexpr std::uint64_t kTableHash = 0xbdea09d7f18439cbull;

/// The exported symbol of a call, or null for a number that is none.
const char* op_name(Op op) noexcept;

}  // namespace gantry::cuda
