// Operands: registers, constants, special registers and symbols become slots of the file.
#include <bit>
#include <cstring>

#include "host-daemon/softgpu/engine/decode/decoder.h"
#include "host-daemon/softgpu/engine/decode/specials.h"
#include "host-daemon/softgpu/engine/numbers.h"

namespace gantry::softgpu {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

namespace {
constexpr std::uint32_t kNone = 0xffffffffU;
}

Width width_of(Type type) {
    if (type == Type::kPred) {
        return Width::kPredicate;
    }
    const std::uint32_t size = ptx::size_of(type);
    return size == 16 ? Width::k128 : size == 8 ? Width::k64 : Width::k32;
}

Elem elem_of(Type type) {
    switch (type) {
        case Type::kB8:
        case Type::kU8: return Elem::kU8;
        case Type::kS8: return Elem::kS8;
        case Type::kB16:
        case Type::kU16: return Elem::kU16;
        case Type::kS16: return Elem::kS16;
        case Type::kS32: return Elem::kS32;
        case Type::kB64:
        case Type::kU64: return Elem::kU64;
        case Type::kS64: return Elem::kS64;
        case Type::kF16: return Elem::kF16;
        case Type::kBf16: return Elem::kBf16;
        case Type::kF16x2: return Elem::kF16x2;
        case Type::kBf16x2: return Elem::kBf16x2;
        case Type::kF32: return Elem::kF32;
        case Type::kF64: return Elem::kF64;
        default: return Elem::kU32;
    }
}

bool is_float(Type type) { return type >= Type::kF16 && type <= Type::kF64; }
bool is_signed_integer(Type type) { return type >= Type::kS8 && type <= Type::kS64; }
bool is_integer_or_bits(Type type) { return type >= Type::kB8 && type <= Type::kS64; }

Decoder::Operands Decoder::children(const Operand& operand) const {
    return {function_->operands.data() + operand.first_child, operand.child_count};
}

bool Decoder::expect_count(Operands operands, std::size_t least, std::size_t most) {
    if (operands.size() >= least && operands.size() <= most) {
        return true;
    }
    malformed(instruction_->where,
              "wrong number of operands for '" + std::string(instruction_->spelling) + "'");
    return false;
}

std::uint32_t Decoder::register_slot(std::uint32_t index) { return state_->register_slots[index]; }

Type Decoder::register_type(std::uint32_t index) const { return function_->registers[index].type; }

std::uint32_t Decoder::temporary() {
    if (temporaries_used_ >= 24) {
        refuse("the instruction needs more intermediate results than the engine has");
        temporaries_used_ = 0;
    }
    return temporaries_begin_ + 512 * temporaries_used_++;
}

std::uint32_t Decoder::constant32(std::uint32_t value) {
    const auto [found, added] = constants32_.try_emplace(
        value, code_.constants_begin + static_cast<std::uint32_t>(code_.constants.size()));
    if (added) {
        const std::size_t begin = code_.constants.size();
        code_.constants.resize(begin + 128);
        for (std::size_t lane = 0; lane < 32; ++lane) {
            std::memcpy(&code_.constants[begin + 4 * lane], &value, 4);
        }
    }
    return found->second;
}

std::uint32_t Decoder::constant64(std::uint64_t value) {
    const auto [found, added] = constants64_.try_emplace(
        value, code_.constants_begin + static_cast<std::uint32_t>(code_.constants.size()));
    if (added) {
        const std::size_t begin = code_.constants.size();
        code_.constants.resize(begin + 256);
        for (std::size_t lane = 0; lane < 32; ++lane) {
            std::memcpy(&code_.constants[begin + 8 * lane], &value, 8);
        }
    }
    return found->second;
}

std::uint32_t Decoder::constant_predicate(bool value) {
    return value ? constant32(0xffffffffU) : constant32(0);
}

std::uint64_t Decoder::immediate_bits(const Operand& operand, Type type) {
    if (operand.kind == OperandKind::kInteger) {
        switch (type) {  // an integer where a number of a float type is wanted
            case Type::kF32:
                return std::bit_cast<std::uint32_t>(
                    static_cast<float>(static_cast<std::int64_t>(operand.value)));
            case Type::kF64:
                return std::bit_cast<std::uint64_t>(
                    static_cast<double>(static_cast<std::int64_t>(operand.value)));
            default: return operand.value;
        }
    }
    const bool single = operand.kind == OperandKind::kFloat32;
    const double value = single ? std::bit_cast<float>(static_cast<std::uint32_t>(operand.value))
                                : std::bit_cast<double>(operand.value);
    switch (type) {
        case Type::kF64:
        case Type::kB64:
        case Type::kU64:
        case Type::kS64: return single ? std::bit_cast<std::uint64_t>(value) : operand.value;
        case Type::kF16: return half_from_double(value);
        case Type::kBf16: return bf16_from_double(value);
        default:
            return single ? operand.value : std::bit_cast<std::uint32_t>(static_cast<float>(value));
    }
}

bool Decoder::immediate(const Operand& operand, std::uint64_t& out) const {
    out = operand.value;
    return operand.kind == OperandKind::kInteger;
}

Symbol Decoder::symbol_of(const Operand& operand) const {
    if (operand.kind == OperandKind::kVariable) {
        const auto found = program_.function_symbols.find(&function_->variables[operand.index]);
        return found == program_.function_symbols.end() ? Symbol{} : found->second;
    }
    return program_.find(module_index_, operand.name);
}

std::uint32_t Decoder::symbol_constant(Symbol symbol, std::uint64_t addend, Width width,
                                       const Operand& operand) {
    const bool wide = width == Width::k64;
    const auto number = [&](std::uint64_t value) {
        return wide ? constant64(value) : constant32(static_cast<std::uint32_t>(value));
    };
    switch (symbol.kind) {
        case SymbolKind::kShared: return number(shared_offsets_[symbol.index] + addend);
        case SymbolKind::kFunction:
            program_.functions[symbol.index].address_taken = true;
            info_.takes_function_addresses = true;
            return number(ProgramFunction::address(symbol.index) + addend);
        case SymbolKind::kGlobal: {
            AddressSlot slot;
            slot.global = symbol.index;
            slot.wide = wide;
            slot.addend = addend;
            slot.offset = static_cast<std::uint32_t>(code_.constants.size());
            for (const AddressSlot& known : code_.addresses) {
                if (known.global == slot.global && known.wide == wide && known.addend == addend) {
                    return code_.constants_begin + known.offset;
                }
            }
            code_.constants.resize(code_.constants.size() + (wide ? 256 : 128));
            code_.addresses.push_back(slot);
            return code_.constants_begin + slot.offset;
        }
        default: break;
    }
    refuse("'" + std::string(operand.name) + "' is not defined in this program");
    return 0;
}

/// The address of a variable as a value (in its own state space).
std::uint32_t Decoder::address_constant(const Operand& operand, Width width) {
    if (operand.kind == OperandKind::kVariable) {
        const ptx::Variable& variable = function_->variables[operand.index];
        const std::uint32_t offset = state_->variable_offsets[operand.index];
        if (offset != kNone) {
            if (function_->is_entry) {
                return width == Width::k64
                           ? constant64(offset + operand.value)
                           : constant32(static_cast<std::uint32_t>(offset + operand.value));
            }
            const std::uint32_t slot = temporary();
            Inst& inst = emit(exec::frame_address(), {.dst = slot});
            inst.imm = static_cast<std::int64_t>(offset + operand.value);
            inst.flags = width == Width::k64;
            return slot;
        }
        if (variable.space == ptx::Space::kParam) {
            const std::uint32_t slot = temporary();
            Inst& inst = emit(exec::param_address(), {.dst = slot});
            inst.imm = static_cast<std::int64_t>(
                info_.parameters[operand.index - function_->signature.returns.size()].offset_bytes +
                operand.value);
            inst.flags = width == Width::k64;
            return slot;
        }
    }
    return symbol_constant(symbol_of(operand), operand.value, width, operand);
}

std::uint32_t Decoder::special(const Operand& operand, Width width) {
    const SpecialName* found = find_special(operand.name);
    if (found == nullptr) {
        malformed(operand.where, "unknown name '" + std::string(operand.name) + "'");
        return 0;
    }
    const bool wide = width == Width::k64;
    if (found->clock >= 0) {
        const std::uint32_t slot = temporary();
        Inst& inst = emit(exec::read_clock(), {.dst = slot});
        inst.aux = static_cast<std::uint16_t>(found->clock);
        inst.flags = wide;
        return slot;
    }
    const std::uint32_t key = static_cast<std::uint32_t>(found->what) * 2 + (wide ? 1U : 0U);
    const auto [known, added] = specials_.try_emplace(
        key, code_.constants_begin + static_cast<std::uint32_t>(code_.constants.size()));
    if (added) {
        code_.constants.resize(code_.constants.size() + (wide ? 256 : 128));
        code_.specials.push_back({found->what, wide, known->second});
    }
    return known->second;
}

std::uint32_t Decoder::source(const Operand& operand, Type type) {
    const Width width = width_of(type);
    switch (operand.kind) {
        case OperandKind::kRegister: {
            if (operand.part != 0 && modifiers_.opcode().front() != 'v') {
                malformed(operand.where, "only video instructions can select parts");
                return 0;
            }
            const Width held = width_of(register_type(operand.index));
            const std::uint32_t slot = register_slot(operand.index);
            if (held == width) {
                return slot;
            }
            if (held == Width::k64 && width == Width::k32) {
                const std::uint32_t narrow = temporary();
                emit(handlers().convert[index_of(Elem::kU32)][index_of(Elem::kU64)],
                     {.dst = narrow, .a = slot});
                return narrow;
            }
            if (held == Width::k32 && width == Width::k64) {
                const std::uint32_t wide = temporary();
                emit(handlers().convert[index_of(Elem::kU64)][index_of(Elem::kU32)],
                     {.dst = wide, .a = slot});
                return wide;
            }
            malformed(operand.where, "register '" + std::string(operand.name) + "' does not fit '" +
                                         std::string(instruction_->spelling) + "'");
            return 0;
        }
        case OperandKind::kInteger:
        case OperandKind::kFloat32:
        case OperandKind::kFloat64: {
            const std::uint64_t bits = immediate_bits(operand, type);
            return width == Width::k64 ? constant64(bits)
                                       : constant32(static_cast<std::uint32_t>(bits));
        }
        case OperandKind::kSpecial: return special(operand, width);
        case OperandKind::kVariable:
        case OperandKind::kSymbol: return address_constant(operand, width);
        case OperandKind::kVector:
            if (operand.child_count == 1) {
                return source(children(operand)[0], type);
            }
            break;
        default: break;
    }
    malformed(operand.where,
              "this operand does not fit '" + std::string(instruction_->spelling) + "'");
    return 0;
}

std::uint32_t Decoder::source_predicate(const Operand& operand, bool& negated) {
    negated = operand.negated;
    if (operand.kind == OperandKind::kRegister && register_type(operand.index) == Type::kPred) {
        return register_slot(operand.index);
    }
    if (operand.kind == OperandKind::kInteger) {
        return constant_predicate(operand.value != 0);
    }
    malformed(operand.where, "expected a predicate");
    return 0;
}

std::uint32_t Decoder::destination_predicate(const Operand& operand) {
    if (operand.kind == OperandKind::kSink) {
        return temporary();
    }
    if (operand.kind == OperandKind::kRegister && register_type(operand.index) == Type::kPred) {
        return register_slot(operand.index);
    }
    malformed(operand.where, "expected a predicate register");
    return 0;
}

std::uint32_t Decoder::destination(const Operand& operand, Type type) {
    if (operand.kind == OperandKind::kSink) {
        return temporary();
    }
    if (operand.kind == OperandKind::kVector && operand.child_count == 1) {
        return destination(children(operand)[0], type);
    }
    if (operand.kind != OperandKind::kRegister) {
        malformed(operand.where, operand.kind == OperandKind::kSpecial
                                     ? "unknown name '" + std::string(operand.name) + "'"
                                     : "expected a register");
        return 0;
    }
    const Width held = width_of(register_type(operand.index));
    const Width width = width_of(type);
    const std::uint32_t slot = register_slot(operand.index);
    if (held == width) {
        return slot;
    }
    if (held == Width::k64 && width == Width::k32) {
        const std::uint32_t narrow = temporary();
        widening_.push_back({narrow, slot, elem_of(type)});
        return narrow;
    }
    malformed(operand.where, "register '" + std::string(operand.name) + "' does not fit '" +
                                 std::string(instruction_->spelling) + "'");
    return 0;
}

}  // namespace gantry::softgpu
