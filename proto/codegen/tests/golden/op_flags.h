// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Flags of each call, for constant-time checks at the entry points.
#pragma once

#include <array>
#include <cstdint>

#include "proto/cuda/gen/opcodes.h"

namespace gantry::cuda {

enum OpFlag : std::uint8_t {
    kOpNeedsContext = 1u << 0,  ///< Answers CUDA_ERROR_INVALID_CONTEXT without a current context.
    kOpBeforeInit = 1u << 1,    ///< Works before cuInit.
    kOpMayBlock = 1u << 2,      ///< May wait for the device: never on the ring's consumer thread.
    kOpForwarded = 1u << 3,     ///< A command of its own crosses to the worker.
    kOpRefused = 1u << 4,       ///< Refused by name: CUDA_ERROR_NOT_SUPPORTED.
};

inline constexpr std::array<std::uint8_t, kOpEnd - kFirstOp> kOpFlags = {
    2, 9, 9, 9, 9, 1, 0, 9, 8, 9, 3, 16, 9, 9, 9};

constexpr std::uint8_t op_flags(Op op) noexcept {
    const auto number = static_cast<std::uint16_t>(op);
    return number >= kFirstOp && number < kOpEnd ? kOpFlags[number - kFirstOp] : std::uint8_t{0};
}

}  // namespace gantry::cuda
