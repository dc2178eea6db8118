// Decoding of setp, set, selp and slct.
#include "host-daemon/softgpu/engine/decode/decoder.h"

namespace gantry::softgpu {

using ptx::OperandKind;
using ptx::Type;

namespace {

struct CompareName {
    std::string_view name;
    Compare op;
};

constexpr CompareName kCompares[] = {
    {"eq", Compare::kEq},   {"ne", Compare::kNe},   {"lt", Compare::kLt},   {"le", Compare::kLe},
    {"gt", Compare::kGt},   {"ge", Compare::kGe},   {"lo", Compare::kLt},   {"ls", Compare::kLe},
    {"hi", Compare::kGt},   {"hs", Compare::kGe},   {"equ", Compare::kEqu}, {"neu", Compare::kNeu},
    {"ltu", Compare::kLtu}, {"leu", Compare::kLeu}, {"gtu", Compare::kGtu}, {"geu", Compare::kGeu},
    {"num", Compare::kNum}, {"nan", Compare::kNan},
};

bool find_compare(std::string_view name, Compare& out) {
    for (const CompareName& entry : kCompares) {
        if (entry.name == name) {
            out = entry.op;
            return true;
        }
    }
    return false;
}

std::uint16_t logic_of(std::string_view name) { return name == "and" ? 0 : name == "or" ? 1 : 2; }

Handler comparison(Compare op, Type element, bool flush) {
    return flush && element == Type::kF16
               ? handlers().setp_flush[index_of(op)]
               : handlers().setp[index_of(op)][index_of(elem_of(element))];
}

Type half_of(Type pair) { return pair == Type::kF16x2 ? Type::kF16 : Type::kBf16; }

}  // namespace

void Decoder::op_setp(Operands operands) {
    Compare op = Compare::kEq;
    if (!find_compare(modifiers_.take_front(), op)) {
        refuse("unknown comparison");
        return;
    }
    const std::string_view combine = modifiers_.take_any({"and", "or", "xor"});
    const bool flush = modifiers_.take("ftz");
    const Type type = modifiers_.take_type();
    const std::size_t count = combine.empty() ? 3 : 4;
    if (!expect_count(operands, count, count)) {
        return;
    }
    std::uint32_t a = source(operands[1], type);
    std::uint32_t b = source(operands[2], type);
    bool q_negated = false;
    const std::uint32_t q = combine.empty() ? 0 : source_predicate(operands[3], q_negated);
    const bool pair = operands[0].kind == OperandKind::kPair;
    const std::uint32_t p = destination_predicate(pair ? children(operands[0])[0] : operands[0]);
    const std::uint32_t second =
        pair ? destination_predicate(children(operands[0])[1]) : 0xffffffffU;
    if (bad()) {
        return;
    }
    const bool packed = type == Type::kF16x2 || type == Type::kBf16x2;
    const Type element = packed ? half_of(type) : type;
    const bool direct = !packed && !pair && combine.empty();
    const std::uint32_t raw = direct ? p : temporary();
    const auto compare = [&](std::uint32_t left, std::uint32_t right, std::uint32_t out) {
        Inst& inst = emit(comparison(op, element, flush), {.dst = out, .a = left, .b = right});
        inst.fp_mode = flush && type == Type::kF32 ? kFpFlush : kFpNearest;
    };
    const auto combined = [&](std::uint32_t from, std::uint32_t to, bool complement) {
        Inst& inst =
            emit(exec::predicate_logic(), {.dst = to, .a = from, .b = combine.empty() ? from : q});
        inst.aux = combine.empty() ? 0 : logic_of(combine);
        inst.flags =
            static_cast<std::uint8_t>((complement ? 1 : 0) | (combine.empty() ? (complement ? 2 : 0)
                                                              : q_negated     ? 2
                                                                              : 0));
    };
    compare(a, b, raw);
    if (packed) {
        // p is about the low halves, q about the high ones.
        const std::uint32_t a_high = temporary();
        const std::uint32_t b_high = temporary();
        for (const auto& [from, to] : {std::pair{a, a_high}, std::pair{b, b_high}}) {
            emit(handlers().binary[index_of(Binary::kShr)][index_of(Elem::kU32)],
                 {.dst = to, .a = from, .b = constant32(16)});
        }
        const std::uint32_t raw_high = temporary();
        compare(a_high, b_high, raw_high);
        combined(raw, p, false);
        if (pair) {
            combined(raw_high, second, false);
        }
        return;
    }
    if (!direct) {
        const std::uint32_t first = pair ? temporary() : p;
        combined(raw, first, false);
        if (pair) {
            combined(raw, second, true);
            emit(exec::predicate_logic(), {.dst = p, .a = first, .b = first});
        }
    }
}

void Decoder::op_set(Operands operands) {
    Compare op = Compare::kEq;
    if (!find_compare(modifiers_.take_front(), op)) {
        refuse("unknown comparison");
        return;
    }
    const std::string_view combine = modifiers_.take_any({"and", "or", "xor"});
    const bool flush = modifiers_.take("ftz");
    const Type result = modifiers_.take_type();
    const Type type = modifiers_.take_type();
    const std::size_t count = combine.empty() ? 3 : 4;
    if (!expect_count(operands, count, count)) {
        return;
    }
    const bool packed = type == Type::kF16x2 || type == Type::kBf16x2;
    const Type element = packed ? half_of(type) : type;
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t b = source(operands[2], type);
    bool q_negated = false;
    const std::uint32_t q = combine.empty() ? 0 : source_predicate(operands[3], q_negated);
    const std::uint32_t dst = destination(operands[0], result);
    if (bad()) {
        return;
    }
    // What "true" is, by result type.
    std::uint32_t one = 0xffffffffU;
    if (is_float(result)) {
        one = result == Type::kF32                             ? 0x3f800000U
              : result == Type::kF16 || result == Type::kF16x2 ? 0x3c00U
                                                               : 0x3f80U;
    } else if (ptx::size_of(result) == 2 || packed) {
        one = 0xffffU;
    }
    const auto half_result = [&](std::uint32_t left, std::uint32_t right, std::uint32_t out) {
        const std::uint32_t raw = temporary();
        Inst& inst = emit(comparison(op, element, flush), {.dst = raw, .a = left, .b = right});
        inst.fp_mode = flush && type == Type::kF32 ? kFpFlush : kFpNearest;
        if (!combine.empty()) {
            Inst& logic = emit(exec::predicate_logic(), {.dst = raw, .a = raw, .b = q});
            logic.aux = logic_of(combine);
            logic.flags = q_negated ? 2 : 0;
        }
        emit(handlers().selp32, {.dst = out, .a = constant32(one), .b = constant32(0), .c = raw});
    };
    if (!packed) {
        half_result(a, b, dst);
        return;
    }
    const std::uint32_t parts[4] = {temporary(), temporary(), temporary(), temporary()};
    half_result(a, b, parts[0]);
    for (const auto& [from, to] : {std::pair{a, parts[1]}, std::pair{b, parts[2]}}) {
        emit(handlers().binary[index_of(Binary::kShr)][index_of(Elem::kU32)],
             {.dst = to, .a = from, .b = constant32(16)});
    }
    half_result(parts[1], parts[2], parts[3]);
    emit(handlers().pack[0], {.dst = dst, .a = parts[0], .b = parts[3]});
}

void Decoder::op_selp(Operands operands) {
    const Type type = modifiers_.take_type();
    bool negated = false;
    const std::uint32_t p = source_predicate(operands[3], negated);
    if (type == Type::kPred) {
        bool unused = false;
        const std::uint32_t a = source_predicate(operands[1], unused);
        const std::uint32_t b = source_predicate(operands[2], unused);
        Inst& inst = emit(exec::select_predicate(),
                          {.dst = destination_predicate(operands[0]), .a = a, .b = b, .c = p});
        inst.flags = negated ? 1 : 0;
        return;
    }
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t b = source(operands[2], type);
    const std::uint32_t dst = destination(operands[0], type);
    if (bad()) {
        return;
    }
    Inst& inst = emit(width_of(type) == Width::k64 ? handlers().selp64 : handlers().selp32,
                      {.dst = dst, .a = a, .b = b, .c = p});
    inst.flags = negated ? 1 : 0;
}

void Decoder::op_slct(Operands operands) {
    const bool flush = modifiers_.take("ftz");
    const Type type = modifiers_.take_type();
    const Type test = modifiers_.take_type();
    // Bits are chosen, not computed: the element type only gives the width.
    const Type plain = width_of(type) == Width::k64 ? Type::kU64 : Type::kU32;
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t b = source(operands[2], type);
    const std::uint32_t c = source(operands[3], test);
    const std::uint32_t dst = destination(operands[0], type);
    if (bad()) {
        return;
    }
    const Ternary op = test == Type::kF32 ? Ternary::kSlctF32 : Ternary::kSlctS32;
    Inst& inst = emit(handlers().ternary[index_of(op)][index_of(elem_of(plain))],
                      {.dst = dst, .a = a, .b = b, .c = c});
    inst.fp_mode = flush ? kFpFlush : kFpNearest;
}

}  // namespace gantry::softgpu
