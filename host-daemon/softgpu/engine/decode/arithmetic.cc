// Decoding of integer and floating arithmetic.
#include <algorithm>
#include <iterator>

#include "host-daemon/softgpu/engine/decode/decoder.h"

namespace gantry::softgpu {

using ptx::Type;

namespace {

/// Flags of half arithmetic handlers.
constexpr std::uint8_t kHalfFtz = 1;
constexpr std::uint8_t kHalfSat = 2;
constexpr std::uint8_t kHalfRelu = 4;

bool is_half(Type type) { return type >= Type::kF16 && type <= Type::kBf16x2; }

/// The handler of an operation, or of its .ftz form where that is another one.
Handler chosen(const Handler* row, Handler flushing, Type type, std::uint8_t mode) {
    const bool flush = type == Type::kF32 && (mode & kFpFlush) != 0 && flushing != nullptr;
    return flush ? flushing : row[index_of(elem_of(type))];
}

Type doubled(Type type) {
    switch (type) {
        case Type::kU16: return Type::kU32;
        case Type::kS16: return Type::kS32;
        case Type::kU32: return Type::kU64;
        case Type::kS32: return Type::kS64;
        default: return Type::kNone;
    }
}

}  // namespace

std::uint8_t Decoder::take_fp_mode(bool flush_allowed) {
    const std::string_view rounding = modifiers_.take_any({"rn", "rz", "rm", "rp"});
    std::uint8_t mode = rounding == "rz"   ? kFpZero
                        : rounding == "rm" ? kFpDown
                        : rounding == "rp" ? kFpUp
                                           : kFpNearest;
    if (flush_allowed && modifiers_.take("ftz")) {
        mode = static_cast<std::uint8_t>(mode | kFpFlush);
    }
    return mode;
}

void Decoder::binary_op(Operands operands, Binary op, Type type, Type result) {
    if (!expect_count(operands, 3, 3)) {
        return;
    }
    const bool half = is_half(type);
    const std::uint8_t mode = is_float(type) ? take_fp_mode() : std::uint8_t{0};
    std::uint8_t flags = 0;
    if (half) {
        flags = static_cast<std::uint8_t>(((mode & kFpFlush) != 0 ? kHalfFtz : 0) |
                                          (modifiers_.take("sat") ? kHalfSat : 0));
    }
    const std::uint32_t a = source(operands[1], type);
    const bool shift = op == Binary::kShl || op == Binary::kShr;
    const std::uint32_t b = source(operands[2], shift ? Type::kU32 : type);
    const std::uint32_t dst = destination(operands[0], result);
    if (bad()) {
        return;
    }
    Inst& inst = emit(
        chosen(handlers().binary[index_of(op)], handlers().binary_flush[index_of(op)], type, mode),
        {.dst = dst, .a = a, .b = b});
    inst.fp_mode = half ? std::uint8_t{0} : mode;
    inst.flags = flags;
}

void Decoder::unary_op(Operands operands, Unary op, Type type, Type result) {
    if (!expect_count(operands, 2, 2)) {
        return;
    }
    const std::uint8_t mode = is_float(type) ? take_fp_mode() : std::uint8_t{0};
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t dst = destination(operands[0], result);
    if (bad()) {
        return;
    }
    Inst& inst = emit(
        chosen(handlers().unary[index_of(op)], handlers().unary_flush[index_of(op)], type, mode),
        {.dst = dst, .a = a});
    inst.fp_mode = is_half(type) ? std::uint8_t{0} : mode;
    inst.flags = (mode & kFpFlush) != 0 ? 1 : 0;
}

void Decoder::ternary_op(Operands operands, Ternary op, Type type, Type third, Type result) {
    if (!expect_count(operands, 4, 4)) {
        return;
    }
    const bool half = is_half(type);
    const std::uint8_t mode = is_float(type) ? take_fp_mode() : std::uint8_t{0};
    std::uint8_t flags = 0;
    if (half) {
        flags = static_cast<std::uint8_t>(((mode & kFpFlush) != 0 ? kHalfFtz : 0) |
                                          (modifiers_.take("sat") ? kHalfSat : 0) |
                                          (modifiers_.take("relu") ? kHalfRelu : 0));
        modifiers_.take("oob");
    }
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t b = source(operands[2], type);
    const std::uint32_t c = source(operands[3], third);
    const std::uint32_t dst = destination(operands[0], result);
    if (bad()) {
        return;
    }
    Inst& inst = emit(chosen(handlers().ternary[index_of(op)],
                             handlers().ternary_flush[index_of(op)], type, mode),
                      {.dst = dst, .a = a, .b = b, .c = c});
    inst.fp_mode = half ? std::uint8_t{0} : mode;
    inst.flags = flags;
}

void Decoder::op_add_or_sub(Operands operands) {
    const bool subtract = modifiers_.opcode() == "sub";
    if (modifiers_.take("cc")) {
        modifiers_.parse(subtract ? "sub.cc.out" : "add.cc.out");
        modifiers_.take("cc");
        op_carry(operands);
        return;
    }
    if (!subtract && pair_of_halves(operands, exec::VideoOp::kAdd)) {
        return;
    }
    const Type type = modifiers_.take_type();
    const bool saturating = (type == Type::kS32 || type == Type::kF32) && modifiers_.take("sat");
    const Binary op = subtract ? (saturating ? Binary::kSubSat : Binary::kSub)
                               : (saturating ? Binary::kAddSat : Binary::kAdd);
    binary_op(operands, op, type, type);
}

void Decoder::op_mul(Operands operands) {
    const Type type = modifiers_.take_type();
    if (is_float(type)) {
        const bool saturating = type == Type::kF32 && modifiers_.take("sat");
        binary_op(operands, saturating ? Binary::kMulSat : Binary::kMulLo, type, type);
        return;
    }
    const std::string_view part = modifiers_.take_any({"lo", "hi", "wide"});
    if (part == "wide") {
        binary_op(operands, Binary::kMulWide, type, doubled(type));
    } else if (!part.empty()) {
        binary_op(operands, part == "lo" ? Binary::kMulLo : Binary::kMulHi, type, type);
    } else {
        refuse("an integer product needs .lo, .hi or .wide");
    }
}

void Decoder::op_mad(Operands operands) {
    const Type type = modifiers_.take_type();
    if (is_float(type)) {
        const bool saturating = type == Type::kF32 && modifiers_.take("sat");
        ternary_op(operands, saturating ? Ternary::kFmaSat : Ternary::kFma, type, type, type);
        return;
    }
    if (modifiers_.take("cc")) {
        const bool high = modifiers_.take("hi");
        modifiers_.take("lo");
        modifiers_.parse(high ? "mad.hi.out" : "mad.lo.out");
        op_carry(operands);
        return;
    }
    const std::string_view part = modifiers_.take_any({"lo", "hi", "wide"});
    if (part == "wide") {
        ternary_op(operands, Ternary::kMadWide, type, doubled(type), doubled(type));
    } else if (part == "hi" && modifiers_.take("sat")) {
        ternary_op(operands, Ternary::kMadHiSat, type, type, type);
    } else if (!part.empty()) {
        ternary_op(operands, part == "lo" ? Ternary::kMadLo : Ternary::kMadHi, type, type, type);
    } else {
        refuse("an integer mad needs .lo, .hi or .wide");
    }
}

void Decoder::op_fma(Operands operands) {
    const Type type = modifiers_.take_type();
    const bool saturating = type == Type::kF32 && modifiers_.take("sat");
    ternary_op(operands, saturating ? Ternary::kFmaSat : Ternary::kFma, type, type, type);
}

void Decoder::op_mul24(Operands operands) {
    const Type type = modifiers_.take_type();
    const bool high = modifiers_.take_any({"lo", "hi"}) == "hi";
    binary_op(operands, high ? Binary::kMul24Hi : Binary::kMul24Lo, type, type);
}

void Decoder::op_mad24(Operands operands) {
    const Type type = modifiers_.take_type();
    const bool high = modifiers_.take_any({"lo", "hi"}) == "hi";
    const bool saturating = high && modifiers_.take("sat");
    ternary_op(operands,
               saturating ? Ternary::kMad24HiSat
               : high     ? Ternary::kMad24Hi
                          : Ternary::kMad24Lo,
               type, type, type);
}

void Decoder::op_div(Operands operands) {
    const Type type = modifiers_.take_type();
    const std::string_view kind = modifiers_.take_any({"approx", "full"});
    if (kind.empty()) {
        binary_op(operands, Binary::kDiv, type, type);
        return;
    }
    const bool flush = modifiers_.take("ftz");
    binary_op(operands, kind == "full" ? Binary::kDivFull : Binary::kDivApprox, type, type);
    if (!bad()) {
        code_.code.back().flags = flush ? 1 : 0;
    }
}

void Decoder::op_rem(Operands operands) {
    const Type type = modifiers_.take_type();
    binary_op(operands, Binary::kRem, type, type);
}

void Decoder::op_min_or_max(Operands operands) {
    const bool larger = modifiers_.opcode() == "max";
    if (pair_of_halves(operands, larger ? exec::VideoOp::kMax : exec::VideoOp::kMin)) {
        return;
    }
    const Type type = modifiers_.take_type();
    const bool nan = modifiers_.take("NaN");
    const bool xorsign = modifiers_.take("xorsign");
    if (xorsign) {
        modifiers_.take("abs");
    }
    if (operands.size() == 4 && type == Type::kF32 && !xorsign) {
        ternary_op(operands,
                   larger ? (nan ? Ternary::kMax3Nan : Ternary::kMax3)
                          : (nan ? Ternary::kMin3Nan : Ternary::kMin3),
                   type, type, type);
        return;
    }
    const bool relu = modifiers_.take("relu");
    Binary op = larger ? Binary::kMax : Binary::kMin;
    if (nan && xorsign) {
        op = larger ? Binary::kMaxNanXorsignAbs : Binary::kMinNanXorsignAbs;
    } else if (nan) {
        op = larger ? Binary::kMaxNan : Binary::kMinNan;
    } else if (xorsign) {
        op = larger ? Binary::kMaxXorsignAbs : Binary::kMinXorsignAbs;
    }
    binary_op(operands, op, type, type);
    if (relu && !bad()) {
        if (type != Type::kS32) {
            refuse("modifier '.relu' is only supported on .s32 here");
            return;
        }
        const std::uint32_t dst = code_.code.back().dst;
        emit(handlers().binary[index_of(Binary::kMax)][index_of(Elem::kS32)],
             {.dst = dst, .a = dst, .b = constant32(0)});
    }
}

void Decoder::abs_or_neg(Operands operands, Unary op) {
    const Type type = modifiers_.take_type();
    unary_op(operands, op, type, type);
}

void Decoder::op_abs(Operands operands) { abs_or_neg(operands, Unary::kAbs); }
void Decoder::op_neg(Operands operands) { abs_or_neg(operands, Unary::kNeg); }

void Decoder::op_sad(Operands operands) {
    const Type type = modifiers_.take_type();
    ternary_op(operands, Ternary::kSad, type, type, type);
}

/// add.cc, addc(.cc), sub.cc, subc(.cc), mad.{lo,hi}.cc, madc.{lo,hi}(.cc): see exec/misc.cc.
void Decoder::op_carry(Operands operands) {
    const std::string_view name = modifiers_.opcode();
    Modifiers given;
    given.parse(instruction_->spelling);
    const Type type = given.take_type();
    const bool carry_out = given.take("cc");
    const bool high = given.take("hi");
    given.take("lo");
    modifiers_ = given;
    const bool carry_in = name == "addc" || name == "subc" || name == "madc";
    const bool product = name == "mad" || name == "madc";
    const bool subtract = name == "sub" || name == "subc";
    if (!expect_count(operands, product ? 4 : 3, product ? 4 : 3)) {
        return;
    }
    if (!is_integer_or_bits(type) || ptx::size_of(type) < 4) {
        refuse("carry chains exist for 32 and 64 bits only");
        return;
    }
    std::uint32_t a = source(operands[1], type);
    std::uint32_t b = source(operands[2], type);
    if (product) {
        const std::uint32_t partial = temporary();
        emit(handlers()
                 .binary[index_of(high ? Binary::kMulHi : Binary::kMulLo)][index_of(elem_of(type))],
             {.dst = partial, .a = a, .b = b});
        a = partial;
        b = source(operands[3], type);
    }
    const std::uint32_t dst = destination(operands[0], type);
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::add_carry(), {.dst = dst, .a = a, .b = b});
    inst.aux =
        static_cast<std::uint16_t>((subtract ? 1 : 0) | (carry_in ? 2 : 0) | (carry_out ? 4 : 0));
    inst.flags = width_of(type) == Width::k64;
}

void Decoder::op_approximate(Operands operands) {
    const Type type = modifiers_.take_type();
    const std::string_view name = modifiers_.opcode();
    modifiers_.take("approx");
    const Unary op = name == "ex2"   ? Unary::kEx2
                     : name == "lg2" ? Unary::kLg2
                     : name == "sin" ? Unary::kSin
                     : name == "cos" ? Unary::kCos
                                     : Unary::kTanh;
    unary_op(operands, op, type, type);
}

void Decoder::op_sqrt(Operands operands) {
    const Type type = modifiers_.take_type();
    const bool approximate = modifiers_.take("approx");
    unary_op(operands, approximate ? Unary::kSqrtApprox : Unary::kSqrt, type, type);
}

void Decoder::op_rcp(Operands operands) {
    const Type type = modifiers_.take_type();
    if (!modifiers_.take("approx")) {
        unary_op(operands, Unary::kRcp, type, type);
    } else {
        unary_op(operands, type == Type::kF64 ? Unary::kRcpApproxFtz64 : Unary::kRcpApprox, type,
                 type);
    }
}

void Decoder::op_rsqrt(Operands operands) {
    const Type type = modifiers_.take_type();
    modifiers_.take("approx");
    const bool truncated = type == Type::kF64 && modifiers_.take("ftz");
    unary_op(operands, truncated ? Unary::kRsqrtApproxFtz64 : Unary::kRsqrt, type, type);
}

void Decoder::op_copysign(Operands operands) {
    const Type type = modifiers_.take_type();
    binary_op(operands, Binary::kCopysign, type, type);
}

void Decoder::op_testp(Operands operands) {
    const Type type = modifiers_.take_type();
    static constexpr std::string_view kNames[] = {"finite",     "infinite", "number",
                                                  "notanumber", "normal",   "subnormal"};
    const std::string_view name =
        modifiers_.take_any({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
    if (!expect_count(operands, 2, 2) || name.empty()) {
        refuse("unknown property");
        return;
    }
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t dst = destination_predicate(operands[0]);
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::test_property(), {.dst = dst, .a = a});
    inst.flags = type == Type::kF64;
    inst.aux = static_cast<std::uint16_t>(std::ranges::find(kNames, name) - std::begin(kNames));
}

}  // namespace gantry::softgpu
