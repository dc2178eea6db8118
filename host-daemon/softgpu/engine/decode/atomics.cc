// Decoding of atom and red.
#include "host-daemon/softgpu/engine/decode/decoder.h"
#include "host-daemon/softgpu/engine/exec/atomic.h"

namespace gantry::softgpu {

using exec::AtomicKind;
using exec::AtomicOp;
using ptx::Type;

namespace {

struct OpName {
    std::string_view name;
    AtomicOp op;
};
constexpr OpName kOps[] = {
    {"add", AtomicOp::kAdd},   {"min", AtomicOp::kMin}, {"max", AtomicOp::kMax},
    {"and", AtomicOp::kAnd},   {"or", AtomicOp::kOr},   {"xor", AtomicOp::kXor},
    {"exch", AtomicOp::kExch}, {"cas", AtomicOp::kCas}, {"inc", AtomicOp::kInc},
    {"dec", AtomicOp::kDec},
};

AtomicKind kind_of(Type type) {
    switch (type) {
        case Type::kF32: return AtomicKind::kF32;
        case Type::kF64: return AtomicKind::kF64;
        case Type::kF16: return AtomicKind::kF16;
        case Type::kBf16: return AtomicKind::kBf16;
        case Type::kF16x2: return AtomicKind::kF16x2;
        case Type::kBf16x2: return AtomicKind::kBf16x2;
        default: return is_signed_integer(type) ? AtomicKind::kSigned : AtomicKind::kUnsigned;
    }
}

bool allowed(AtomicOp op, Type type) {
    const std::uint32_t size = ptx::size_of(type);
    if (size == 16) {
        return op == AtomicOp::kExch || op == AtomicOp::kCas;
    }
    if (is_float(type)) {
        const bool half = size == 2 || type == Type::kF16x2 || type == Type::kBf16x2;
        return op == AtomicOp::kAdd || (half && (op == AtomicOp::kMin || op == AtomicOp::kMax));
    }
    if (size == 2) {
        return op == AtomicOp::kCas;
    }
    return size == 4 || (size == 8 && op != AtomicOp::kInc && op != AtomicOp::kDec);
}

}  // namespace

void Decoder::op_atomic(Operands operands) {
    const bool with_result = modifiers_.opcode() == "atom";
    take_ordering();
    if (modifiers_.take("async")) {
        refuse("asynchronous reductions are not supported");
        return;
    }
    const std::string_view space = take_space();
    const OpName* found = nullptr;
    for (const OpName& candidate : kOps) {
        if (modifiers_.take(candidate.name)) {
            found = &candidate;
            break;
        }
    }
    modifiers_.take("noftz");
    take_cache_hints();
    const std::string_view vector = modifiers_.take_any({"v2", "v4", "v8"});
    const Type type = modifiers_.take_type();
    const std::size_t at = with_result ? 1 : 0;
    const bool cas = found != nullptr && found->op == AtomicOp::kCas;
    if (found == nullptr || type == Type::kNone || !allowed(found->op, type)) {
        refuse("this atomic operation is not supported for this type");
        return;
    }
    if (!expect_count(operands, at + (cas ? 3 : 2), at + (cas ? 4 : 3))) {
        return;
    }
    const std::uint32_t count = vector.empty() ? 1 : static_cast<std::uint32_t>(vector[1] - '0');
    Address where;
    if (!address(operands[at], space, where, ptx::size_of(type) * count)) {
        return;
    }
    if (where.kernel_parameter) {
        malformed(operands[at].where, "kernel parameters cannot be written");
        return;
    }
    const Operands values = count == 1 ? operands.subspan(at + 1, 1) : children(operands[at + 1]);
    const Operands results = !with_result ? Operands{}
                             : count == 1 ? operands.subspan(0, 1)
                                          : children(operands[0]);
    if (values.size() != count || (with_result && results.size() != count)) {
        malformed(operands[at].where, "the vector has the wrong number of registers");
        return;
    }
    const bool flat_sum =
        found->op == AtomicOp::kAdd && type == Type::kF32 && where.access == Access::kFlat;
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t value = source(values[i], type);
        const std::uint32_t other = cas ? source(operands[at + 2], type) : value;
        const std::uint32_t dst = with_result ? destination(results[i], type) : 0;
        if (bad()) {
            return;
        }
        Inst& inst = emit(flat_sum ? exec::flat_sum() : exec::atomic(8 * ptx::size_of(type)),
                          {.dst = dst, .a = where.slot});
        inst.imm = where.offset + static_cast<std::int64_t>(i * ptx::size_of(type));
        inst.b = value;
        inst.c = other;
        inst.d = static_cast<std::uint32_t>(where.access);
        inst.aux = static_cast<std::uint16_t>(static_cast<unsigned>(found->op) |
                                              (static_cast<unsigned>(kind_of(type)) << 8));
        inst.flags = with_result ? 1 : 0;
    }
}

}  // namespace gantry::softgpu
