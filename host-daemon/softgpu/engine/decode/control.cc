// Decoding of branches, calls, barriers and the rest of control flow.
#include "host-daemon/softgpu/engine/decode/decoder.h"

namespace gantry::softgpu {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

namespace {
constexpr std::uint32_t kIndirect = 0xffffffffU;
}

void Decoder::op_bra(Operands operands) {
    modifiers_.take("uni");
    if (operands[0].kind != OperandKind::kLabel) {
        malformed(operands[0].where, "expected a label");
        return;
    }
    fixups_.push_back({code_.code.size(), operands[0].index});
    if (instruction_->guard == ptx::kNoGuard) {
        emit_unguarded(exec::branch());
    } else {
        emit_unguarded(exec::branch_if(instruction_->guard_negated)).guard =
            register_slot(instruction_->guard);
    }
}

void Decoder::op_brx(Operands operands) {
    modifiers_.take("idx");
    modifiers_.take("uni");
    const ptx::TargetList* list = nullptr;
    for (const ptx::TargetList& candidate : function_->targets) {
        if (candidate.name == operands[1].name) {
            list = &candidate;
        }
    }
    if (list == nullptr) {
        malformed(operands[1].where, "expected the name of a .branchtargets list");
        return;
    }
    const std::uint32_t a = source(operands[0], Type::kU32);
    if (bad()) {
        return;
    }
    code_.tables.push_back(std::make_unique<BranchTable>());
    std::vector<std::uint32_t> labels;
    for (std::uint32_t i = 0; i < list->count; ++i) {
        const Operand& target = function_->operands[list->first_operand + i];
        if (target.kind != OperandKind::kLabel) {
            malformed(target.where, "expected a label");
            return;
        }
        labels.push_back(target.index);
    }
    table_fixups_.emplace_back(code_.tables.back().get(), std::move(labels));
    Inst& inst = emit_unguarded(exec::branch_indexed(), {.a = a});
    inst.table = code_.tables.back().get();
}

/// Copies between the caller's operands and the callee's formals: .param variables directly,
/// registers and numbers through the caller's frame (see call_staging in the frame's end).
void Decoder::call_arguments(const Operand* returns, const Operand* params, CallSite& site,
                             const ptx::Signature& signature, std::uint32_t callee_function) {
    std::vector<std::uint32_t> formals;
    if (callee_function != kIndirect) {
        formals = states_[callee_function].variable_offsets;
    } else {
        std::uint32_t frame = 0;  // the same rule as lay_out_function's
        for (const std::vector<ptx::Variable>* list : {&signature.returns, &signature.params}) {
            for (const ptx::Variable& formal : *list) {
                const std::uint32_t align = std::max(formal.align, 8U);
                frame = (frame + align - 1) / align * align;
                formals.push_back(frame);
                frame += static_cast<std::uint32_t>(formal.size);
            }
        }
    }
    const auto pair_up = [&](const Operand* list, const std::vector<ptx::Variable>& wanted,
                             std::size_t first, bool into) {
        const std::size_t count = list == nullptr ? 0 : list->child_count;
        if (count != wanted.size()) {
            malformed(instruction_->where, "the call has the wrong number of arguments");
            return;
        }
        for (std::size_t i = 0; i < count; ++i) {
            const Operand& actual = children(*list)[i];
            const auto size = static_cast<std::uint32_t>(wanted[i].size);
            std::uint32_t held = 0;
            if (actual.kind == OperandKind::kVariable &&
                state_->variable_offsets[actual.index] != 0xffffffffU) {
                held = state_->variable_offsets[actual.index];
            } else {
                // A register or number: staged behind this function's own frame.
                held = (state_->frame_bytes + 15) / 16 * 16;
                state_->frame_bytes = held + 16;
                code_.functions[current_].frame_bytes = state_->frame_bytes;
                const Type type = wanted[i].type;
                const bool wide = width_of(type) == Width::k64;
                const Cell cell = wide ? Cell::kB64 : Cell::kB32;
                const auto& table = into ? handlers().store : handlers().load;
                const std::uint32_t slot = into ? source(actual, type) : destination(actual, type);
                if (bad()) {
                    return;
                }
                if (into) {
                    Inst& inst = emit_unguarded(table[index_of(Access::kFrame)][index_of(cell)][0],
                                                {.dst = slot});
                    inst.imm = held;
                } else {
                    staged_results_.push_back({slot, held, cell});
                }
            }
            const CallArgument argument{into ? held : formals[first + i],
                                        into ? formals[first + i] : held, size};
            (into ? site.in : site.out).push_back(argument);
        }
    };
    pair_up(params, signature.params, signature.returns.size(), true);
    if (!bad()) {
        pair_up(returns, signature.returns, 0, false);
    }
}

void Decoder::op_call(Operands operands) {
    modifiers_.take("uni");
    const Operand* returns = nullptr;
    const Operand* params = nullptr;
    const Operand* callee = nullptr;
    const Operand* prototype = nullptr;
    for (const Operand& operand : operands) {
        if (operand.kind == OperandKind::kList) {
            (callee == nullptr ? returns : params) = &operand;
        } else if (callee == nullptr) {
            callee = &operand;
        } else {
            prototype = &operand;
        }
    }
    if (callee == nullptr) {
        malformed(instruction_->where, "call without a function");
        return;
    }
    code_.calls.push_back(std::make_unique<CallSite>());
    CallSite& site = *code_.calls.back();
    site.caller = current_;
    staged_results_.clear();
    std::uint32_t pointer = 0;
    if (callee->kind == OperandKind::kRegister) {
        site.callee = kIndirect;
        pointer = source(*callee, Type::kU64);
        const ptx::Prototype* found = nullptr;
        for (const ptx::Prototype& candidate : function_->prototypes) {
            if (prototype != nullptr && candidate.name == prototype->name) {
                found = &candidate;
            }
        }
        if (found == nullptr) {
            refuse("an indirect call needs a .callprototype");
            return;
        }
        call_arguments(returns, params, site, found->signature, kIndirect);
    } else {
        const Symbol symbol = program_.find(module_index_, callee->name);
        if (symbol.kind == SymbolKind::kBuiltin) {
            site.builtin = static_cast<Builtin>(symbol.index);
            static const ptx::Function* const none = nullptr;
            const ptx::Function* declaration = none;
            for (const ptx::Function& candidate : program_.modules[module_index_].functions) {
                if (candidate.name == callee->name) {
                    declaration = &candidate;
                }
            }
            info_.uses_printf = info_.uses_printf || site.builtin == Builtin::kVprintf;
            info_.uses_device_heap = info_.uses_device_heap || site.builtin == Builtin::kMalloc ||
                                     site.builtin == Builtin::kFree ||
                                     site.builtin == Builtin::kDeviceMalloc ||
                                     site.builtin == Builtin::kDeviceFree;
            call_arguments(returns, params, site, declaration->signature, kIndirect);
        } else if (symbol.kind == SymbolKind::kFunction) {
            site.callee = code_function_of_[symbol.index];
            if (site.callee == kIndirect) {
                refuse("a kernel cannot be called");
                return;
            }
            call_arguments(returns, params, site,
                           program_.functions[symbol.index].function->signature, site.callee);
        } else {
            refuse("call of '" + std::string(callee->name) +
                   "', which no text of this program defines");
            return;
        }
    }
    if (bad()) {
        return;
    }
    Inst& inst =
        emit_unguarded(site.builtin == Builtin::kNone ? exec::call() : exec::call_builtin());
    inst.table = &site;
    inst.a = pointer;
    if (site.builtin == Builtin::kNone && !site.out.empty()) {
        emit_unguarded(exec::call_results()).table = &site;
    }
    for (const StagedResult& result : staged_results_) {
        Inst& load =
            emit_unguarded(handlers().load[index_of(Access::kFrame)][index_of(result.cell)][0],
                           {.dst = result.slot});
        load.imm = result.frame;
    }
}

void Decoder::op_ret(Operands) {
    modifiers_.take("uni");
    if (function_->is_entry) {
        emit_unguarded(exec::leave());
        return;
    }
    for (std::size_t i = 0; i < function_->signature.returns.size(); ++i) {
        const std::uint32_t reg = function_->formal_registers[i];
        if (reg == ptx::kNoGuard) {
            continue;
        }
        const Cell cell = width_of(register_type(reg)) == Width::k64 ? Cell::kB64 : Cell::kB32;
        Inst& inst = emit_unguarded(handlers().store[index_of(Access::kFrame)][index_of(cell)][0],
                                    {.dst = register_slot(reg)});
        inst.imm = state_->variable_offsets[i];
    }
    emit_unguarded(exec::function_return()).aux = static_cast<std::uint16_t>(current_);
}

void Decoder::op_exit(Operands) { emit_unguarded(exec::leave()); }

void Decoder::op_trap(Operands) {
    emit_unguarded(exec::trap()).aux = static_cast<std::uint16_t>(LaunchError::kTrap);
}

void Decoder::op_bar(Operands operands) {
    if (modifiers_.take("cluster")) {
        op_barrier_cluster(operands);
        return;
    }
    modifiers_.take("cta");
    if (modifiers_.take("warp")) {
        modifiers_.take("sync");
        if (!expect_count(operands, 1, 1)) {
            return;
        }
        const std::uint32_t members = source(operands[0], Type::kU32);
        if (!bad()) {
            emit_unguarded(exec::warp_sync()).d = members;
        }
        return;
    }
    const std::string_view action = modifiers_.take_any({"sync", "arrive", "red"});
    modifiers_.take("aligned");
    std::uint16_t mode = action == "arrive" ? 1 : 0;
    std::size_t at = 0;
    std::uint32_t dst = 0;
    std::uint32_t predicate = 0;
    bool negated = false;
    if (action == "red") {
        const std::string_view op = modifiers_.take_any({"popc", "and", "or"});
        mode = op == "popc" ? 2 : op == "and" ? 3 : 4;
        const Type type = modifiers_.take_type();
        if (!expect_count(operands, 3, 4)) {
            return;
        }
        dst = type == Type::kPred ? destination_predicate(operands[0])
                                  : destination(operands[0], type);
        predicate = source_predicate(operands.back(), negated);
        at = 1;
        operands = operands.subspan(0, operands.size() - 1);
    } else if (!expect_count(operands, 1, 2)) {
        return;
    }
    const std::uint32_t id = source(operands[at], Type::kU32);
    const std::uint32_t count =
        operands.size() > at + 1 ? source(operands[at + 1], Type::kU32) : constant32(0);
    if (bad()) {
        return;
    }
    Inst& inst = emit_unguarded(exec::barrier(), {.dst = dst, .a = id, .b = count, .c = predicate});
    inst.aux = mode;
    inst.flags = negated ? 1 : 0;
}

/// Clusters run one block after another here, so only clusters of one block keep their meaning:
/// run() refuses larger ones. Then a cluster barrier is a block barrier; arrive needs no wait.
void Decoder::op_barrier_cluster(Operands) {
    const std::string_view action = modifiers_.take_any({"arrive", "wait"});
    modifiers_.take_any({"release", "relaxed", "acquire"});
    modifiers_.take("aligned");
    Inst& inst = emit_unguarded(exec::barrier());
    inst.a = constant32(15);  // not handed out to programs: see exec/barrier.cc
    inst.b = constant32(0);
    inst.aux = action == "arrive" ? 5 : 6;
}

void Decoder::op_nanosleep(Operands) {
    modifiers_.take_type();
    emit_unguarded(exec::sleep_hint());
}

void Decoder::op_alloca(Operands operands) {
    const Type type = modifiers_.take_type();
    std::uint64_t align = 8;
    if (operands.size() == 3 && !immediate(operands[2], align)) {
        refuse("the alignment of alloca must be a number");
        return;
    }
    const std::uint32_t a = source(operands[1], type);
    const std::uint32_t dst = destination(operands[0], type);
    if (bad()) {
        return;
    }
    code_.needs_stack = true;
    Inst& inst = emit(exec::stack_allocate(), {.dst = dst, .a = a});
    inst.aux = static_cast<std::uint16_t>(std::max<std::uint64_t>(align, 8));
    inst.flags = width_of(type) == Width::k64;
    inst.imm = code_.functions[current_].frame_bytes;
    alloca_insts_.push_back({code_.code.size() - 1, current_});
}

void Decoder::op_stack(Operands operands) {
    const Type type = modifiers_.take_type();
    const bool save = modifiers_.opcode() == "stacksave";
    const std::uint32_t slot = save ? destination(operands[0], type) : source(operands[0], type);
    if (bad()) {
        return;
    }
    Inst& inst = emit(save ? exec::stack_save() : exec::stack_restore(), {.dst = slot, .a = slot});
    inst.flags = width_of(type) == Width::k64;
}

void Decoder::op_setmaxnreg(Operands) {
    while (!modifiers_.empty()) {
        modifiers_.take_front();
    }
    emit(exec::nothing());
}

}  // namespace gantry::softgpu
