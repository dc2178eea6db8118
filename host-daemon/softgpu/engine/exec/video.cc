#include "host-daemon/softgpu/engine/exec/video.h"

#include <algorithm>

#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {
namespace {

using u32 = std::uint32_t;
using s64 = std::int64_t;

s64 extract(u32 word, u32 bits, u32 index, bool is_signed) {
    if (bits == 32) {
        return is_signed ? static_cast<std::int32_t>(word) : static_cast<s64>(word);
    }
    const u32 raw = (word >> (bits * index)) & ((1U << bits) - 1);
    return is_signed ? static_cast<std::int32_t>(raw << (32 - bits)) >> (32 - bits)
                     : static_cast<s64>(raw);
}

s64 select_part(u32 word, u32 selector, bool is_signed) {
    if (selector == 0) {
        return extract(word, 32, 0, is_signed);
    }
    return selector <= 4 ? extract(word, 8, selector - 1, is_signed)
                         : extract(word, 16, selector - 5, is_signed);
}

bool compare(Compare op, s64 a, s64 b) {
    switch (op) {
        case Compare::kEq: return a == b;
        case Compare::kNe: return a != b;
        case Compare::kLt: return a < b;
        case Compare::kLe: return a <= b;
        case Compare::kGt: return a > b;
        default: return a >= b;
    }
}

s64 apply(const Inst* inst, s64 a, s64 b) {
    switch (static_cast<VideoOp>(inst->aux & 0xfU)) {
        case VideoOp::kAdd: return a + b;
        case VideoOp::kSub: return a - b;
        case VideoOp::kAbsDiff: return a < b ? b - a : a - b;
        case VideoOp::kAverage: {
            const s64 sum = a + b;
            return sum >= 0 ? (sum + 1) >> 1 : -((-sum + 1) >> 1);  // away from zero
        }
        case VideoOp::kMin: return std::min(a, b);
        case VideoOp::kMax: return std::max(a, b);
        case VideoOp::kSet: return compare(static_cast<Compare>(inst->aux >> 8), a, b) ? 1 : 0;
        default: break;
    }
    const bool left = static_cast<VideoOp>(inst->aux & 0xfU) == VideoOp::kShl;
    const s64 count = (inst->flags & 16U) != 0 ? b & 31 : std::clamp<s64>(b, 0, 32);
    return left ? a << count : a >> count;
}

s64 clamp_to(s64 value, u32 bits, bool is_signed) {
    const s64 low = is_signed ? -(s64{1} << (bits - 1)) : 0;
    const s64 high = is_signed ? (s64{1} << (bits - 1)) - 1 : (s64{1} << bits) - 1;
    return std::clamp(value, low, high);
}

u32 one_lane(const Inst* inst, u32 a, u32 b, u32 c) {
    const u32 parts = 1U << ((inst->aux >> 4) & 3U);
    const u32 bits = 32 / parts;
    const bool a_signed = (inst->flags & 1U) != 0;
    const bool b_signed = (inst->flags & 2U) != 0;
    const bool saturate = (inst->flags & 4U) != 0;
    const bool signed_result = (inst->flags & 8U) != 0;
    if (parts == 1) {
        s64 value = apply(inst, select_part(a, inst->e & 15U, a_signed),
                          select_part(b, (inst->e >> 4) & 15U, b_signed));
        value = saturate ? clamp_to(value, 32, signed_result) : value;
        const s64 other = signed_result ? static_cast<std::int32_t>(c) : static_cast<s64>(c);
        const s64 mine = signed_result ? static_cast<std::int32_t>(value)
                                       : static_cast<s64>(static_cast<u32>(value));
        return static_cast<u32>(inst->d == 1   ? value + other
                                : inst->d == 2 ? std::min(mine, other)
                                : inst->d == 3 ? std::max(mine, other)
                                               : value);
    }
    u32 packed = 0;
    s64 sum = 0;
    for (u32 i = 0; i < parts; ++i) {
        s64 value = apply(inst, extract(a, bits, i, a_signed), extract(b, bits, i, b_signed));
        value = saturate ? clamp_to(value, bits, signed_result) : value;
        value = (inst->flags & 32U) != 0 ? std::max<s64>(value, 0) : value;
        packed |= (static_cast<u32>(value) & ((1U << bits) - 1)) << (bits * i);
        sum += value;
    }
    if (inst->d == 1) {
        return c + static_cast<u32>(sum);
    }
    return packed;
}

const Inst* do_video(Warp& warp, const Inst* inst) {
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    const u32* c = warp.slot<u32>(inst->c);
    u32* out = warp.slot<u32>(inst->dst);
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const int lane = __builtin_ctz(mask);
        out[lane] = one_lane(inst, a[lane], b[lane], c[lane]);
    }
    return inst + 1;
}

}  // namespace

Handler video() { return &do_video; }

}  // namespace gantry::softgpu::exec
