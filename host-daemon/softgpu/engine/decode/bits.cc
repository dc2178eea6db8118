// Decoding of logic, shifts and bit manipulation.
#include "host-daemon/softgpu/engine/decode/decoder.h"

namespace gantry::softgpu {

using ptx::Type;

void Decoder::op_logic(Operands operands) {
    const Type type = modifiers_.take_type();
    const std::string_view name = modifiers_.opcode();
    if (type != Type::kPred) {
        binary_op(operands,
                  name == "and"  ? Binary::kAnd
                  : name == "or" ? Binary::kOr
                                 : Binary::kXor,
                  type, type);
        return;
    }
    if (!expect_count(operands, 3, 3)) {
        return;
    }
    bool a_negated = false;
    bool b_negated = false;
    const std::uint32_t a = source_predicate(operands[1], a_negated);
    const std::uint32_t b = source_predicate(operands[2], b_negated);
    const std::uint32_t dst = destination_predicate(operands[0]);
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::predicate_logic(), {.dst = dst, .a = a, .b = b});
    inst.aux = name == "and" ? 0 : name == "or" ? 1 : 2;
    inst.flags = static_cast<std::uint8_t>((a_negated ? 1 : 0) | (b_negated ? 2 : 0));
}

void Decoder::op_shift(Operands operands) {
    const Type type = modifiers_.take_type();
    binary_op(operands, modifiers_.opcode() == "shl" ? Binary::kShl : Binary::kShr, type, type);
}

void Decoder::op_not(Operands operands) {
    const Type type = modifiers_.take_type();
    if (type != Type::kPred) {
        unary_op(operands, Unary::kNot, type, type);
        return;
    }
    if (!expect_count(operands, 2, 2)) {
        return;
    }
    bool negated = false;
    const std::uint32_t a = source_predicate(operands[1], negated);
    const std::uint32_t dst = destination_predicate(operands[0]);
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::predicate_logic(), {.dst = dst, .a = a, .b = a});
    inst.flags = negated ? 0 : 3;  // a and a, both negated
}

void Decoder::op_cnot(Operands operands) {
    const Type type = modifiers_.take_type();
    unary_op(operands, Unary::kCnot, type, type);
}

void Decoder::op_count_bits(Operands operands) {
    const Type type = modifiers_.take_type();
    unary_op(operands, modifiers_.opcode() == "popc" ? Unary::kPopc : Unary::kClz, type,
             Type::kU32);
}

void Decoder::op_brev(Operands operands) {
    const Type type = modifiers_.take_type();
    unary_op(operands, Unary::kBrev, type, type);
}

void Decoder::op_bfind(Operands operands) {
    const bool shift = modifiers_.take("shiftamt");
    const Type type = modifiers_.take_type();
    unary_op(operands, shift ? Unary::kBfindShift : Unary::kBfind, type, Type::kU32);
}

void Decoder::op_bfe(Operands operands) {
    const Type type = modifiers_.take_type();
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t b = source(operands[2], Type::kU32);
    const std::uint32_t c = source(operands[3], Type::kU32);
    const std::uint32_t dst = destination(operands[0], type);
    if (bad()) {
        return;
    }
    emit(handlers().ternary[index_of(Ternary::kBfe)][index_of(elem_of(type))],
         {.dst = dst, .a = a, .b = b, .c = c});
}

void Decoder::op_bfi(Operands operands) {
    const Type type = modifiers_.take_type();
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t b = source(operands[2], type);
    const std::uint32_t c = source(operands[3], Type::kU32);
    const std::uint32_t d = source(operands[4], Type::kU32);
    const std::uint32_t dst = destination(operands[0], type);
    if (bad()) {
        return;
    }
    emit(width_of(type) == Width::k64 ? handlers().bfi64 : handlers().bfi32,
         {.dst = dst, .a = a, .b = b, .c = c, .d = d});
}

void Decoder::op_bmsk(Operands operands) {
    const bool wrap = modifiers_.take_any({"wrap", "clamp"}) == "wrap";
    const Type type = modifiers_.take_type();
    const std::uint32_t a = source(operands[1], Type::kU32);
    const std::uint32_t b = source(operands[2], Type::kU32);
    const std::uint32_t dst = destination(operands[0], type);
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::bit_mask(), {.dst = dst, .a = a, .b = b});
    inst.flags = wrap ? 1 : 0;
}

void Decoder::op_szext(Operands operands) {
    const bool wrap = modifiers_.take_any({"wrap", "clamp"}) == "wrap";
    const Type type = modifiers_.take_type();
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t b = source(operands[2], Type::kU32);
    const std::uint32_t dst = destination(operands[0], type);
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::extend_sign(), {.dst = dst, .a = a, .b = b});
    inst.flags = static_cast<std::uint8_t>((wrap ? 1 : 0) | (type == Type::kS32 ? 2 : 0));
}

void Decoder::op_shf(Operands operands) {
    const bool left = modifiers_.take_any({"l", "r"}) == "l";
    const bool wrap = modifiers_.take_any({"wrap", "clamp"}) == "wrap";
    const Type type = modifiers_.take_type();
    const Ternary op = left ? (wrap ? Ternary::kShfLeftWrap : Ternary::kShfLeftClamp)
                            : (wrap ? Ternary::kShfRightWrap : Ternary::kShfRightClamp);
    ternary_op(operands, op, type, Type::kU32, type);
}

void Decoder::op_lop3(Operands operands) {
    const Type type = modifiers_.take_type();
    const std::string_view combine = modifiers_.take_any({"or", "and"});
    std::uint64_t table = 0;
    const std::size_t count = combine.empty() ? 5 : 6;
    if (!expect_count(operands, count, count) || !immediate(operands[4], table)) {
        refuse("the table of lop3 must be a number");
        return;
    }
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t b = source(operands[2], type);
    const std::uint32_t c = source(operands[3], type);
    std::uint32_t dst = 0;
    if (combine.empty()) {
        dst = destination(operands[0], type);
    } else if (operands[0].kind == ptx::OperandKind::kPair) {
        dst = destination(children(operands[0])[0], type);
    }
    if (bad()) {
        return;
    }
    Inst& inst = emit(handlers().ternary[index_of(Ternary::kLop3)][index_of(elem_of(type))],
                      {.dst = dst, .a = a, .b = b, .c = c});
    inst.aux = static_cast<std::uint16_t>(table & 0xffU);
    if (!combine.empty()) {
        bool negated = false;
        const std::uint32_t q = source_predicate(operands[5], negated);
        const std::uint32_t nonzero = temporary();
        const std::uint32_t p = operands[0].kind == ptx::OperandKind::kPair
                                    ? destination_predicate(children(operands[0])[1])
                                    : temporary();
        emit(handlers().setp[index_of(Compare::kNe)][index_of(Elem::kU32)],
             {.dst = nonzero, .a = dst, .b = constant32(0)});
        Inst& logic = emit(exec::predicate_logic(), {.dst = p, .a = nonzero, .b = q});
        logic.aux = combine == "and" ? 0 : 1;
        logic.flags = negated ? 2 : 0;
    }
}

void Decoder::op_prmt(Operands operands) {
    const Type type = modifiers_.take_type();
    static constexpr std::string_view kModes[] = {"", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
    const std::string_view mode = modifiers_.take_any({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
    ternary_op(operands, Ternary::kPrmt, type, type, type);
    for (std::uint16_t i = 1; i < 7 && !bad(); ++i) {
        if (kModes[i] == mode) {
            code_.code.back().aux = i;
        }
    }
}

void Decoder::op_fns(Operands operands) {
    modifiers_.take_type();
    ternary_op(operands, Ternary::kFns, Type::kB32, Type::kB32, Type::kB32);
}

void Decoder::op_dp4a(Operands operands) {
    const Type a = modifiers_.take_type();
    const Type b = modifiers_.take_type();
    const bool a_signed = is_signed_integer(a);
    const bool b_signed = is_signed_integer(b);
    ternary_op(operands,
               a_signed ? (b_signed ? Ternary::kDp4aSS : Ternary::kDp4aSU)
                        : (b_signed ? Ternary::kDp4aUS : Ternary::kDp4aUU),
               Type::kU32, Type::kU32, Type::kU32);
}

void Decoder::op_dp2a(Operands operands) {
    const bool high = modifiers_.take_any({"lo", "hi"}) == "hi";
    const Type a_type = modifiers_.take_type();
    const Type b_type = modifiers_.take_type();
    const std::uint32_t a = source(operands[1], Type::kU32);
    const std::uint32_t b = source(operands[2], Type::kU32);
    const std::uint32_t c = source(operands[3], Type::kU32);
    const std::uint32_t dst = destination(operands[0], Type::kU32);
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::dot2(), {.dst = dst, .a = a, .b = b, .c = c});
    inst.aux = static_cast<std::uint16_t>((is_signed_integer(a_type) ? 1 : 0) |
                                          (is_signed_integer(b_type) ? 2 : 0) | (high ? 4 : 0));
}

}  // namespace gantry::softgpu
