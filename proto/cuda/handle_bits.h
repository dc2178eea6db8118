// The bits of a guest handle. The guest mints it, applications hold it as an opaque pointer, the
// worker looks it up by its whole value, and it survives a migration unchanged.
//
//     63..56  0x47, so that no handle is a valid address, a small number or null
//     55..48  HandleKind
//     47      0 for a handle of a slot, 1 for a counted one
//     46..28  generation of the slot, never 0: a stale handle does not match its slot's new owner
//     27..6   slot
//     5..0    0: programs take handles for the addresses that the driver's are, and some keep marks
//             of their own in the lowest bits
//
// Kinds without a slot table in the guest use bits 46..6 as one counter.
#pragma once

#include <cstdint>

#include "proto/cuda/handle_kinds.h"

namespace gantry::cuda {

inline constexpr std::uint64_t kHandleTag = 0x47;
inline constexpr std::uint64_t kHandleStep = 64;  ///< From one handle to the next.
inline constexpr std::uint64_t kHandleSlots = 1ull << 22;
inline constexpr std::uint64_t kHandleGenerations = 1ull << 19;
inline constexpr std::uint64_t kHandleLowMask = (1ull << 48) - 1;

/// `low`: bits 47..0, whose meaning is the caller's.
constexpr std::uint64_t make_handle(HandleKind kind, std::uint64_t low) {
    return kHandleTag << 56 | static_cast<std::uint64_t>(kind) << 48 | (low & kHandleLowMask);
}

constexpr std::uint64_t slot_handle(HandleKind kind, std::uint64_t generation, std::uint64_t slot) {
    return make_handle(kind, (generation * kHandleSlots + slot) * kHandleStep);
}

constexpr std::uint64_t counted_handle(HandleKind kind, std::uint64_t number) {
    return make_handle(kind, 1ull << 47 | number * kHandleStep);
}

/// The number of a counted handle.
constexpr std::uint64_t handle_number(std::uint64_t handle) {
    return (handle & kHandleLowMask >> 1) / kHandleStep;
}

constexpr std::uint64_t handle_slot(std::uint64_t handle) {
    return handle / kHandleStep % kHandleSlots;
}

/// kInvalid for anything that is no handle.
constexpr HandleKind handle_kind(std::uint64_t handle) {
    const std::uint64_t kind = handle >> 48 & 0xff;
    if (handle >> 56 != kHandleTag || kind >= static_cast<std::uint64_t>(HandleKind::kCount)) {
        return HandleKind::kInvalid;
    }
    return static_cast<HandleKind>(kind);
}

/// The primary context of a device has the same handle for the life of the process.
constexpr std::uint64_t primary_context_handle(std::uint32_t device) {
    return slot_handle(HandleKind::kContext, 1, device);
}

}  // namespace gantry::cuda
