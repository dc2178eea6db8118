// Decoding of cp.async, mbarrier and mapa.
#include "host-daemon/softgpu/engine/exec/async.h"
#include "host-daemon/softgpu/engine/decode/decoder.h"

namespace gantry::softgpu {

using exec::BarrierOp;
using ptx::OperandKind;
using ptx::Type;

void Decoder::op_cp(Operands operands) {
    modifiers_.take("async");
    if (modifiers_.take("bulk")) {
        cp_bulk(operands);
        return;
    }
    if (!modifiers_.take_any({"commit_group", "wait_group", "wait_all"}).empty()) {
        emit(exec::nothing());  // every copy is complete when its instruction is
        return;
    }
    if (modifiers_.take("mbarrier")) {
        modifiers_.take("arrive");
        const bool counted = !modifiers_.take("noinc");
        take_space();
        modifiers_.take("b64");
        Address where;
        if (!expect_count(operands, 1, 1) || !address(operands[0], "shared", where, 8)) {
            return;
        }
        // The pending count grows by one and the arrival takes it back: nothing is left to do,
        // except that .noinc arrivals were counted by the program.
        Inst& inst = emit(counted ? exec::nothing() : exec::mbarrier(), {.a = where.slot});
        inst.imm = where.offset;
        inst.d = static_cast<std::uint32_t>(where.access);
        inst.aux = static_cast<std::uint16_t>(BarrierOp::kArrive);
        inst.b = constant32(1);
        return;
    }
    modifiers_.take_any({"ca", "cg"});
    const std::string_view space = take_space();
    modifiers_.take("global");
    take_cache_hints();
    std::uint64_t size = 0;
    if (!expect_count(operands, 3, 5) || !immediate(operands[2], size) ||
        (size != 4 && size != 8 && size != 16)) {
        refuse("this form of cp.async is not supported by the soft GPU");
        return;
    }
    Address to;
    Address from;
    if (!address(operands[0], space, to, static_cast<std::uint32_t>(size)) ||
        !address(operands[1], "global", from, static_cast<std::uint32_t>(size))) {
        return;
    }
    std::uint32_t bytes = constant32(static_cast<std::uint32_t>(size));
    if (operands.size() > 3) {
        const bool ignore = operands[3].kind == OperandKind::kRegister &&
                            register_type(operands[3].index) == Type::kPred;
        if (ignore) {
            bool negated = false;
            const std::uint32_t p = source_predicate(operands[3], negated);
            const std::uint32_t chosen = temporary();
            Inst& pick =
                emit(handlers().selp32, {.dst = chosen, .a = constant32(0), .b = bytes, .c = p});
            pick.flags = negated ? 1 : 0;
            bytes = chosen;
        } else if (operands[3].kind == OperandKind::kRegister &&
                   width_of(register_type(operands[3].index)) == Width::k64) {
            // Only a cache policy.
        } else {
            bytes = source(operands[3], Type::kU32);
        }
    }
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::copy_async(), {.a = to.slot});
    inst.imm = to.offset;
    inst.d = static_cast<std::uint32_t>(to.access);
    inst.b = from.slot;
    inst.e = static_cast<std::uint32_t>(from.offset);
    inst.c = bytes;
    inst.aux = static_cast<std::uint16_t>(size);
}

void Decoder::cp_bulk(Operands operands) {
    if (!modifiers_.take_any({"commit_group", "wait_group"}).empty()) {
        modifiers_.take("read");
        emit(exec::nothing());
        return;
    }
    const std::string_view to_space = modifiers_.take_front();
    const std::string_view from_space = modifiers_.take_front();
    const bool barrier = modifiers_.take("mbarrier::complete_tx::bytes");
    modifiers_.take("bulk_group");
    take_cache_hints();
    const bool to_shared = to_space.substr(0, 6) == "shared";
    const bool from_shared = from_space.substr(0, 6) == "shared";
    if ((!to_shared && to_space != "global") || (!from_shared && from_space != "global") ||
        !modifiers_.empty() || !expect_count(operands, barrier ? 4 : 3, barrier ? 5 : 4)) {
        refuse("tensor, multicast and reducing bulk copies are not supported by the soft GPU");
        return;
    }
    const auto is_narrow = [&](const ptx::Operand& operand) {
        const ptx::Operand& base = children(operand)[0];
        return base.kind == OperandKind::kRegister &&
               width_of(register_type(base.index)) == Width::k32;
    };
    const auto part = [&](const ptx::Operand& operand, bool narrow) {
        ptx::Operand base = children(operand)[0];
        if (base.kind == OperandKind::kRegister && base.value != 0) {
            refuse("offsets in bulk copies are not supported by the soft GPU");
        }
        return source(base, narrow ? Type::kU32 : Type::kU64);
    };
    for (std::size_t i = 0; i < 2; ++i) {
        if (operands[i].kind != OperandKind::kAddress) {
            malformed(operands[i].where, "expected an address in brackets");
            return;
        }
    }
    const bool to_narrow = to_shared && is_narrow(operands[0]);
    const bool from_narrow = from_shared && is_narrow(operands[1]);
    const std::uint32_t to = part(operands[0], to_narrow);
    const std::uint32_t from = part(operands[1], from_narrow);
    const std::uint32_t size = source(operands[2], Type::kU32);
    std::uint32_t signal = 0xffffffffU;
    if (barrier && operands[3].kind == OperandKind::kAddress) {
        const bool narrow = is_narrow(operands[3]);
        signal = part(operands[3], narrow);
        if (!narrow && !bad()) {
            const std::uint32_t low = temporary();
            emit(handlers().convert[index_of(Elem::kU32)][index_of(Elem::kU64)],
                 {.dst = low, .a = signal});
            signal = low;
        }
    }
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::copy_bulk(), {.a = to, .b = from, .c = size});
    inst.e = signal;
    inst.flags = static_cast<std::uint8_t>((to_shared ? 1 : 0) | (from_shared ? 2 : 0) |
                                           (to_narrow ? 4 : 0) | (from_narrow ? 8 : 0));
}

void Decoder::op_mbarrier(Operands operands) {
    const std::string_view action = modifiers_.take_front();
    const bool expect = modifiers_.take("expect_tx");
    modifiers_.take("noComplete");
    const bool parity = modifiers_.take("parity");
    modifiers_.take_any({"release", "acquire", "relaxed"});
    modifiers_.take_any({"cta", "cluster"});
    const std::string_view space = take_space();
    modifiers_.take("b64");
    if (action == "pending_count") {
        if (expect_count(operands, 2, 2)) {
            const std::uint32_t token = source(operands[1], Type::kB64);
            const std::uint32_t dst = destination(operands[0], Type::kB32);
            Inst& inst = emit(exec::mbarrier(), {.dst = dst, .b = token});
            inst.aux = static_cast<std::uint16_t>(BarrierOp::kPending);
        }
        return;
    }
    const bool test = action == "test_wait" || action == "try_wait";
    const bool arrive = action == "arrive" || action == "arrive_drop";
    const bool has_result =
        test || (arrive && !operands.empty() && operands[0].kind != OperandKind::kAddress);
    const std::size_t at = has_result ? 1 : 0;
    if (!expect_count(operands, at + 1, at + 3)) {
        return;
    }
    Address where;
    if (!address(operands[at], space.empty() ? "" : "shared", where, 8)) {
        return;
    }
    BarrierOp op = BarrierOp::kInit;
    if (test) {
        op = parity ? BarrierOp::kTestParity : BarrierOp::kTest;
    } else if (arrive) {
        op = expect               ? BarrierOp::kArriveExpect
             : action == "arrive" ? BarrierOp::kArrive
                                  : BarrierOp::kArriveDrop;
    } else if (action == "expect_tx") {
        op = BarrierOp::kExpect;
    } else if (action == "complete_tx") {
        op = BarrierOp::kComplete;
    } else if (action == "inval") {
        op = BarrierOp::kInvalidate;
    } else if (action != "init") {
        // .expect_tx and .complete_tx stand first in their own spellings.
        op = expect ? BarrierOp::kExpect : BarrierOp::kInit;
    }
    std::uint32_t argument = constant32(1);
    if (operands.size() > at + 1) {
        argument = source(operands[at + 1], op == BarrierOp::kTest ? Type::kB64 : Type::kU32);
    }
    std::uint32_t dst = 0;
    if (has_result) {
        dst = test ? destination_predicate(operands[0]) : destination(operands[0], Type::kB64);
    }
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::mbarrier(), {.dst = dst, .a = where.slot});
    inst.imm = where.offset;
    inst.d = static_cast<std::uint32_t>(where.access);
    inst.b = argument;
    inst.aux = static_cast<std::uint16_t>(op);
    inst.flags = static_cast<std::uint8_t>((has_result ? 1 : 0) | (test ? 2 : 0));
}

/// In a cluster of one block every address maps to itself.
void Decoder::op_mapa(Operands operands) {
    take_space();
    const Type type = modifiers_.take_type();
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t dst = destination(operands[0], type);
    if (bad()) {
        return;
    }
    emit(handlers().unary[index_of(Unary::kMov)][index_of(elem_of(type))], {.dst = dst, .a = a});
}

/// Every block is a cluster of its own, so all shared memory that it can name is of rank 0.
void Decoder::op_getctarank(Operands operands) {
    take_space();
    const Type type = modifiers_.take_type();
    source(operands[1], type);
    const std::uint32_t dst = destination(operands[0], Type::kU32);
    if (bad()) {
        return;
    }
    emit(handlers().unary[index_of(Unary::kMov)][index_of(Elem::kU32)],
         {.dst = dst, .a = constant32(0)});
}

}  // namespace gantry::softgpu
