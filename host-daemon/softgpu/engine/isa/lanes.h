// Helpers of the handlers that are compiled once per CPU level. Everything here lives in a
// namespace of that level and is forced inline, so that no code of one level is merged with
// another's. GANTRY_ISA is given by the build: v2, v3 or v4.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "host-daemon/softgpu/engine/warp.h"

#define GANTRY_ISA_CAT2(a, b) a##b
#define GANTRY_ISA_CAT(a, b) GANTRY_ISA_CAT2(a, b)
#define GANTRY_ISA_NAMESPACE GANTRY_ISA_CAT(isa_, GANTRY_ISA)
#define GANTRY_INLINE [[gnu::always_inline]] inline
#ifdef __clang__
#define GANTRY_LANES _Pragma("clang loop vectorize(assume_safety)")
#else
#define GANTRY_LANES _Pragma("GCC ivdep")
#endif

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

template <typename To, typename From>
GANTRY_INLINE To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To out;
    std::memcpy(&out, &value, sizeof out);
    return out;
}

// Tags for types that C++ does not have; arithmetic on them goes through float.
struct half_t {
    u16 bits;
};
struct bf16_t {
    u16 bits;
};
struct half2_t {
    u32 bits;
};
struct bf162_t {
    u32 bits;
};

template <bool Wide>
struct SlotOf {
    using type = u32;
};
template <>
struct SlotOf<true> {
    using type = u64;
};
/// The lane type of the slot that holds a T.
template <typename T>
using Slot = typename SlotOf<(sizeof(T) > 4)>::type;

template <typename T>
GANTRY_INLINE T from_slot(Slot<T> raw) {
    if constexpr (sizeof(T) == sizeof(Slot<T>)) {
        return bits_as<T>(raw);
    } else if constexpr (sizeof(T) == 2) {
        return bits_as<T>(static_cast<u16>(raw));
    } else {
        return bits_as<T>(static_cast<u8>(raw));
    }
}

template <typename T>
GANTRY_INLINE Slot<T> to_slot(T value) {
    if constexpr (sizeof(T) == sizeof(Slot<T>)) {
        return bits_as<Slot<T>>(value);
    } else if constexpr (std::is_signed_v<T>) {
        return static_cast<u32>(static_cast<s32>(value));
    } else if constexpr (std::is_unsigned_v<T>) {
        return value;
    } else {
        return bits_as<u16>(value);
    }
}

/// out[lane] = in[lane] where the lane's bit is set. Out of line: the compiler then builds every
/// handler's loop once.
void blend(u32* out, const u32* in, u32 mask);
void blend(u64* out, const u64* in, u32 mask);

/// Runs `body(lane)` -> value for all lanes and stores the active ones.
template <typename S, typename Body>
GANTRY_INLINE void for_lanes(Warp& warp, S* out, Body body) {
    alignas(64) S values[kLanes];
    const bool full = warp.full;
    S* to = full ? out : values;
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        to[lane] = body(lane);
    }
    if (!full) [[unlikely]] {
        blend(out, values, warp.mask);
    }
}

// Runs at one lane at a time, for bodies that do not vectorise or must not run twice.
template <typename Body>
GANTRY_INLINE void for_active(u32 mask, Body body) {
    while (mask != 0) {
        body(__builtin_ctz(mask));
        mask &= mask - 1;
    }
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
