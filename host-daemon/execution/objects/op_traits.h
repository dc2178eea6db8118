// What a worker has to know of a command before it looks at the arguments, by its number: one look
// at a table, since every command asks. The CUDA calls' traits follow from the API table
// (proto/cuda/driver_api).
#pragma once

#include <array>
#include <cstdint>

#include "proto/cuda/gen/opcodes.h"

namespace gantry::worker {

enum OpTrait : std::uint8_t {
    /// It may wait for the device or take long: it does not run on the consumer thread, unless
    /// look_at_wait() says that it would not wait now.
    kMayBlock = 1u << 0,
    /// It ends memory that is not the arena's, of modules or arrays: nobody may be copying it
    /// meanwhile (DeviceMemory::hold_layout).
    kEndsMemory = 1u << 1,
    /// Its answer lets the guest know that work has ended.
    kTellsOfCompletion = 1u << 2,
    /// Its answer tells an error of the lane's earlier commands that nobody waited for: it is of a
    /// kind that CUDA documents to report earlier errors, and has nothing but its result to lose:
    /// one that waits for the device, a query of a stream or an event, or a copy to the host. A
    /// call that creates, configures or destroys answers for itself alone: told of another's
    /// failure, the application would not know what it has, and nobody would own the object.
    kTellsOfEarlierErrors = 1u << 3,
    /// It ends kernels: what was prepared for their launches is forgotten first.
    kEndsCode = 1u << 4,
};

/// OpTrait bits by number: ControlOp and cuda::Op.
extern const std::array<std::uint8_t, cuda::kOpEnd> kOpTraits;

/// None for a number that nobody knows.
inline std::uint8_t op_traits(std::uint16_t number) noexcept {
    return number < kOpTraits.size() ? kOpTraits[number] : std::uint8_t{0};
}

}  // namespace gantry::worker
