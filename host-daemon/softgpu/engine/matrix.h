// What mma, wmma, ldmatrix and their kin have in common between decoder and handlers.
#pragma once

#include <vector>

#include "host-daemon/softgpu/engine/inst.h"

namespace gantry::softgpu::exec {

enum class MatrixType : std::uint8_t {
    kF16,
    kBf16,
    kTf32,
    kF32,
    kF64,
    kE4m3,
    kE5m2,
    kS8,
    kU8,
    kS4,
    kU4,
    kS32,
};

inline constexpr std::uint32_t kLargestOperand = 1024;  ///< Elements of a, b, c or d.

/// Inst::table of mma, wmma.mma, wmma.load and wmma.store. Slots are offsets of 32-bit (f64: 64-
/// bit) registers.
struct MatrixSite {
    std::uint32_t m = 0;
    std::uint32_t n = 0;
    std::uint32_t k = 0;
    MatrixType a = MatrixType::kF16;
    MatrixType b = MatrixType::kF16;
    MatrixType c = MatrixType::kF32;
    MatrixType d = MatrixType::kF32;
    bool saturate = false;
    bool warp_layout = false;  ///< wmma: element e of a matrix is in lane e % 32.
    std::vector<std::uint32_t> d_slots;
    std::vector<std::uint32_t> a_slots;
    std::vector<std::uint32_t> b_slots;
    std::vector<std::uint32_t> c_slots;
    // wmma.load and .store: one matrix of rows x columns, in d_slots.
    std::uint32_t rows = 0;
    std::uint32_t columns = 0;
    bool column_major = false;
    std::uint32_t stride_slot = 0;
    Access access = Access::kFlat;
    std::int64_t offset = 0;
};

[[nodiscard]] std::uint32_t bits_of(MatrixType type);

/// Faults unless all lanes of the warp are here.
void require_whole_warp(Warp& warp, const Inst* inst);

// The product of matrices is HandlerTable::multiply_matrices; table: MatrixSite.
Handler load_fragment();   ///< table: MatrixSite; a: address slot
Handler store_fragment();  ///< likewise
/// a, imm: address; d: Access; aux: matrices (1, 2, 4); flags: 1 transposed; the registers are
/// dst, b, c, e.
Handler load_matrices();
Handler store_matrices();
Handler transpose_matrix();  ///< dst, a

}  // namespace gantry::softgpu::exec
