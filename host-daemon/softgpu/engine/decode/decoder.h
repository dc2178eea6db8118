// Turns the parsed instructions of one kernel and its callees into Insts.
//
// One Decoder per kernel, used by one thread. Every base opcode has a member function; it takes
// the modifiers it knows from the list, and whatever is left over makes the instruction refused,
// so nothing is silently ignored.
#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "host-daemon/softgpu/engine/exec/handlers.h"
#include "host-daemon/softgpu/engine/exec/video.h"
#include "host-daemon/softgpu/engine/linked.h"

namespace gantry::softgpu {

/// The dot-separated parts behind the opcode.
class Modifiers {
public:
    void parse(std::string_view spelling);
    [[nodiscard]] std::string_view opcode() const { return opcode_; }
    /// Removes `name` if present.
    bool take(std::string_view name);
    /// Removes and returns the first of `names` that is present; empty if none.
    std::string_view take_any(std::initializer_list<std::string_view> names);
    /// Removes and returns the first modifier that is a type; kNone if none.
    ptx::Type take_type();
    /// Removes and returns the first modifier.
    std::string_view take_front();
    [[nodiscard]] bool empty() const { return count_ == 0; }
    [[nodiscard]] std::string_view front() const { return count_ == 0 ? "" : parts_[0]; }
    [[nodiscard]] std::size_t count() const { return count_; }
    [[nodiscard]] std::string_view at(std::size_t index) const { return parts_[index]; }

private:
    void remove(std::size_t index);
    std::string_view opcode_;
    std::array<std::string_view, 16> parts_;
    std::size_t count_ = 0;
};

enum class Width : std::uint8_t { kPredicate, k32, k64, k128 };

[[nodiscard]] Width width_of(ptx::Type type);
/// Element type of the arithmetic tables; bit types count as unsigned.
[[nodiscard]] Elem elem_of(ptx::Type type);
[[nodiscard]] bool is_float(ptx::Type type);
[[nodiscard]] bool is_signed_integer(ptx::Type type);
[[nodiscard]] bool is_integer_or_bits(ptx::Type type);

class Decoder {
public:
    Decoder(LinkedProgram& program, std::uint32_t kernel_index);
    [[nodiscard]] Result<void> run();

private:
    using Operands = std::span<const ptx::Operand>;
    /// How an instruction is decoded; what takes several numbers of operands checks them itself.
    struct Method {
        void (Decoder::*decode)(Operands) = nullptr;
        std::size_t operands_min = 0;
        std::size_t operands_max = ~std::size_t{0};
    };
    struct Fixup {
        std::size_t inst = 0;
        std::uint32_t label = 0;
    };
    struct PendingWiden {
        std::uint32_t from = 0;
        std::uint32_t to = 0;
        Elem elem = Elem::kU32;
    };
    struct StagedResult {
        std::uint32_t slot = 0;
        std::uint32_t frame = 0;
        Cell cell = Cell::kB32;
    };
    /// Where things of the function being decoded lie.
    struct FunctionState {
        std::vector<std::uint32_t> register_slots;    ///< Per register; ~0: never used.
        std::vector<std::uint32_t> variable_offsets;  ///< .local and .param: in the frame.
        std::uint32_t frame_bytes = 0;
    };

    static const std::unordered_map<std::string_view, Method>& methods();

    // Layout (decode/layout.cc).
    Result<void> collect_functions(std::uint32_t program_function);
    void note_callees(std::uint32_t program_function, std::vector<std::uint32_t>& out,
                      bool& indirect) const;
    void visit(std::uint32_t program_function, std::vector<std::uint8_t>& state);
    /// Operands are named by 32-bit offsets in the file: it never gets near what these can say.
    static constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 30;
    /// False if the registers are too many.
    [[nodiscard]] bool lay_out_function(std::uint32_t code_function);
    void lay_out_shared();
    void use_shared(Symbol symbol);
    void compute_local_bytes();
    void mark_recursion();

    // Driving (decode/decoder.cc).
    void decode_function(std::uint32_t code_function);
    void decode_instruction(const ptx::Instruction& instruction);
    bool needs_branch_around(const ptx::Instruction& instruction) const;
    void apply_fixups();
    void finish_constants();
    void emit_prologue();
    void finish_kernel_info();

    // Problems. Both end the decoding of the current instruction.
    void refuse(std::string_view text);
    void malformed(ptx::Position where, std::string_view text);
    [[nodiscard]] bool bad() const { return instruction_bad_; }

    // Operands (decode/operands.cc).
    [[nodiscard]] bool expect_count(Operands operands, std::size_t least, std::size_t most);
    std::uint32_t source(const ptx::Operand& operand, ptx::Type type);
    std::uint32_t source_predicate(const ptx::Operand& operand, bool& negated);
    std::uint32_t destination(const ptx::Operand& operand, ptx::Type type);
    std::uint32_t destination_predicate(const ptx::Operand& operand);
    std::uint32_t register_slot(std::uint32_t index);
    [[nodiscard]] ptx::Type register_type(std::uint32_t index) const;
    std::uint32_t constant32(std::uint32_t value);
    std::uint32_t constant64(std::uint64_t value);
    std::uint32_t constant_predicate(bool value);
    std::uint32_t special(const ptx::Operand& operand, Width width);
    std::uint32_t address_constant(const ptx::Operand& operand, Width width);
    std::uint32_t symbol_constant(Symbol symbol, std::uint64_t addend, Width width,
                                  const ptx::Operand& operand);
    std::uint32_t temporary();
    [[nodiscard]] Operands children(const ptx::Operand& operand) const;
    [[nodiscard]] std::uint64_t immediate_bits(const ptx::Operand& operand, ptx::Type type);
    [[nodiscard]] bool immediate(const ptx::Operand& operand, std::uint64_t& out) const;
    Symbol symbol_of(const ptx::Operand& operand) const;

    // Emission. An instruction's result and operands are slots of the warp's frame.
    struct Slots {
        std::uint32_t dst = 0;
        std::uint32_t a = 0;
        std::uint32_t b = 0;
        std::uint32_t c = 0;
        std::uint32_t d = 0;
    };
    Inst& emit(Handler handler, const Slots& slots);
    Inst& emit(Handler handler) { return emit(handler, Slots{}); }
    Inst& emit_unguarded(Handler handler, const Slots& slots);
    Inst& emit_unguarded(Handler handler) { return emit_unguarded(handler, Slots{}); }
    void flush_widening();

    // Arithmetic (decode/arithmetic.cc).
    void binary_op(Operands operands, Binary op, ptx::Type type, ptx::Type result);
    void unary_op(Operands operands, Unary op, ptx::Type type, ptx::Type result);
    void ternary_op(Operands operands, Ternary op, ptx::Type type, ptx::Type third,
                    ptx::Type result);
    std::uint8_t take_fp_mode(bool flush_allowed = true);
    void op_add_or_sub(Operands operands);
    void op_mul(Operands operands);
    void op_mad(Operands operands);
    void op_fma(Operands operands);
    void op_mul24(Operands operands);
    void op_mad24(Operands operands);
    void op_div(Operands operands);
    void op_rem(Operands operands);
    void op_min_or_max(Operands operands);
    void op_abs(Operands operands);
    void op_neg(Operands operands);
    void abs_or_neg(Operands operands, Unary op);
    void op_sad(Operands operands);
    void op_carry(Operands operands);
    void op_approximate(Operands operands);
    void op_sqrt(Operands operands);
    void op_rcp(Operands operands);
    void op_rsqrt(Operands operands);
    void op_copysign(Operands operands);
    void op_testp(Operands operands);

    // Logic and bits (decode/bits.cc).
    void op_logic(Operands operands);
    void op_shift(Operands operands);
    void op_not(Operands operands);
    void op_cnot(Operands operands);
    void op_count_bits(Operands operands);
    void op_brev(Operands operands);
    void op_bfind(Operands operands);
    void op_bfe(Operands operands);
    void op_bfi(Operands operands);
    void op_bmsk(Operands operands);
    void op_szext(Operands operands);
    void op_shf(Operands operands);
    void op_lop3(Operands operands);
    void op_prmt(Operands operands);
    void op_fns(Operands operands);
    void op_dp4a(Operands operands);
    void op_dp2a(Operands operands);
    void op_video(Operands operands);
    /// add, min and max of .u16x2 and .s16x2; false where the types are others.
    bool pair_of_halves(Operands operands, exec::VideoOp op);

    // Compare, select, move, convert (decode/moves.cc, decode/compare.cc).
    void op_setp(Operands operands);
    void op_set(Operands operands);
    void op_selp(Operands operands);
    void op_slct(Operands operands);
    void op_mov(Operands operands);
    void mov_vector(Operands operands, ptx::Type type);
    void op_cvta(Operands operands);
    void op_isspacep(Operands operands);
    void op_cvt(Operands operands);
    void op_cvt_pack(Operands operands);
    void cvt_special(Operands operands, std::string_view rounding, bool saturate);

    // Memory (decode/memory.cc, decode/atomics.cc, decode/async.cc).
    struct Address {
        Access access = Access::kFlat;
        std::uint32_t slot = 0;
        std::int64_t offset = 0;
        bool kernel_parameter = false;
    };
    bool address(const ptx::Operand& operand, std::string_view space, Address& out,
                 std::uint32_t size);
    std::string_view take_space();
    void take_cache_hints();
    bool take_ordering();
    void op_ld(Operands operands);
    void op_st(Operands operands);
    void op_atomic(Operands operands);
    void op_fence(Operands operands);
    void op_nothing(Operands operands);
    void op_cp(Operands operands);
    void cp_bulk(Operands operands);
    void op_mbarrier(Operands operands);
    void op_mapa(Operands operands);
    void op_getctarank(Operands operands);

    // Control (decode/control.cc).
    void op_bra(Operands operands);
    void op_brx(Operands operands);
    void op_call(Operands operands);
    void call_arguments(const ptx::Operand* returns, const ptx::Operand* params, CallSite& site,
                        const ptx::Signature& signature, std::uint32_t callee_function);
    void op_ret(Operands operands);
    void op_exit(Operands operands);
    void op_trap(Operands operands);
    void op_bar(Operands operands);
    void op_barrier_cluster(Operands operands);
    void op_nanosleep(Operands operands);
    void op_alloca(Operands operands);
    void op_stack(Operands operands);
    void op_setmaxnreg(Operands operands);

    // Warp (decode/warp_ops.cc).
    void op_shfl(Operands operands);
    void op_vote(Operands operands);
    void op_match(Operands operands);
    void op_redux(Operands operands);
    void op_elect(Operands operands);
    void op_activemask(Operands operands);

    // Matrix, textures (decode/matrix.cc, decode/textures.cc).
    void op_mma(Operands operands);
    void op_wmma(Operands operands);
    void wmma_multiply(Operands operands);
    void wmma_memory(Operands operands, bool store);
    void matrix_slots(const ptx::Operand& operand, ptx::Type type, bool write,
                      std::vector<std::uint32_t>& out);
    void op_matrix_copy(Operands operands);
    void op_movmatrix(Operands operands);
    std::uint32_t texture_operand(const ptx::Operand& operand, exec::TextureSite& site,
                                  ptx::Type type);
    void op_surface(Operands operands);
    void op_tex(Operands operands);
    void op_query(Operands operands);

    LinkedProgram& program_;
    std::uint32_t kernel_index_;
    KernelInfo& info_;
    KernelCode& code_;
    std::vector<std::uint32_t> code_function_of_;  ///< Program function -> code function, or ~0.
    std::vector<FunctionState> states_;
    /// Shared variable -> offset.
    std::unordered_map<std::uint32_t, std::uint32_t> shared_offsets_;

    // The function and instruction being decoded.
    std::uint32_t current_ = 0;
    const ptx::Function* function_ = nullptr;
    std::uint32_t module_index_ = 0;
    FunctionState* state_ = nullptr;
    const ptx::Instruction* instruction_ = nullptr;
    Modifiers modifiers_;
    bool instruction_bad_ = false;
    std::uint32_t emit_guard_ = ptx::kNoGuard;  ///< Predicate slot to wrap emissions with.
    bool emit_guard_negated_ = false;
    std::uint32_t temporaries_used_ = 0;
    std::vector<PendingWiden> widening_;
    std::vector<StagedResult> staged_results_;
    std::vector<std::pair<std::size_t, std::uint32_t>> alloca_insts_;  ///< Inst, its function.
    std::vector<Fixup> fixups_;
    std::vector<std::pair<BranchTable*, std::vector<std::uint32_t>>> table_fixups_;
    std::vector<std::uint32_t> label_to_inst_;
    std::optional<Error> error_;

    // Constants.
    std::uint32_t temporaries_begin_ = 0;
    std::unordered_map<std::uint32_t, std::uint32_t> constants32_;
    std::unordered_map<std::uint64_t, std::uint32_t> constants64_;
    std::unordered_map<std::uint32_t, std::uint32_t> specials_;
};

}  // namespace gantry::softgpu
