#include "host-daemon/softgpu/engine/decode/decoder.h"

#include <algorithm>
#include <cstring>

#include "host-daemon/softgpu/ptx/parser.h"

namespace gantry::softgpu {

using ptx::Operand;

void Modifiers::parse(std::string_view spelling) {
    count_ = 0;
    std::size_t dot = spelling.find('.');
    opcode_ = spelling.substr(0, dot);
    while (dot != std::string_view::npos && count_ < parts_.size()) {
        const std::size_t begin = dot + 1;
        dot = spelling.find('.', begin);
        parts_[count_++] = spelling.substr(
            begin, dot == std::string_view::npos ? std::string_view::npos : dot - begin);
    }
}

void Modifiers::remove(std::size_t index) {
    for (std::size_t i = index + 1; i < count_; ++i) {
        parts_[i - 1] = parts_[i];
    }
    --count_;
}

bool Modifiers::take(std::string_view name) {
    for (std::size_t i = 0; i < count_; ++i) {
        if (parts_[i] == name) {
            remove(i);
            return true;
        }
    }
    return false;
}

std::string_view Modifiers::take_any(std::initializer_list<std::string_view> names) {
    for (std::size_t i = 0; i < count_; ++i) {
        for (const std::string_view name : names) {
            if (parts_[i] == name) {
                remove(i);
                return name;
            }
        }
    }
    return {};
}

ptx::Type Modifiers::take_type() {
    for (std::size_t i = 0; i < count_; ++i) {
        const ptx::Type type = ptx::type_from_name(parts_[i]);
        if (type != ptx::Type::kNone) {
            remove(i);
            return type;
        }
    }
    return ptx::Type::kNone;
}

std::string_view Modifiers::take_front() {
    const std::string_view first = front();
    if (count_ > 0) {
        remove(0);
    }
    return first;
}

Decoder::Decoder(LinkedProgram& program, std::uint32_t kernel_index)
    : program_(program),
      kernel_index_(kernel_index),
      info_(program.kernels[kernel_index]),
      code_(program.codes[kernel_index]) {}

const std::unordered_map<std::string_view, Decoder::Method>& Decoder::methods() {
    using D = Decoder;
    static const auto* const table = new std::unordered_map<std::string_view, Method>{
        {"add", {&D::op_add_or_sub}},
        {"sub", {&D::op_add_or_sub}},
        {"mul", {&D::op_mul}},
        {"mad", {&D::op_mad}},
        {"fma", {&D::op_fma}},
        {"mul24", {&D::op_mul24}},
        {"mad24", {&D::op_mad24}},
        {"div", {&D::op_div}},
        {"rem", {&D::op_rem}},
        {"min", {&D::op_min_or_max}},
        {"max", {&D::op_min_or_max}},
        {"abs", {&D::op_abs}},
        {"neg", {&D::op_neg}},
        {"sad", {&D::op_sad}},
        {"addc", {&D::op_carry}},
        {"subc", {&D::op_carry}},
        {"madc", {&D::op_carry}},
        {"ex2", {&D::op_approximate}},
        {"lg2", {&D::op_approximate}},
        {"sin", {&D::op_approximate}},
        {"cos", {&D::op_approximate}},
        {"tanh", {&D::op_approximate}},
        {"sqrt", {&D::op_sqrt}},
        {"rcp", {&D::op_rcp}},
        {"rsqrt", {&D::op_rsqrt}},
        {"copysign", {&D::op_copysign}},
        {"testp", {&D::op_testp}},
        {"and", {&D::op_logic}},
        {"or", {&D::op_logic}},
        {"xor", {&D::op_logic}},
        {"not", {&D::op_not}},
        {"cnot", {&D::op_cnot}},
        {"shl", {&D::op_shift}},
        {"shr", {&D::op_shift}},
        {"popc", {&D::op_count_bits}},
        {"clz", {&D::op_count_bits}},
        {"brev", {&D::op_brev}},
        {"bfind", {&D::op_bfind}},
        {"bfe", {&D::op_bfe, 4, 4}},
        {"bfi", {&D::op_bfi, 5, 5}},
        {"bmsk", {&D::op_bmsk, 3, 3}},
        {"szext", {&D::op_szext, 3, 3}},
        {"shf", {&D::op_shf}},
        {"lop3", {&D::op_lop3}},
        {"prmt", {&D::op_prmt}},
        {"fns", {&D::op_fns}},
        {"dp4a", {&D::op_dp4a}},
        {"dp2a", {&D::op_dp2a, 4, 4}},
        {"vabsdiff4", {&D::op_video}},
        {"vabsdiff2", {&D::op_video}},
        {"vadd4", {&D::op_video}},
        {"vadd2", {&D::op_video}},
        {"vsub4", {&D::op_video}},
        {"vsub2", {&D::op_video}},
        {"vavrg4", {&D::op_video}},
        {"vavrg2", {&D::op_video}},
        {"vmin4", {&D::op_video}},
        {"vmin2", {&D::op_video}},
        {"vmax4", {&D::op_video}},
        {"vmax2", {&D::op_video}},
        {"vset4", {&D::op_video}},
        {"vset2", {&D::op_video}},
        {"vadd", {&D::op_video}},
        {"vsub", {&D::op_video}},
        {"vabsdiff", {&D::op_video}},
        {"vmin", {&D::op_video}},
        {"vmax", {&D::op_video}},
        {"vshl", {&D::op_video}},
        {"vshr", {&D::op_video}},
        {"vmad", {&D::op_video}},
        {"vset", {&D::op_video}},
        {"setp", {&D::op_setp}},
        {"set", {&D::op_set}},
        {"selp", {&D::op_selp, 4, 4}},
        {"slct", {&D::op_slct, 4, 4}},
        {"mov", {&D::op_mov, 2, 2}},
        {"cvta", {&D::op_cvta, 2, 2}},
        {"isspacep", {&D::op_isspacep, 2, 2}},
        {"cvt", {&D::op_cvt}},
        {"ld", {&D::op_ld}},
        {"ldu", {&D::op_ld}},
        {"st", {&D::op_st}},
        {"atom", {&D::op_atomic}},
        {"red", {&D::op_atomic}},
        {"membar", {&D::op_fence}},
        {"fence", {&D::op_fence}},
        {"prefetch", {&D::op_nothing}},
        {"prefetchu", {&D::op_nothing}},
        {"discard", {&D::op_nothing}},
        {"applypriority", {&D::op_nothing}},
        {"griddepcontrol", {&D::op_nothing}},
        {"pmevent", {&D::op_nothing}},
        {"createpolicy", {&D::op_nothing}},
        {"cp", {&D::op_cp}},
        {"mbarrier", {&D::op_mbarrier}},
        {"mapa", {&D::op_mapa, 3, 3}},
        {"getctarank", {&D::op_getctarank, 2, 2}},
        {"setmaxnreg", {&D::op_setmaxnreg}},
        {"bra", {&D::op_bra, 1, 1}},
        {"brx", {&D::op_brx, 2, 2}},
        {"call", {&D::op_call}},
        {"ret", {&D::op_ret}},
        {"exit", {&D::op_exit}},
        {"trap", {&D::op_trap}},
        {"brkpt", {&D::op_trap}},
        {"bar", {&D::op_bar}},
        {"barrier", {&D::op_bar}},
        {"nanosleep", {&D::op_nanosleep}},
        {"alloca", {&D::op_alloca, 2, 3}},
        {"stacksave", {&D::op_stack, 1, 1}},
        {"stackrestore", {&D::op_stack, 1, 1}},
        {"shfl", {&D::op_shfl}},
        {"vote", {&D::op_vote}},
        {"match", {&D::op_match, 3, 3}},
        {"redux", {&D::op_redux}},
        {"elect", {&D::op_elect}},
        {"activemask", {&D::op_activemask, 1, 1}},
        {"mma", {&D::op_mma, 4, 4}},
        {"wmma", {&D::op_wmma}},
        {"ldmatrix", {&D::op_matrix_copy}},
        {"stmatrix", {&D::op_matrix_copy}},
        {"movmatrix", {&D::op_movmatrix, 2, 2}},
        {"tex", {&D::op_tex}},
        {"tld4", {&D::op_tex}},
        {"suld", {&D::op_surface}},
        {"sust", {&D::op_surface}},
        {"txq", {&D::op_query}},
        {"suq", {&D::op_query}},
    };
    return *table;
}

void Decoder::refuse(std::string_view text) {
    if (instruction_bad_) {
        return;
    }
    instruction_bad_ = true;
    Refusal refusal;
    refusal.function = function_->name;
    refusal.spelling = instruction_->spelling;
    const ptx::Module& module = program_.modules[module_index_];
    refusal.text = ptx::error_at(module.name, instruction_->where, "ptx.unsupported",
                                 "'" + std::string(instruction_->spelling) + "' in '" +
                                     std::string(function_->name) + "': " + std::string(text))
                       .text;
    if (code_.refusal.empty()) {
        code_.refusal = refusal.text;
    }
    program_.refusals.push_back(std::move(refusal));
}

void Decoder::malformed(ptx::Position where, std::string_view text) {
    if (!instruction_bad_ && !error_) {
        error_ = ptx::error_at(program_.modules[module_index_].name, where, "ptx.operand", text);
    }
    instruction_bad_ = true;
}

Inst& Decoder::emit_unguarded(Handler handler, const Slots& slots) {
    if (handler == nullptr) {
        refuse("this combination of type and modifiers is not supported by the soft GPU");
        handler = exec::nothing();
    }
    Inst& inst = code_.code.emplace_back();
    inst.fn = handler;
    inst.dst = slots.dst;
    inst.a = slots.a;
    inst.b = slots.b;
    inst.c = slots.c;
    inst.d = slots.d;
    inst.line = instruction_ == nullptr ? 0 : instruction_->where.line;
    inst.column = instruction_ == nullptr ? 0 : instruction_->where.column;
    return inst;
}

Inst& Decoder::emit(Handler handler, const Slots& slots) {
    Inst& inst = emit_unguarded(handler, slots);
    if (emit_guard_ != ptx::kNoGuard) {
        inst.inner = inst.fn;
        inst.fn = handlers().guarded[emit_guard_negated_ ? 1 : 0];
        inst.guard = emit_guard_;
    }
    return inst;
}

void Decoder::flush_widening() {
    for (const PendingWiden& item : widening_) {
        const bool extend =
            item.elem == Elem::kS8 || item.elem == Elem::kS16 || item.elem == Elem::kS32;
        emit(handlers().convert[index_of(extend ? Elem::kS64 : Elem::kU64)]
                               [index_of(extend ? Elem::kS32 : Elem::kU32)],
             {.dst = item.to, .a = item.from});
    }
    widening_.clear();
}

/// Instructions that may stop the warp, or that other lanes may wait for, cannot hide behind a
/// guard: they are branched around, so that lanes without them wait at the reconvergence point.
bool Decoder::needs_branch_around(const ptx::Instruction&) const {
    const std::string_view name = modifiers_.opcode();
    return name == "ret" || name == "exit" || name == "trap" || name == "brkpt" || name == "call" ||
           name == "bar" || name == "barrier" || name == "shfl" || name == "vote" ||
           name == "match" || name == "redux" || name == "elect" || name == "brx" ||
           name == "mbarrier" || name == "nanosleep" || name == "mma" || name == "wmma" ||
           name == "ldmatrix" || name == "stmatrix" || name == "movmatrix";
}

void Decoder::decode_instruction(const ptx::Instruction& instruction) {
    instruction_ = &instruction;
    instruction_bad_ = false;
    temporaries_used_ = 0;
    emit_guard_ = ptx::kNoGuard;
    if (code_.constants_begin + code_.constants.size() > kFileBytesMax) {
        malformed(instruction.where, "the kernel has too many constants");
        return;
    }
    modifiers_.parse(instruction.spelling);
    const auto found = methods().find(modifiers_.opcode());
    if (found == methods().end()) {
        refuse("the soft GPU does not implement this instruction");
        return;
    }
    std::size_t around = ~std::size_t{0};
    if (instruction.guard != ptx::kNoGuard && modifiers_.opcode() != "bra") {
        const std::uint32_t guard = register_slot(instruction.guard);
        if (needs_branch_around(instruction)) {
            around = code_.code.size();
            emit_unguarded(exec::branch_if(!instruction.guard_negated)).guard = guard;
        } else {
            emit_guard_ = guard;
            emit_guard_negated_ = instruction.guard_negated;
        }
    }
    const Operands operands{function_->operands.data() + instruction.first_operand,
                            instruction.operand_count};
    const Method& method = found->second;
    if (expect_count(operands, method.operands_min, method.operands_max)) {
        (this->*method.decode)(operands);
    }
    flush_widening();
    emit_guard_ = ptx::kNoGuard;
    if (!bad() && !modifiers_.empty()) {
        refuse("modifier '." + std::string(modifiers_.front()) +
               "' is not supported by the soft GPU here");
    }
    if (around != ~std::size_t{0}) {
        // Targets are pointers only when the code has stopped growing.
        fixups_.push_back({around, 0x80000000U | static_cast<std::uint32_t>(code_.code.size())});
    }
}

void Decoder::emit_prologue() {
    const std::size_t returns = function_->signature.returns.size();
    for (std::size_t i = returns; i < function_->formal_registers.size(); ++i) {
        const std::uint32_t reg = function_->formal_registers[i];
        if (reg == ptx::kNoGuard) {
            continue;
        }
        const Cell cell = width_of(register_type(reg)) == Width::k64 ? Cell::kB64 : Cell::kB32;
        Inst& inst = emit_unguarded(handlers().load[index_of(Access::kFrame)][index_of(cell)][0],
                                    {.dst = register_slot(reg)});
        inst.imm = state_->variable_offsets[i];
    }
}

void Decoder::decode_function(std::uint32_t code_function) {
    CodeFunction& made = code_.functions[code_function];
    const ProgramFunction& entry = program_.functions[made.program_function];
    current_ = code_function;
    function_ = entry.function;
    module_index_ = entry.module_index;
    state_ = &states_[code_function];
    instruction_ = nullptr;
    made.first_inst = static_cast<std::uint32_t>(code_.code.size());
    label_to_inst_.assign(function_->instructions.size() + 1, 0);
    const std::size_t first_fixup = fixups_.size();
    const std::size_t first_table = table_fixups_.size();
    emit_prologue();
    for (std::size_t i = 0; i < function_->instructions.size() && !error_; ++i) {
        label_to_inst_[i] = static_cast<std::uint32_t>(code_.code.size());
        decode_instruction(function_->instructions[i]);
    }
    label_to_inst_.back() = static_cast<std::uint32_t>(code_.code.size());
    modifiers_.parse("ret");
    instruction_bad_ = false;
    op_ret({});  // a body that runs off its end returns
    for (std::size_t i = first_fixup; i < fixups_.size(); ++i) {
        std::uint32_t& label = fixups_[i].label;
        label = (label & 0x80000000U) != 0 ? label & 0x7fffffffU : label_to_inst_[label];
    }
    for (std::size_t i = first_table; i < table_fixups_.size(); ++i) {
        for (std::uint32_t& label : table_fixups_[i].second) {
            label = label_to_inst_[label];
        }
    }
}

void Decoder::apply_fixups() {
    for (const Fixup& fixup : fixups_) {
        code_.code[fixup.inst].target = &code_.code[fixup.label];
    }
    for (auto& [table, labels] : table_fixups_) {
        for (const std::uint32_t label : labels) {
            table->targets.push_back(&code_.code[label]);
        }
    }
    for (const std::unique_ptr<CallSite>& site : code_.calls) {
        if (site->builtin == Builtin::kNone && site->callee != 0xffffffffU) {
            site->target = &code_.code[code_.functions[site->callee].first_inst];
        }
    }
    for (const auto& [inst, function] : alloca_insts_) {
        code_.code[inst].imm = code_.functions[function].frame_bytes;
    }
    code_.entry = code_.functions.back().first_inst;
}

void Decoder::finish_constants() {
    // Slots for what is still empty are aligned for vector loads; the file ends on a cache line.
    code_.file_bytes =
        code_.constants_begin + static_cast<std::uint32_t>((code_.constants.size() + 63) / 64 * 64);
    code_.constants.resize(code_.file_bytes - code_.constants_begin);
    code_.code_function_of = code_function_of_;
}

void Decoder::finish_kernel_info() {
    info_.static_shared_bytes = code_.static_shared_bytes;
    info_.local_bytes = code_.local_bytes;
    // A guess for occupancy: PTX registers are single-assignment, so many share a real one.
    const std::uint32_t bytes =
        code_.functions.back().region_end - code_.functions.back().region_begin;
    std::uint32_t registers = std::clamp(bytes / 128 / 3, 16U, 255U);
    const std::uint32_t cap = 65536 / std::max(32U, info_.max_threads_per_block) / 8 * 8;
    registers = std::min((registers + 7) / 8 * 8, std::clamp(cap, 32U, 255U));
    info_.registers = registers;
}

Result<void> Decoder::run() {
    GANTRY_TRY(collect_functions(program_.kernel_functions[kernel_index_]));
    for (std::uint32_t i = 0; i < code_.functions.size(); ++i) {
        decode_function(i);
        if (error_) {
            return *error_;
        }
    }
    apply_fixups();
    compute_local_bytes();  // frames may have grown while calls were decoded
    finish_constants();
    finish_kernel_info();
    return {};
}

Result<void> decode_kernel(LinkedProgram& program, std::uint32_t kernel_index) {
    return Decoder(program, kernel_index).run();
}

}  // namespace gantry::softgpu
