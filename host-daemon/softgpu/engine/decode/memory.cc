// Decoding of ld, st and of the instructions that only give hints.
#include "host-daemon/softgpu/engine/decode/decoder.h"

namespace gantry::softgpu {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

namespace {

Cell cell_of(Type type) {
    switch (type) {
        case Type::kB8:
        case Type::kU8: return Cell::kU8;
        case Type::kS8: return Cell::kS8;
        case Type::kS16: return Cell::kS16;
        case Type::kB128: return Cell::kB128;
        default: break;
    }
    const std::uint32_t size = ptx::size_of(type);
    return size == 2 ? Cell::kU16 : size == 8 ? Cell::kB64 : Cell::kB32;
}

/// Whether an access of `size` bytes ends behind a variable of `bytes`, or begins in front of it:
/// its offset is then a very large number.
bool ends_behind(std::uint64_t offset, std::uint64_t size, std::uint64_t bytes) {
    return offset > bytes || size > bytes - offset;
}

std::string_view without_subspace(std::string_view space) {
    return space.substr(0, space.find("::"));
}

}  // namespace

std::string_view Decoder::take_space() {
    return without_subspace(
        modifiers_.take_any({"global", "shared", "shared::cta", "shared::cluster", "local", "const",
                             "param", "param::entry", "param::func"}));
}

void Decoder::take_cache_hints() {
    modifiers_.take_any({"ca", "cg", "cs", "lu", "cv", "wb", "wt"});
    modifiers_.take("nc");
    modifiers_.take_any({"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first",
                         "L1::evict_last", "L1::no_allocate"});
    modifiers_.take_any({"L2::evict_normal", "L2::evict_first", "L2::evict_last"});
    modifiers_.take("L2::cache_hint");
    modifiers_.take_any({"L2::64B", "L2::128B", "L2::256B"});
}

/// True for accesses that another thread's progress may be waited for with.
bool Decoder::take_ordering() {
    modifiers_.take("weak");  // What an access without a word is.
    const bool ordered =
        !modifiers_.take_any({"volatile", "relaxed", "acquire", "release", "mmio", "acq_rel"})
             .empty();
    modifiers_.take_any({"cta", "cluster", "gpu", "sys"});
    return ordered;
}

bool Decoder::address(const Operand& operand, std::string_view space, Address& out,
                      std::uint32_t size) {
    if (operand.kind != OperandKind::kAddress || operand.child_count < 1) {
        malformed(operand.where, "expected an address in brackets");
        return false;
    }
    Operand base = children(operand)[0];
    const bool variable = base.kind == OperandKind::kVariable;
    const std::uint32_t frame_offset =
        variable ? state_->variable_offsets[base.index] : 0xffffffffU;
    if (variable && frame_offset != 0xffffffffU) {
        out.access = Access::kFrame;
        out.offset = static_cast<std::int64_t>(frame_offset + base.value);
        if (ends_behind(base.value, size, function_->variables[base.index].size) &&
            !function_->variables[base.index].unsized) {
            malformed(base.where, "access behind the end of '" + std::string(base.name) + "'");
            return false;
        }
        return true;
    }
    if (variable && function_->variables[base.index].space == ptx::Space::kParam) {
        const std::size_t index = base.index - function_->signature.returns.size();
        const ParameterInfo& parameter = info_.parameters[index];
        out.kernel_parameter = true;
        out.offset = static_cast<std::int64_t>(parameter.offset_bytes + base.value);
        if (ends_behind(base.value, size, parameter.size_bytes)) {
            malformed(base.where, "access behind the end of '" + std::string(base.name) + "'");
            return false;
        }
        return true;
    }
    const bool narrow =
        base.kind == OperandKind::kRegister && width_of(register_type(base.index)) == Width::k32;
    const bool in_register = base.kind == OperandKind::kRegister;
    out.offset = in_register ? static_cast<std::int64_t>(base.value) : 0;
    if (in_register) {
        base.value = 0;
    }
    if (space == "shared" || space == "local") {
        const bool shared = space == "shared";
        out.access = narrow ? (shared ? Access::kShared32 : Access::kLocal32)
                            : (shared ? Access::kShared64 : Access::kLocal64);
        out.slot = source(base, narrow ? Type::kU32 : Type::kU64);
    } else {
        out.access = Access::kFlat;
        out.slot = source(base, Type::kU64);
    }
    return !bad();
}

void Decoder::op_ld(Operands operands) {
    const bool ordered = take_ordering();
    const std::string_view space = take_space();
    take_cache_hints();
    modifiers_.take("unified");
    const std::string_view vector = modifiers_.take_any({"v2", "v4", "v8"});
    const Type type = modifiers_.take_type();
    const std::uint32_t count = vector.empty() ? 1 : static_cast<std::uint32_t>(vector[1] - '0');
    if (!expect_count(operands, 2, 3) || type == Type::kNone) {
        refuse("load without a type");
        return;
    }
    Address from;
    if (!address(operands[1], space, from, count * ptx::size_of(type))) {
        return;
    }
    const Operands parts = count == 1 ? operands.subspan(0, 1) : children(operands[0]);
    if (parts.size() != count) {
        malformed(operands[0].where, "the vector has the wrong number of registers");
        return;
    }
    const Cell cell = cell_of(type);
    const std::uint32_t step = count == 8 || (count == 4 && cell == Cell::kB64) ? count / 2 : count;
    std::uint32_t slots[8] = {};
    for (std::uint32_t i = 0; i < count; ++i) {
        slots[i] = destination(parts[i], type);
    }
    if (bad()) {
        return;
    }
    for (std::uint32_t first = 0; first < count; first += step) {
        const int log = step == 4 ? 2 : step == 2 ? 1 : 0;
        const HandlerTable& table = handlers();
        Inst& inst = emit(from.kernel_parameter ? table.load_param[index_of(cell)][log]
                          : ordered && from.access == Access::kFlat
                              ? table.load_ordered[index_of(cell)][log]
                              : table.load[index_of(from.access)][index_of(cell)][log],
                          {.dst = slots[first],
                           .a = from.slot,
                           .b = step > 1 ? slots[first + 1] : 0,
                           .c = step > 2 ? slots[first + 2] : 0,
                           .d = step > 2 ? slots[first + 3] : 0});
        inst.imm = from.offset + static_cast<std::int64_t>(first * ptx::size_of(type));
        inst.flags = ordered ? 1 : 0;
    }
}

void Decoder::op_st(Operands operands) {
    const bool ordered = take_ordering();
    if (modifiers_.take("async")) {
        refuse("stores to other blocks of a cluster are not supported");
        return;
    }
    const std::string_view space = take_space();
    take_cache_hints();
    const std::string_view vector = modifiers_.take_any({"v2", "v4", "v8"});
    const Type type = modifiers_.take_type();
    const std::uint32_t count = vector.empty() ? 1 : static_cast<std::uint32_t>(vector[1] - '0');
    if (!expect_count(operands, 2, 3) || type == Type::kNone) {
        refuse("store without a type");
        return;
    }
    Address to;
    if (!address(operands[0], space, to, count * ptx::size_of(type))) {
        return;
    }
    if (to.kernel_parameter) {
        malformed(operands[0].where, "kernel parameters cannot be written");
        return;
    }
    const Operands parts = count == 1 ? operands.subspan(1, 1) : children(operands[1]);
    if (parts.size() != count) {
        malformed(operands[1].where, "the vector has the wrong number of registers");
        return;
    }
    const Cell cell = cell_of(type);
    const std::uint32_t step = count == 8 || (count == 4 && cell == Cell::kB64) ? count / 2 : count;
    std::uint32_t slots[8] = {};
    for (std::uint32_t i = 0; i < count; ++i) {
        slots[i] = source(parts[i], type);
    }
    if (bad()) {
        return;
    }
    for (std::uint32_t first = 0; first < count; first += step) {
        const int log = step == 4 ? 2 : step == 2 ? 1 : 0;
        const HandlerTable& table = handlers();
        Inst& inst = emit(ordered && to.access == Access::kFlat
                              ? table.store_ordered[index_of(cell)][log]
                              : table.store[index_of(to.access)][index_of(cell)][log],
                          {.dst = slots[first],
                           .a = to.slot,
                           .b = step > 1 ? slots[first + 1] : 0,
                           .c = step > 2 ? slots[first + 2] : 0,
                           .d = step > 2 ? slots[first + 3] : 0});
        inst.imm = to.offset + static_cast<std::int64_t>(first * ptx::size_of(type));
        inst.flags = ordered ? 2 : 0;
    }
}

/// Hints about caches and scheduling change nothing here: all their modifiers are accepted.
void Decoder::op_nothing(Operands operands) {
    while (!modifiers_.empty()) {
        modifiers_.take_front();
    }
    if (modifiers_.opcode() == "createpolicy" && !operands.empty()) {
        const std::uint32_t dst = destination(operands[0], Type::kB64);
        if (!bad()) {
            emit(handlers().unary[index_of(Unary::kMov)][index_of(Elem::kU64)],
                 {.dst = dst, .a = constant64(0)});
        }
        return;
    }
    emit(exec::nothing());
}

void Decoder::op_fence(Operands) {
    while (!modifiers_.empty()) {
        modifiers_.take_front();
    }
    emit(exec::fence());
}

}  // namespace gantry::softgpu
