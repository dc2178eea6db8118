// Decoding of mov, cvta, isspacep and cvt.
#include "host-daemon/softgpu/engine/decode/decoder.h"

namespace gantry::softgpu {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

void Decoder::mov_vector(Operands operands, Type type) {
    const bool unpacking = operands[0].kind == OperandKind::kVector;
    const Operands parts = children(unpacking ? operands[0] : operands[1]);
    const std::uint32_t whole_bytes = ptx::size_of(type);
    const auto count = static_cast<std::uint32_t>(parts.size());
    int form = -1;
    Type part = Type::kNone;
    if (whole_bytes == 4 && count == 2) {
        form = 0, part = Type::kB16;
    } else if (whole_bytes == 4 && count == 4) {
        form = 1, part = Type::kB8;
    } else if (whole_bytes == 8 && count == 2) {
        form = 2, part = Type::kB32;
    } else if (whole_bytes == 8 && count == 4) {
        form = 3, part = Type::kB16;
    } else if (whole_bytes == 16 && count == 2) {
        form = 4, part = Type::kB64;
    } else if (whole_bytes == 2 && count == 2) {
        form = 5, part = Type::kB8;
    } else {
        refuse("this split of a register is not supported");
        return;
    }
    std::uint32_t slots[4] = {};
    for (std::uint32_t i = 0; i < count; ++i) {
        slots[i] = unpacking ? destination(parts[i], part) : source(parts[i], part);
    }
    const std::uint32_t whole =
        unpacking ? source(operands[1], type) : destination(operands[0], type);
    if (bad()) {
        return;
    }
    Inst& inst = emit(unpacking ? handlers().unpack[form] : handlers().pack[form]);
    if (unpacking) {
        inst.a = whole;
        inst.dst = slots[0];
    } else {
        inst.dst = whole;
        inst.a = slots[0];
    }
    inst.b = slots[1];
    inst.c = slots[2];
    inst.d = slots[3];
}

void Decoder::op_mov(Operands operands) {
    const Type type = modifiers_.take_type();
    if (type == Type::kPred) {
        bool negated = false;
        const std::uint32_t a = source_predicate(operands[1], negated);
        const std::uint32_t dst = destination_predicate(operands[0]);
        if (bad()) {
            return;
        }
        Inst& inst = emit(exec::predicate_logic(), {.dst = dst, .a = a, .b = a});
        inst.flags = negated ? 3 : 0;
        return;
    }
    const auto is_split = [](const Operand& operand) {
        return operand.kind == OperandKind::kVector && operand.child_count > 1;
    };
    if (is_split(operands[0]) || is_split(operands[1])) {
        mov_vector(operands, type);
        return;
    }
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t dst = destination(operands[0], type);
    if (bad()) {
        return;
    }
    if (width_of(type) == Width::k128) {
        emit(handlers().pack[4], {.dst = dst, .a = a, .b = a + 256});
        return;
    }
    emit(handlers().unary[index_of(Unary::kMov)]
                         [index_of(width_of(type) == Width::k64 ? Elem::kU64 : Elem::kU32)],
         {.dst = dst, .a = a});
}

void Decoder::op_cvta(Operands operands) {
    const bool back = modifiers_.take("to");
    const std::string_view space =
        modifiers_.take_any({"global", "shared", "shared::cta", "shared::cluster", "local", "const",
                             "param", "param::entry"});
    const Type type = modifiers_.take_type();
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t dst = destination(operands[0], type);
    if (bad()) {
        return;
    }
    const bool shared = space.substr(0, 6) == "shared";
    if (!shared && space != "local") {
        emit(handlers().unary[index_of(Unary::kMov)][index_of(elem_of(type))],
             {.dst = dst, .a = a});
        return;
    }
    if (width_of(type) != Width::k64) {
        refuse("generic addresses have 64 bits");
        return;
    }
    Inst& inst = emit(exec::to_generic(), {.dst = dst, .a = a});
    inst.aux = shared ? 1 : 2;
    inst.flags = back ? 1 : 0;
}

void Decoder::op_isspacep(Operands operands) {
    const std::string_view space = modifiers_.take_front();
    const std::uint32_t a = source(operands[1], Type::kU64);
    const std::uint32_t dst = destination_predicate(operands[0]);
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::is_space(), {.dst = dst, .a = a});
    inst.aux = space == "global"                ? 0
               : space.substr(0, 6) == "shared" ? 1
               : space == "local"               ? 2
               : space == "const"               ? 3
                                                : 4;
}

void Decoder::op_cvt(Operands operands) {
    if (modifiers_.take("pack")) {
        op_cvt_pack(operands);
        return;
    }
    const std::string_view to_integer = modifiers_.take_any({"rni", "rzi", "rmi", "rpi"});
    const std::string_view rounding = modifiers_.take_any({"rn", "rz", "rm", "rp", "rna", "rs"});
    const bool flush = modifiers_.take("ftz");
    const bool saturate = modifiers_.take("sat");
    if (modifiers_.count() == 2) {
        const Type to = ptx::type_from_name(modifiers_.at(0));
        const Type from = ptx::type_from_name(modifiers_.at(1));
        const bool plain = to != Type::kNone && from != Type::kNone && to != Type::kF16x2 &&
                           to != Type::kBf16x2 && from != Type::kF16x2 && from != Type::kBf16x2;
        if (plain && expect_count(operands, 2, 2)) {
            modifiers_.take_type();
            modifiers_.take_type();
            const std::uint32_t a = source(operands[1], from);
            const std::uint32_t dst = destination(operands[0], to);
            if (bad()) {
                return;
            }
            const std::uint8_t direction = to_integer == "rzi"   ? kFpZero
                                           : to_integer == "rmi" ? kFpDown
                                           : to_integer == "rpi" ? kFpUp
                                                                 : kFpNearest;
            const int row = index_of(elem_of(to));
            const int column = index_of(elem_of(from));
            Handler handler = saturate ? handlers().convert_saturate[row][column]
                                       : handlers().convert[row][column];
            const bool same_float = to == from && is_float(to) && !to_integer.empty();
            if (same_float) {
                handler = handlers().round_integer[direction][row];
            }
            Inst& inst = emit(handler, {.dst = dst, .a = a});
            inst.flags = direction;
            inst.fp_mode = rounding == "rz"   ? kFpZero
                           : rounding == "rm" ? kFpDown
                           : rounding == "rp" ? kFpUp
                                              : kFpNearest;
            if (flush) {
                inst.fp_mode = static_cast<std::uint8_t>(inst.fp_mode | kFpFlush);
            }
            if (same_float && saturate) {
                emit(handlers().unary[index_of(Unary::kSatF)][row], {.dst = dst, .a = dst});
            }
            return;
        }
    }
    cvt_special(operands, rounding, saturate);
}

}  // namespace gantry::softgpu
