// Decoding of mma, wmma, ldmatrix, stmatrix and movmatrix.
#include <cstdlib>
#include <string>

#include "host-daemon/softgpu/engine/decode/decoder.h"
#include "host-daemon/softgpu/engine/matrix.h"

namespace gantry::softgpu {

using exec::MatrixSite;
using exec::MatrixType;
using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

namespace {

bool matrix_type(std::string_view name, MatrixType& out) {
    static constexpr std::pair<std::string_view, MatrixType> kNames[] = {
        {"f16", MatrixType::kF16},   {"bf16", MatrixType::kBf16}, {"tf32", MatrixType::kTf32},
        {"f32", MatrixType::kF32},   {"f64", MatrixType::kF64},   {"e4m3", MatrixType::kE4m3},
        {"e5m2", MatrixType::kE5m2}, {"s8", MatrixType::kS8},     {"u8", MatrixType::kU8},
        {"s4", MatrixType::kS4},     {"u4", MatrixType::kU4},     {"s32", MatrixType::kS32},
    };
    for (const auto& [known, type] : kNames) {
        if (known == name) {
            out = type;
            return true;
        }
    }
    return false;
}

/// "m16n8k16"
bool parse_shape(std::string_view text, std::uint32_t& m, std::uint32_t& n, std::uint32_t& k) {
    unsigned values[3] = {};
    if (std::sscanf(std::string(text).c_str(), "m%un%uk%u", &values[0], &values[1], &values[2]) !=
        3) {
        return false;
    }
    m = values[0];
    n = values[1];
    k = values[2];
    return true;
}

Type register_of(MatrixType type) { return type == MatrixType::kF64 ? Type::kF64 : Type::kB32; }

std::uint32_t registers_for(std::uint32_t elements, MatrixType type) {
    const std::uint32_t bits = exec::bits_of(type);
    const std::uint32_t per_lane = elements / 32;
    return bits >= 32 ? per_lane : std::max(1U, per_lane * bits / 32);
}

bool known_mma(const MatrixSite& site) {
    const std::uint32_t bits = exec::bits_of(site.a);
    if (bits != exec::bits_of(site.b) || site.n != 8) {
        return false;
    }
    if (site.m == 16) {
        switch (bits) {
            case 64: return site.k == 4 || site.k == 8 || site.k == 16;
            case 32: return site.k == 4 || site.k == 8;
            case 16: return site.k == 8 || site.k == 16;
            case 8: return site.k == 16 || site.k == 32;
            default: return site.k == 32 || site.k == 64;
        }
    }
    return site.m == 8 && ((bits == 64 && site.k == 4) || (bits == 8 && site.k == 16) ||
                           (bits == 4 && site.k == 32));
}

bool is_integer(MatrixType type) { return type >= MatrixType::kS8 && type != MatrixType::kS32; }

/// Whether the types of the four operands go together.
bool known_types(const MatrixSite& site) {
    const auto are = [&](MatrixType one, MatrixType other) {
        return (site.c == one || site.c == other) && (site.d == one || site.d == other);
    };
    if (site.a == MatrixType::kF64) {
        return site.b == MatrixType::kF64 && are(MatrixType::kF64, MatrixType::kF64);
    }
    if (is_integer(site.a)) {
        return is_integer(site.b) && exec::bits_of(site.a) == exec::bits_of(site.b) &&
               are(MatrixType::kS32, MatrixType::kS32);
    }
    const bool is_small = exec::bits_of(site.a) == 8;
    return site.a != MatrixType::kF32 && site.a != MatrixType::kS32 &&
           (site.a == site.b || (is_small && exec::bits_of(site.b) == 8 && !is_integer(site.b))) &&
           are(MatrixType::kF16, MatrixType::kF32);
}

/// wmma's fragments are whole registers, its products whole blocks of 8 by 8.
bool known_wmma_shape(const MatrixSite& site) {
    const auto whole = [](std::uint32_t side) { return side == 8 || side == 16 || side == 32; };
    return whole(site.m) && whole(site.n) && site.m * site.n <= 256 &&
           (whole(site.k) || site.k == 4);
}

}  // namespace

void Decoder::matrix_slots(const Operand& operand, Type type, bool write,
                           std::vector<std::uint32_t>& out) {
    const auto add = [&](const Operand& part) {
        out.push_back(write ? destination(part, type) : source(part, type));
    };
    if (operand.kind == OperandKind::kVector) {
        for (const Operand& part : children(operand)) {
            add(part);
        }
    } else {
        add(operand);
    }
}

void Decoder::op_mma(Operands operands) {
    modifiers_.take("sync");
    modifiers_.take("aligned");
    auto site = std::make_unique<MatrixSite>();
    const std::string_view shape = modifiers_.take_front();
    if (!parse_shape(shape, site->m, site->n, site->k)) {
        refuse("this form of mma is not supported by the soft GPU");
        return;
    }
    const std::string_view a_layout = modifiers_.take_any({"row", "col"});
    const std::string_view b_layout = modifiers_.take_any({"row", "col"});
    site->saturate = modifiers_.take("satfinite");
    modifiers_.take("kind::f8f6f4");
    modifiers_.take("rn");
    const bool typed = modifiers_.count() == 4 && matrix_type(modifiers_.at(0), site->d) &&
                       matrix_type(modifiers_.at(1), site->a) &&
                       matrix_type(modifiers_.at(2), site->b) &&
                       matrix_type(modifiers_.at(3), site->c);
    if (!typed || !known_mma(*site) || !known_types(*site) || a_layout != "row" ||
        b_layout != "col") {
        refuse("this shape of mma is not supported by the soft GPU");
        return;
    }
    while (!modifiers_.empty()) {
        modifiers_.take_front();
    }
    matrix_slots(operands[0], register_of(site->d), true, site->d_slots);
    matrix_slots(operands[1], register_of(site->a), false, site->a_slots);
    matrix_slots(operands[2], register_of(site->b), false, site->b_slots);
    matrix_slots(operands[3], register_of(site->c), false, site->c_slots);
    if (bad()) {
        return;
    }
    if (site->d_slots.size() != registers_for(site->m * site->n, site->d) ||
        site->a_slots.size() != registers_for(site->m * site->k, site->a) ||
        site->b_slots.size() != registers_for(site->k * site->n, site->b) ||
        site->c_slots.size() != registers_for(site->m * site->n, site->c)) {
        malformed(instruction_->where, "a fragment has the wrong number of registers");
        return;
    }
    code_.matrices.push_back(std::move(site));
    emit_unguarded(handlers().multiply_matrices).table = code_.matrices.back().get();
}

void Decoder::wmma_multiply(Operands operands) {
    auto site = std::make_unique<MatrixSite>();
    site->warp_layout = true;
    modifiers_.take("sync");
    modifiers_.take("aligned");
    modifiers_.take_any({"row", "col"});
    modifiers_.take_any({"row", "col"});
    site->saturate = modifiers_.take("satfinite");
    modifiers_.take_any({"rn", "rz", "rm", "rp"});
    const std::string_view shape = modifiers_.take_front();
    bool typed = parse_shape(shape, site->m, site->n, site->k);
    if (typed && modifiers_.count() == 2) {
        typed = matrix_type(modifiers_.at(0), site->d) && matrix_type(modifiers_.at(1), site->c);
    } else if (typed && modifiers_.count() == 4) {
        typed = matrix_type(modifiers_.at(0), site->d) && matrix_type(modifiers_.at(1), site->a) &&
                matrix_type(modifiers_.at(2), site->b) && matrix_type(modifiers_.at(3), site->c);
    } else {
        typed = false;
    }
    if (!typed || exec::bits_of(site->a) < 8 || !known_wmma_shape(*site) || !known_types(*site) ||
        !expect_count(operands, 4, 4)) {
        refuse("this form of wmma is not supported by the soft GPU");
        return;
    }
    while (!modifiers_.empty()) {
        modifiers_.take_front();
    }
    matrix_slots(operands[0], register_of(site->d), true, site->d_slots);
    matrix_slots(operands[1], register_of(site->a), false, site->a_slots);
    matrix_slots(operands[2], register_of(site->b), false, site->b_slots);
    matrix_slots(operands[3], register_of(site->c), false, site->c_slots);
    const bool enough = site->d_slots.size() >= registers_for(site->m * site->n, site->d) &&
                        site->a_slots.size() >= registers_for(site->m * site->k, site->a) &&
                        site->b_slots.size() >= registers_for(site->k * site->n, site->b) &&
                        site->c_slots.size() >= registers_for(site->m * site->n, site->c);
    if (!bad() && !enough) {
        malformed(instruction_->where, "a fragment has too few registers");
    }
    if (bad()) {
        return;
    }
    code_.matrices.push_back(std::move(site));
    emit_unguarded(handlers().multiply_matrices).table = code_.matrices.back().get();
}

void Decoder::wmma_memory(Operands operands, bool store) {
    auto site = std::make_unique<MatrixSite>();
    const std::string_view role = modifiers_.take_any({"a", "b", "c", "d"});
    modifiers_.take("sync");
    modifiers_.take("aligned");
    const std::string_view space = take_space();
    site->column_major = modifiers_.take_any({"row", "col"}) == "col";
    const std::string_view shape = modifiers_.take_front();
    const std::string_view type = modifiers_.take_front();
    if (!parse_shape(shape, site->m, site->n, site->k) || !known_wmma_shape(*site) ||
        !matrix_type(type, site->d) || exec::bits_of(site->d) < 8 ||
        !expect_count(operands, 2, 3)) {
        refuse("this form of wmma is not supported by the soft GPU");
        return;
    }
    site->rows = role == "b" ? site->k : site->m;
    site->columns = role == "a" ? site->k : site->n;
    Address where;
    if (!address(operands[store ? 0 : 1], space, where, 1)) {
        return;
    }
    site->access = where.access;
    site->offset = where.offset;
    site->stride_slot = operands.size() == 3
                            ? source(operands[2], Type::kU32)
                            : constant32(site->column_major ? site->rows : site->columns);
    matrix_slots(operands[store ? 1 : 0], register_of(site->d), !store, site->d_slots);
    if (!bad() && site->d_slots.size() < registers_for(site->rows * site->columns, site->d)) {
        malformed(instruction_->where, "the fragment has too few registers");
    }
    if (bad()) {
        return;
    }
    code_.matrices.push_back(std::move(site));
    Inst& inst =
        emit_unguarded(store ? exec::store_fragment() : exec::load_fragment(), {.a = where.slot});
    inst.table = code_.matrices.back().get();
}

void Decoder::op_wmma(Operands operands) {
    const std::string_view action = modifiers_.take_front();
    if (action == "mma") {
        wmma_multiply(operands);
    } else {
        wmma_memory(operands, action == "store");
    }
}

void Decoder::op_matrix_copy(Operands operands) {
    const bool store = modifiers_.opcode() == "stmatrix";
    modifiers_.take("sync");
    modifiers_.take("aligned");
    const bool plain = modifiers_.take("m8n8");
    const std::string_view count = modifiers_.take_any({"x1", "x2", "x4"});
    const bool transposed = modifiers_.take("trans");
    const std::string_view space = take_space();
    const bool b16 = modifiers_.take("b16");
    if (!plain || !b16 || count.empty() || !expect_count(operands, 2, 2)) {
        refuse("only 8x8 matrices of 16-bit elements are supported by the soft GPU");
        return;
    }
    Address where;
    if (!address(operands[store ? 0 : 1], space, where, 16)) {
        return;
    }
    std::vector<std::uint32_t> slots;
    matrix_slots(operands[store ? 1 : 0], Type::kB32, !store, slots);
    const auto matrices = static_cast<std::uint16_t>(count[1] - '0');
    if (!bad() && slots.size() != matrices) {
        malformed(instruction_->where, "the fragment has the wrong number of registers");
    }
    if (bad()) {
        return;
    }
    slots.resize(4);
    Inst& inst = emit_unguarded(store ? exec::store_matrices() : exec::load_matrices(),
                                {.dst = slots[0], .b = slots[1], .c = slots[2]});
    inst.e = slots[3];
    inst.a = where.slot;
    inst.imm = where.offset;
    inst.d = static_cast<std::uint32_t>(where.access);
    inst.aux = matrices;
    inst.flags = transposed ? 1 : 0;
}

void Decoder::op_movmatrix(Operands operands) {
    for (const std::string_view part : {"sync", "aligned", "m8n8", "trans", "b16"}) {
        modifiers_.take(part);
    }
    const std::uint32_t a = source(operands[1], Type::kB32);
    const std::uint32_t dst = destination(operands[0], Type::kB32);
    if (!bad()) {
        emit_unguarded(exec::transpose_matrix(), {.dst = dst, .a = a});
    }
}

}  // namespace gantry::softgpu
