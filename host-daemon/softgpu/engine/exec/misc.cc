// Small families: carry chains, testp, dp2a, bmsk, szext, address space tests.
#include <cmath>
#include <cstring>

#include "host-daemon/softgpu/engine/exec/handlers.h"
#include "host-daemon/softgpu/engine/run/scheduler.h"
#include "host-daemon/softgpu/engine/warp.h"
#include "host-daemon/softgpu/engine/windows.h"

namespace gantry::softgpu::exec {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

template <typename Body>
void for_active(u32 mask, Body body) {
    for (; mask != 0; mask &= mask - 1) {
        body(static_cast<u32>(__builtin_ctz(mask)));
    }
}

/// aux: bit 0 subtract, bit 1 carry in, bit 2 carry out. A difference is a + ~b + 1: its carry is
/// set where nothing was borrowed.
template <typename T>
const Inst* do_add_carry(Warp& warp, const Inst* inst) {
    const T* a = warp.slot<T>(inst->a);
    const T* b = warp.slot<T>(inst->b);
    T* out = warp.slot<T>(inst->dst);
    const bool subtract = (inst->aux & 1U) != 0;
    const bool carry_in = (inst->aux & 2U) != 0;
    const u32 flags = !carry_in ? 0U : subtract ? ~warp.carry : warp.carry;
    u32 carries = 0;
    for_active(warp.mask, [&](u32 lane) {
        const T flag = static_cast<T>((flags >> lane) & 1U);
        T partial = 0;
        T result = 0;
        bool carry = false;
        if (subtract) {
            carry = __builtin_sub_overflow(a[lane], b[lane], &partial);
            carry = !(__builtin_sub_overflow(partial, flag, &result) || carry);
        } else {
            carry = __builtin_add_overflow(a[lane], b[lane], &partial);
            carry = __builtin_add_overflow(partial, flag, &result) || carry;
        }
        out[lane] = result;
        carries |= static_cast<u32>(carry) << lane;
    });
    if ((inst->aux & 4U) != 0) {
        warp.carry = (warp.carry & ~warp.mask) | carries;
    }
    return inst + 1;
}

const Inst* do_add_carry_any(Warp& warp, const Inst* inst) {
    return (inst->flags & 1U) != 0 ? do_add_carry<u64>(warp, inst) : do_add_carry<u32>(warp, inst);
}

const Inst* do_test_property(Warp& warp, const Inst* inst) {
    u32 result = 0;
    for_active(warp.mask, [&](u32 lane) {
        u64 magnitude = 0;
        u64 infinity = 0;
        u64 smallest = 0;
        if (inst->flags != 0) {
            magnitude = warp.slot<u64>(inst->a)[lane] & ~(u64{1} << 63);
            infinity = 0x7ff0000000000000ULL;
            smallest = 0x0010000000000000ULL;
        } else {
            magnitude = warp.slot<u32>(inst->a)[lane] & 0x7fffffffU;
            infinity = 0x7f800000U;
            smallest = 0x00800000U;
        }
        bool answer = false;
        switch (inst->aux) {
            case 0: answer = magnitude < infinity; break;
            case 1: answer = magnitude == infinity; break;
            case 2: answer = magnitude <= infinity; break;
            case 3: answer = magnitude > infinity; break;
            case 4:  // Zero counts as normal.
                answer = magnitude == 0 || (magnitude >= smallest && magnitude < infinity);
                break;
            default: answer = magnitude != 0 && magnitude < smallest; break;
        }
        result |= static_cast<u32>(answer) << lane;
    });
    u32& p = warp.predicate(inst->dst);
    p = (p & ~warp.mask) | result;
    return inst + 1;
}

std::int32_t part(u32 value, u32 bits, u32 index, bool is_signed) {
    const u32 raw = (value >> (bits * index)) & ((1U << bits) - 1);
    return is_signed ? static_cast<std::int32_t>(raw << (32 - bits)) >> (32 - bits)
                     : static_cast<std::int32_t>(raw);
}

const Inst* do_dot2(Warp& warp, const Inst* inst) {
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    const u32* c = warp.slot<u32>(inst->c);
    u32* out = warp.slot<u32>(inst->dst);
    const u32 first = (inst->aux & 4U) != 0 ? 2 : 0;
    for_active(warp.mask, [&](u32 lane) {
        u32 sum = c[lane];
        for (u32 i = 0; i < 2; ++i) {
            sum += static_cast<u32>(part(a[lane], 16, i, (inst->aux & 1U) != 0) *
                                    part(b[lane], 8, first + i, (inst->aux & 2U) != 0));
        }
        out[lane] = sum;
    });
    return inst + 1;
}

const Inst* do_bit_mask(Warp& warp, const Inst* inst) {
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    u32* out = warp.slot<u32>(inst->dst);
    for_active(warp.mask, [&](u32 lane) {
        const u32 begin = inst->flags != 0 ? a[lane] & 31U : a[lane];
        const u32 width = inst->flags != 0 ? b[lane] & 31U : b[lane];
        const u64 field = width >= 32 ? 0xffffffffULL : (u64{1} << width) - 1;
        out[lane] = begin >= 32 ? 0U : static_cast<u32>(field << begin);
    });
    return inst + 1;
}

const Inst* do_extend_sign(Warp& warp, const Inst* inst) {
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    u32* out = warp.slot<u32>(inst->dst);
    const bool is_signed = (inst->flags & 2U) != 0;
    for_active(warp.mask, [&](u32 lane) {
        const u32 width = (inst->flags & 1U) != 0 ? b[lane] & 31U : b[lane];
        if (width >= 32) {
            out[lane] = a[lane];
        } else if (width == 0) {
            out[lane] = 0;
        } else {
            out[lane] = static_cast<u32>(part(a[lane], width, 0, is_signed));
        }
    });
    return inst + 1;
}

const Inst* do_is_space(Warp& warp, const Inst* inst) {
    const u64* a = warp.slot<u64>(inst->a);
    u32 result = 0;
    for_active(warp.mask, [&](u32 lane) {
        const u64 address = a[lane];
        bool answer = false;
        switch (inst->aux) {
            case 1: answer = in_window(address, kSharedWindow); break;
            case 2: answer = in_window(address, kLocalWindow); break;
            case 3: answer = is_constant_address(warp, address); break;
            case 4: answer = in_window(address, kParameterWindow); break;
            // The window of a kernel's parameters lies in the global one.
            default:
                answer = !in_window(address, kSharedWindow) && !in_window(address, kLocalWindow);
                break;
        }
        result |= static_cast<u32>(answer) << lane;
    });
    u32& p = warp.predicate(inst->dst);
    p = (p & ~warp.mask) | result;
    return inst + 1;
}

/// aux: 1 shared, 2 local; flags: 1 from generic to the space.
const Inst* do_to_generic(Warp& warp, const Inst* inst) {
    const u64* a = warp.slot<u64>(inst->a);
    u64* out = warp.slot<u64>(inst->dst);
    const u64 window = inst->aux == 1 ? kSharedWindow : kLocalWindow;
    for_active(warp.mask, [&](u32 lane) {
        out[lane] = inst->flags != 0 ? a[lane] - window : a[lane] + window;
    });
    return inst + 1;
}

}  // namespace

Handler add_carry() { return &do_add_carry_any; }
Handler test_property() { return &do_test_property; }
Handler dot2() { return &do_dot2; }
Handler bit_mask() { return &do_bit_mask; }
Handler extend_sign() { return &do_extend_sign; }
Handler is_space() { return &do_is_space; }
Handler to_generic() { return &do_to_generic; }

}  // namespace gantry::softgpu::exec
