// Where a kernel's functions, registers, frames and shared variables lie.
#include <algorithm>

#include "host-daemon/softgpu/engine/decode/decoder.h"
#include "host-daemon/softgpu/ptx/parser.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint32_t kNone = 0xffffffffU;
constexpr std::uint32_t kTemporaries = 24;

std::uint32_t align_up(std::uint32_t value, std::uint32_t align) {
    return (value + align - 1) / align * align;
}

bool is_call(std::string_view spelling) {
    return spelling == "call" || spelling.substr(0, 5) == "call.";
}

}  // namespace

void Decoder::note_callees(std::uint32_t program_function, std::vector<std::uint32_t>& out,
                           bool& indirect) const {
    const ProgramFunction& entry = program_.functions[program_function];
    const ptx::Function& function = *entry.function;
    for (const ptx::Instruction& instruction : function.instructions) {
        if (!is_call(instruction.spelling)) {
            continue;
        }
        for (std::uint32_t i = 0; i < instruction.operand_count; ++i) {
            const ptx::Operand& operand = function.operands[instruction.first_operand + i];
            if (operand.kind == ptx::OperandKind::kRegister) {
                indirect = true;
            } else if (operand.kind == ptx::OperandKind::kSymbol) {
                const Symbol symbol = program_.find(entry.module_index, operand.name);
                if (symbol.kind == SymbolKind::kFunction) {
                    out.push_back(symbol.index);
                }
            }
        }
    }
    if (indirect) {
        for (std::uint32_t i = 0; i < program_.functions.size(); ++i) {
            if (program_.functions[i].address_taken) {
                out.push_back(i);
            }
        }
    }
}

void Decoder::visit(std::uint32_t program_function, std::vector<std::uint8_t>& state) {
    state[program_function] = 1;
    std::vector<std::uint32_t> callees;
    bool indirect = false;
    note_callees(program_function, callees, indirect);
    code_.needs_stack = code_.needs_stack || indirect;
    for (const std::uint32_t callee : callees) {
        if (state[callee] == 0 && !program_.functions[callee].function->is_entry) {
            visit(callee, state);
        }
    }
    code_function_of_[program_function] = static_cast<std::uint32_t>(code_.functions.size());
    CodeFunction made;
    made.program_function = program_function;
    code_.functions.push_back(made);
}

Result<void> Decoder::collect_functions(std::uint32_t program_function) {
    code_function_of_.assign(program_.functions.size(), kNone);
    std::vector<std::uint8_t> state(program_.functions.size(), 0);
    visit(program_function, state);
    mark_recursion();
    states_.resize(code_.functions.size());
    for (std::uint32_t i = 0; i < code_.functions.size(); ++i) {
        if (!lay_out_function(i)) {
            const ProgramFunction& entry = program_.functions[code_.functions[i].program_function];
            return ptx::error_at(program_.modules[entry.module_index].name, entry.function->where,
                                 "ptx.operand", "the kernel has too many registers");
        }
    }
    std::uint32_t end = code_.functions.back().region_end;
    temporaries_begin_ = align_up(end, 64);
    code_.constants_begin = temporaries_begin_ + kTemporaries * 512;
    lay_out_shared();
    compute_local_bytes();
    return {};
}

/// A function is re-entrant if it can reach itself.
void Decoder::mark_recursion() {
    const std::size_t count = code_.functions.size();
    std::vector<std::vector<std::uint32_t>> callees(count);
    for (std::size_t i = 0; i < count; ++i) {
        bool indirect = false;
        note_callees(code_.functions[i].program_function, callees[i], indirect);
    }
    for (std::size_t start = 0; start < count; ++start) {
        std::vector<bool> seen(count, false);
        std::vector<std::uint32_t> todo = callees[start];
        while (!todo.empty()) {
            const std::uint32_t next = code_function_of_[todo.back()];
            todo.pop_back();
            if (next == kNone || seen[next]) {
                continue;
            }
            seen[next] = true;
            todo.insert(todo.end(), callees[next].begin(), callees[next].end());
        }
        code_.functions[start].recursive = seen[start];
        code_.needs_stack = code_.needs_stack || seen[start];
    }
}

bool Decoder::lay_out_function(std::uint32_t code_function) {
    CodeFunction& made = code_.functions[code_function];
    FunctionState& state = states_[code_function];
    const ptx::Function& function = *program_.functions[made.program_function].function;
    std::vector<bool> used(function.registers.size(), false);
    for (const ptx::Operand& operand : function.operands) {
        if (operand.kind == ptx::OperandKind::kRegister) {
            used[operand.index] = true;
        }
    }
    for (const ptx::Instruction& instruction : function.instructions) {
        if (instruction.guard != ptx::kNoGuard) {
            used[instruction.guard] = true;
        }
    }
    for (const std::uint32_t reg : function.formal_registers) {
        if (reg != ptx::kNoGuard) {
            used[reg] = true;
        }
    }
    std::uint32_t at = code_function == 0 ? 0 : code_.functions[code_function - 1].region_end;
    at = align_up(at, 64);
    made.region_begin = at;
    state.register_slots.assign(function.registers.size(), kNone);
    constexpr std::uint32_t kBytes[] = {4, 128, 256, 512};
    std::uint64_t wanted = std::uint64_t{at} + 1024;  // With what is lost to alignment.
    for (std::size_t i = 0; i < used.size(); ++i) {
        wanted += used[i] ? kBytes[static_cast<int>(width_of(function.registers[i].type))] : 0;
    }
    if (wanted > kFileBytesMax) {
        return false;
    }
    for (const Width width : {Width::kPredicate, Width::k32, Width::k64, Width::k128}) {
        made.words_begin = width == Width::k32 ? at - made.region_begin : made.words_begin;
        made.wides_begin = width == Width::k64 ? at - made.region_begin : made.wides_begin;
        for (std::size_t i = 0; i < used.size(); ++i) {
            if (used[i] && width_of(function.registers[i].type) == width) {
                state.register_slots[i] = at;
                at += kBytes[static_cast<int>(width)];
            }
        }
        if (width == Width::kPredicate) {
            made.predicate_bytes = at - made.region_begin;
        }
        at = align_up(at, 64);
    }
    made.region_end = at;
    state.variable_offsets.assign(function.variables.size(), kNone);
    std::uint32_t frame = 0;
    for (std::size_t i = 0; i < function.variables.size(); ++i) {
        const ptx::Variable& variable = function.variables[i];
        const bool formal = i < function.formal_registers.size();
        const bool framed = variable.space == ptx::Space::kLocal ||
                            (variable.space == ptx::Space::kParam && !function.is_entry) ||
                            (variable.space == ptx::Space::kParam && !formal) ||
                            (variable.space == ptx::Space::kReg && formal);
        if (framed) {
            frame = align_up(frame, std::max(variable.align, 8U));
            state.variable_offsets[i] = frame;
            frame += static_cast<std::uint32_t>(variable.size);
        }
    }
    state.frame_bytes = align_up(frame, 16);
    made.frame_bytes = state.frame_bytes;
    return true;
}

void Decoder::use_shared(Symbol symbol) {
    if (symbol.kind != SymbolKind::kShared || shared_offsets_.count(symbol.index) != 0) {
        return;
    }
    const ptx::Variable& variable = *program_.shared_variables[symbol.index].variable;
    if (variable.linkage == ptx::Linkage::kExtern || variable.unsized) {
        shared_offsets_[symbol.index] = kNone;  // dynamic: placed behind the static ones
        return;
    }
    const std::uint32_t offset = align_up(code_.static_shared_bytes, variable.align);
    shared_offsets_[symbol.index] = offset;
    code_.static_shared_bytes = offset + static_cast<std::uint32_t>(variable.size);
}

/// Only what the kernel and its callees name counts: static shared memory is per kernel.
void Decoder::lay_out_shared() {
    for (const CodeFunction& made : code_.functions) {
        const ProgramFunction& entry = program_.functions[made.program_function];
        for (const ptx::Operand& operand : entry.function->operands) {
            if (operand.kind == ptx::OperandKind::kSymbol) {
                use_shared(program_.find(entry.module_index, operand.name));
            } else if (operand.kind == ptx::OperandKind::kVariable) {
                const auto found =
                    program_.function_symbols.find(&entry.function->variables[operand.index]);
                if (found != program_.function_symbols.end()) {
                    use_shared(found->second);
                }
            }
        }
    }
    std::uint32_t align = 16;
    for (const auto& [index, offset] : shared_offsets_) {
        if (offset == kNone) {
            align = std::max(align, program_.shared_variables[index].variable->align);
        }
    }
    bool dynamic = false;
    const std::uint32_t behind = align_up(code_.static_shared_bytes, align);
    for (auto& [index, offset] : shared_offsets_) {
        if (offset == kNone) {
            offset = behind;
            dynamic = true;
        }
    }
    if (dynamic) {
        code_.static_shared_bytes = behind;
    }
}

/// The deepest chain of frames, for kernels without recursion; functions stand before callers.
void Decoder::compute_local_bytes() {
    std::vector<std::uint32_t> depth(code_.functions.size(), 0);
    for (std::size_t i = 0; i < code_.functions.size(); ++i) {
        std::vector<std::uint32_t> callees;
        bool indirect = false;
        note_callees(code_.functions[i].program_function, callees, indirect);
        std::uint32_t deepest = 0;
        for (const std::uint32_t callee : callees) {
            const std::uint32_t index = code_function_of_[callee];
            if (index != kNone && index < i) {
                deepest = std::max(deepest, depth[index]);
            }
        }
        depth[i] = code_.functions[i].frame_bytes + deepest;
    }
    code_.local_bytes = depth.back();
}

}  // namespace gantry::softgpu
