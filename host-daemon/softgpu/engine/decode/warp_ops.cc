// Decoding of instructions that work across the lanes of a warp.
#include "host-daemon/softgpu/engine/decode/decoder.h"

namespace gantry::softgpu {

using ptx::OperandKind;
using ptx::Type;

namespace {
constexpr std::uint32_t kNoSlot = 0xffffffffU;
}

void Decoder::op_shfl(Operands operands) {
    const bool sync = modifiers_.take("sync");
    const std::string_view mode = modifiers_.take_any({"up", "down", "bfly", "idx"});
    const Type type = modifiers_.take_type();
    if (!expect_count(operands, sync ? 5 : 4, sync ? 5 : 4) || mode.empty()) {
        return;
    }
    const bool pair = operands[0].kind == OperandKind::kPair;
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t b = source(operands[2], Type::kU32);
    const std::uint32_t c = source(operands[3], Type::kU32);
    const std::uint32_t members = sync ? source(operands[4], Type::kU32) : constant32(0);
    const std::uint32_t dst = destination(pair ? children(operands[0])[0] : operands[0], type);
    const std::uint32_t p = pair ? destination_predicate(children(operands[0])[1]) : kNoSlot;
    if (bad()) {
        return;
    }
    Inst& inst = emit_unguarded(exec::shuffle(mode == "up"     ? 0
                                              : mode == "down" ? 1
                                              : mode == "bfly" ? 2
                                                               : 3),
                                {.dst = dst, .a = a, .b = b, .c = c, .d = members});
    inst.e = p;
}

void Decoder::op_vote(Operands operands) {
    const bool sync = modifiers_.take("sync");
    const std::string_view mode = modifiers_.take_any({"all", "any", "uni", "ballot"});
    modifiers_.take_type();
    if (!expect_count(operands, sync ? 3 : 2, sync ? 3 : 2) || mode.empty()) {
        return;
    }
    bool negated = false;
    const std::uint32_t a = source_predicate(operands[1], negated);
    const std::uint32_t members = sync ? source(operands[2], Type::kU32) : constant32(0);
    const std::uint32_t dst = mode == "ballot" ? destination(operands[0], Type::kU32)
                                               : destination_predicate(operands[0]);
    if (bad()) {
        return;
    }
    Inst& inst = emit_unguarded(exec::vote(mode == "all"   ? 0
                                           : mode == "any" ? 1
                                           : mode == "uni" ? 2
                                                           : 3),
                                {.dst = dst, .a = a, .d = members});
    inst.flags = static_cast<std::uint8_t>((negated ? 1 : 0) | (sync ? 2 : 0));
}

void Decoder::op_match(Operands operands) {
    const bool all = modifiers_.take_any({"all", "any"}) == "all";
    modifiers_.take("sync");
    const Type type = modifiers_.take_type();
    const bool pair = operands[0].kind == OperandKind::kPair;
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t members = source(operands[2], Type::kU32);
    const std::uint32_t dst =
        destination(pair ? children(operands[0])[0] : operands[0], Type::kU32);
    const std::uint32_t p = pair ? destination_predicate(children(operands[0])[1]) : kNoSlot;
    if (bad()) {
        return;
    }
    Inst& inst = emit_unguarded(exec::match(all, width_of(type) == Width::k64),
                                {.dst = dst, .a = a, .d = members});
    inst.e = p;
}

void Decoder::op_redux(Operands operands) {
    modifiers_.take("sync");
    static constexpr std::string_view kNames[] = {"add", "min", "max", "and", "or", "xor"};
    const std::string_view name = modifiers_.take_any({"add", "min", "max", "and", "or", "xor"});
    const bool absolute = modifiers_.take("abs");
    const bool nan = modifiers_.take("NaN");
    const Type type = modifiers_.take_type();
    if (!expect_count(operands, 3, 3) || name.empty()) {
        return;
    }
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t members = source(operands[2], Type::kU32);
    const std::uint32_t dst = destination(operands[0], type);
    if (bad()) {
        return;
    }
    std::uint16_t op = 0;
    for (std::uint16_t i = 0; i < 6; ++i) {
        op = kNames[i] == name ? i : op;
    }
    if (type == Type::kF32) {
        if (op != 1 && op != 2) {
            refuse("float reductions are min and max only");
            return;
        }
        op = static_cast<std::uint16_t>(op + (nan ? 7 : 5));
    }
    Inst& inst = emit_unguarded(exec::reduce(), {.dst = dst, .a = a, .d = members});
    inst.aux = op;
    inst.flags = static_cast<std::uint8_t>((is_signed_integer(type) ? 1 : 0) | (absolute ? 2 : 0));
}

void Decoder::op_elect(Operands operands) {
    modifiers_.take("sync");
    if (!expect_count(operands, 2, 2) || operands[0].kind != OperandKind::kPair) {
        return;
    }
    const std::uint32_t members = source(operands[1], Type::kU32);
    const std::uint32_t dst = destination(children(operands[0])[0], Type::kU32);
    const std::uint32_t p = destination_predicate(children(operands[0])[1]);
    if (bad()) {
        return;
    }
    Inst& inst = emit_unguarded(exec::elect(), {.dst = dst, .d = members});
    inst.e = p;
}

void Decoder::op_activemask(Operands operands) {
    modifiers_.take_type();
    const std::uint32_t dst = destination(operands[0], Type::kU32);
    if (!bad()) {
        emit(exec::active_mask()).dst = dst;
    }
}

}  // namespace gantry::softgpu
