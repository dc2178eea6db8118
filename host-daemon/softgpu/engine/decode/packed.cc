// Decoding of conversions with packed or very small formats.
#include "host-daemon/softgpu/engine/exec/packed.h"
#include "host-daemon/softgpu/engine/decode/decoder.h"

namespace gantry::softgpu {

using exec::SmallKind;
using ptx::Type;

namespace {

struct KindName {
    std::string_view name;
    SmallKind kind;
    bool pair;
    Type held;  ///< Register type.
};

constexpr KindName kKinds[] = {
    {"f16", SmallKind::kF16, false, Type::kB16},
    {"bf16", SmallKind::kBf16, false, Type::kB16},
    {"f16x2", SmallKind::kF16, true, Type::kB32},
    {"bf16x2", SmallKind::kBf16, true, Type::kB32},
    {"e4m3x2", SmallKind::kE4m3, true, Type::kB16},
    {"e5m2x2", SmallKind::kE5m2, true, Type::kB16},
    {"e2m3x2", SmallKind::kE2m3, true, Type::kB16},
    {"e3m2x2", SmallKind::kE3m2, true, Type::kB16},
    {"e2m1x2", SmallKind::kE2m1, true, Type::kB8},
    {"ue8m0x2", SmallKind::kUe8m0, true, Type::kB16},
    {"tf32", SmallKind::kTf32, false, Type::kB32},
    {"f32", SmallKind::kF32, false, Type::kF32},
};

const KindName* find_kind(std::string_view name) {
    for (const KindName& entry : kKinds) {
        if (entry.name == name) {
            return &entry;
        }
    }
    return nullptr;
}

}  // namespace

void Decoder::cvt_special(Operands operands, std::string_view rounding, bool) {
    std::uint8_t flags = 0;
    flags = static_cast<std::uint8_t>(flags | (modifiers_.take("relu") ? exec::kPackedRelu : 0));
    flags =
        static_cast<std::uint8_t>(flags | (modifiers_.take("satfinite") ? exec::kPackedFinite : 0));
    if (rounding == "rs") {
        refuse("stochastic rounding is not supported");
        return;
    }
    flags = static_cast<std::uint8_t>(flags | (rounding == "rz"    ? exec::kPackedZero
                                               : rounding == "rna" ? exec::kPackedAway
                                                                   : 0));
    if (modifiers_.count() != 2) {
        refuse("this conversion is not supported by the soft GPU");
        return;
    }
    const KindName* to = find_kind(modifiers_.at(0));
    const KindName* from = find_kind(modifiers_.at(1));
    const bool two_sources = to != nullptr && from != nullptr && to->pair && !from->pair;
    if (to == nullptr || from == nullptr || (from->pair && !to->pair) ||
        (two_sources && from->kind != SmallKind::kF32)) {
        refuse("this conversion is not supported by the soft GPU");
        return;
    }
    modifiers_.take_front();
    modifiers_.take_front();
    if (!expect_count(operands, two_sources ? 3 : 2, two_sources ? 3 : 2)) {
        return;
    }
    const std::uint32_t a = source(operands[1], from->held);
    const std::uint32_t b = two_sources ? source(operands[2], from->held) : a;
    const std::uint32_t dst = destination(operands[0], to->held);
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::convert_small(), {.dst = dst, .a = a, .b = b, .d = to->pair ? 2U : 1U});
    inst.aux = static_cast<std::uint16_t>(static_cast<unsigned>(to->kind) |
                                          (static_cast<unsigned>(from->kind) << 8));
    inst.flags = flags;
}

void Decoder::op_cvt_pack(Operands operands) {
    modifiers_.take("sat");
    const Type to = modifiers_.take_type();
    const Type from = modifiers_.take_type();
    modifiers_.take_type();
    const bool narrow = ptx::size_of(to) == 1;
    if (from != Type::kS32 || ptx::size_of(to) > 2 || to == Type::kNone ||
        !expect_count(operands, 3, 4)) {
        refuse("this packing is not supported by the soft GPU");
        return;
    }
    const std::uint32_t a = source(operands[1], Type::kS32);
    const std::uint32_t b = source(operands[2], Type::kS32);
    const std::uint32_t c = operands.size() == 4 ? source(operands[3], Type::kB32) : 0xffffffffU;
    const std::uint32_t dst = destination(operands[0], Type::kB32);
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::pack_saturated(), {.dst = dst, .a = a, .b = b, .c = c});
    inst.aux = static_cast<std::uint16_t>((narrow ? 0 : 2) + (is_signed_integer(to) ? 1 : 0));
}

}  // namespace gantry::softgpu
