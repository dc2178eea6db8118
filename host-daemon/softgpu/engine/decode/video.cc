// Decoding of video instructions (vadd, vabsdiff4 and their like).
#include "host-daemon/softgpu/engine/exec/video.h"
#include "host-daemon/softgpu/engine/decode/decoder.h"

namespace gantry::softgpu {

using exec::VideoOp;
using ptx::OperandKind;
using ptx::Type;

namespace {

struct VideoName {
    std::string_view name;
    VideoOp op;
};
constexpr VideoName kNames[] = {
    {"vadd", VideoOp::kAdd},      {"vsub", VideoOp::kSub}, {"vabsdiff", VideoOp::kAbsDiff},
    {"vavrg", VideoOp::kAverage}, {"vmin", VideoOp::kMin}, {"vmax", VideoOp::kMax},
    {"vset", VideoOp::kSet},      {"vshl", VideoOp::kShl}, {"vshr", VideoOp::kShr},
};

struct CompareName {
    std::string_view name;
    Compare op;
};
constexpr CompareName kCompares[] = {
    {"eq", Compare::kEq}, {"ne", Compare::kNe}, {"lt", Compare::kLt},
    {"le", Compare::kLe}, {"gt", Compare::kGt}, {"ge", Compare::kGe},
};

}  // namespace

void Decoder::op_video(Operands operands) {
    std::string_view name = modifiers_.opcode();
    std::uint32_t log_parts = 0;
    if (name.back() == '4' || name.back() == '2') {
        log_parts = name.back() == '4' ? 2 : 1;
        name.remove_suffix(1);
    }
    const VideoName* found = nullptr;
    for (const VideoName& candidate : kNames) {
        found = candidate.name == name ? &candidate : found;
    }
    if (found == nullptr) {
        refuse("this video instruction is not supported by the soft GPU");
        return;
    }
    // vset.atype.btype.cmp has no result type of its own: its third operand is of the first type.
    const bool set = found->op == VideoOp::kSet;
    Type result = set ? Type::kU32 : modifiers_.take_type();
    const Type a_type = modifiers_.take_type();
    result = set ? a_type : result;
    const Type b_type = modifiers_.take_type();
    Compare test = Compare::kEq;
    if (set) {
        for (const CompareName& candidate : kCompares) {
            if (modifiers_.take(candidate.name)) {
                test = candidate.op;
            }
        }
    }
    const bool saturate = modifiers_.take("sat");
    const bool wrap = modifiers_.take("wrap");
    modifiers_.take("clamp");
    const std::string_view second = modifiers_.take_any({"add", "min", "max"});
    if (!expect_count(operands, 3, 4) || operands[0].kind != OperandKind::kRegister ||
        operands[0].part != 0) {
        refuse("merging forms of video instructions are not supported by the soft GPU");
        return;
    }
    const std::uint32_t a = source(operands[1], Type::kU32);
    const std::uint32_t b = source(operands[2], Type::kU32);
    const std::uint32_t c = operands.size() == 4 ? source(operands[3], Type::kU32) : constant32(0);
    const std::uint32_t dst = destination(operands[0], Type::kU32);
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::video());
    inst.dst = dst;
    inst.a = a;
    inst.b = b;
    inst.c = c;
    inst.d = second == "add" ? 1 : second == "min" ? 2 : second == "max" ? 3 : 0;
    inst.e = operands[1].part | (static_cast<std::uint32_t>(operands[2].part) << 4);
    inst.aux = static_cast<std::uint16_t>(static_cast<unsigned>(found->op) | (log_parts << 4) |
                                          (static_cast<unsigned>(test) << 8));
    inst.flags = static_cast<std::uint8_t>(
        (is_signed_integer(a_type) ? 1 : 0) | (is_signed_integer(b_type) ? 2 : 0) |
        (saturate ? 4 : 0) | (is_signed_integer(result) ? 8 : 0) | (wrap ? 16 : 0));
}

bool Decoder::pair_of_halves(Operands operands, VideoOp op) {
    const std::string_view type = modifiers_.take_any({"u16x2", "s16x2"});
    if (type.empty()) {
        return false;
    }
    const bool is_signed = type == "s16x2";
    const bool relu = is_signed && op != VideoOp::kAdd && modifiers_.take("relu");
    if (!expect_count(operands, 3, 3)) {
        return true;
    }
    const std::uint32_t a = source(operands[1], Type::kU32);
    const std::uint32_t b = source(operands[2], Type::kU32);
    const std::uint32_t dst = destination(operands[0], Type::kU32);
    if (bad()) {
        return true;
    }
    Inst& inst = emit(exec::video());
    inst.dst = dst;
    inst.a = a;
    inst.b = b;
    inst.c = constant32(0);
    inst.aux = static_cast<std::uint16_t>(static_cast<unsigned>(op) | (1U << 4));
    inst.flags = static_cast<std::uint8_t>((is_signed ? 1 | 2 | 8 : 0) | (relu ? 32 : 0));
    return true;
}

}  // namespace gantry::softgpu
