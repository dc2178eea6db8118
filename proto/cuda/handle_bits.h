// The bits of a guest handle. The guest mints it, applications hold it as an opaque pointer, the
// worker looks it up by its whole value, and it survives a migration unchanged.
//
//     63..56  0x47, so that no handle is a valid address, a small number or null
//     55..48  HandleKind
//     47..24  generation of the slot, never 0: a stale handle does not match its slot's new owner
//     23..0   slot
//
// Kinds without a slot table in the guest use bits 47..0 as one counter that starts above 0.
#pragma once

#include <cstdint>

#include "proto/cuda/handle_kinds.h"

namespace gantry::cuda {

inline constexpr std::uint64_t kHandleTag = 0x47;
inline constexpr std::uint32_t kHandleSlotBits = 24;
inline constexpr std::uint64_t kHandleSlotMask = (1ull << kHandleSlotBits) - 1;
inline constexpr std::uint64_t kHandleSerialMask = (1ull << 48) - 1;

constexpr std::uint64_t make_handle(HandleKind kind, std::uint64_t serial) {
    return kHandleTag << 56 | static_cast<std::uint64_t>(kind) << 48 | (serial & kHandleSerialMask);
}

constexpr std::uint64_t handle_slot(std::uint64_t handle) { return handle & kHandleSlotMask; }

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
    return make_handle(HandleKind::kContext, 1ull << kHandleSlotBits | device);
}

}  // namespace gantry::cuda
