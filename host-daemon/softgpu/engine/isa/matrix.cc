// mma and wmma.mma. The whole warp works on one product: the operands are gathered from the lanes
// into plain arrays, row by row, multiplied there, and scattered again.
//
// mma's registers follow the layouts that PTX documents. Those of wmma are left to the
// implementation; here element e lies in lane e % 32, register position e / 32. Products of small
// floats are exact in f32 and are summed in f32 in the order of k: hardware promises no order.
//
// Either way a register of 32 lanes holds whole pieces of rows, so that gathering copies pieces,
// and only the conversion looks at elements.
#include "host-daemon/softgpu/engine/matrix.h"

#ifdef __FMA__
#include <immintrin.h>
#endif

#include "host-daemon/softgpu/engine/isa/fill.h"
#include "host-daemon/softgpu/engine/isa/half.h"
#include "host-daemon/softgpu/engine/numbers.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

using exec::MatrixSite;
using exec::MatrixType;

constexpr u32 kLargest = exec::kLargestOperand;
constexpr u32 kNarrow = 8;  // Columns of every mma product.
constexpr u32 kPiece = 4;   // Lanes that hold neighbouring words of one row (or column) in mma.
constexpr u32 kRowsPerRegister = 8;

/// What a float of 8 bits is worth, by its bits.
const float* small_float_table(const SmallFormat& format) {
    auto* made = new float[256];
    for (u32 i = 0; i < 256; ++i) {
        made[i] = static_cast<float>(double_from_small(i, format));
    }
    return made;
}

const float* table_of(MatrixType type) {
    static const float* const e4m3 = small_float_table(kE4m3);
    static const float* const e5m2 = small_float_table(kE5m2);
    return type == MatrixType::kE4m3 ? e4m3 : e5m2;
}

/// The elements of a register of wmma's layout: lane by lane, first every lane's lowest.
template <typename E>
GANTRY_INLINE void copy_lanes(const u32* reg, E* out) {
    constexpr u32 kPer = sizeof(u32) / sizeof(E);
    for (u32 part = 0; part < kPer; ++part) {
        GANTRY_LANES
        for (u32 lane = 0; lane < kLanes; ++lane) {
            out[part * kLanes + lane] = static_cast<E>(reg[lane] >> (8 * sizeof(E) * part));
        }
    }
}

/// Bytes of `count` elements in order of rows, from wmma's layout.
void gather_lanes(const Warp& warp, const std::vector<u32>& slots, u32 bits, u32 count, u8* out) {
    const u32 bytes = count * bits / 8;
    const u32 step = kLanes * (bits == 64 ? 8 : 4);
    for (u32 done = 0, reg = 0; done < bytes; done += step, ++reg) {
        const u32* from = warp.slot<u32>(slots[reg]);
        switch (bits) {
            case 8: copy_lanes(from, out + done); break;
            case 16: copy_lanes(from, reinterpret_cast<u16*>(out + done)); break;
            default: std::memcpy(out + done, from, step); break;
        }
    }
}

/// mma's A (row by row), or B (column by column: `halves` is 1). Word: a register of one lane.
template <typename Word>
void gather_pieces(const Warp& warp, const std::vector<u32>& slots, u32 halves, u32 words_per_row,
                   u8* out) {
    for (u32 reg = 0; reg < slots.size(); ++reg) {
        const Word* from = warp.slot<Word>(slots[reg]);
        Word* to = reinterpret_cast<Word*>(out) + reg % halves * kRowsPerRegister * words_per_row +
                   reg / halves * kPiece;
        for (u32 row = 0; row < kRowsPerRegister; ++row) {
            std::memcpy(to + row * words_per_row, from + row * kPiece, kPiece * sizeof(Word));
        }
    }
}

void gather_operand(const Warp& warp, const MatrixSite& site, bool is_a, u8* out) {
    const MatrixType type = is_a ? site.a : site.b;
    const std::vector<u32>& slots = is_a ? site.a_slots : site.b_slots;
    const u32 bits = exec::bits_of(type);
    if (site.warp_layout) {
        gather_lanes(warp, slots, bits, site.k * (is_a ? site.m : site.n), out);
    } else if (bits == 64) {
        gather_pieces<u64>(warp, slots, is_a ? site.m / kRowsPerRegister : 1, site.k, out);
    } else {
        gather_pieces<u32>(warp, slots, is_a ? site.m / kRowsPerRegister : 1, site.k * bits / 32,
                           out);
    }
}

/// mma's C: two neighbours of a row lie in two registers of one lane, or in the halves of one.
void gather_sums(const Warp& warp, const MatrixSite& site, u8* out) {
    const u32 bits = exec::bits_of(site.c);
    const u32 count = site.m * site.n;
    if (site.warp_layout) {
        gather_lanes(warp, site.c_slots, bits, count, out);
        return;
    }
    const auto interleave = [&](auto* to) {
        using Word = std::remove_reference_t<decltype(*to)>;
        for (u32 pair = 0; pair * 2 < site.c_slots.size(); ++pair) {
            const Word* even = warp.slot<Word>(site.c_slots[pair * 2]);
            const Word* odd = warp.slot<Word>(site.c_slots[pair * 2 + 1]);
            for (u32 lane = 0; lane < kLanes; ++lane) {
                to[pair * 2 * kLanes + 2 * lane] = even[lane];
                to[pair * 2 * kLanes + 2 * lane + 1] = odd[lane];
            }
        }
    };
    if (bits == 64) {
        interleave(reinterpret_cast<u64*>(out));
    } else if (bits == 32) {
        interleave(reinterpret_cast<u32*>(out));
    } else {
        for (u32 reg = 0; reg < site.c_slots.size(); ++reg) {
            std::memcpy(out + reg * kLanes * 4, warp.slot<u32>(site.c_slots[reg]), kLanes * 4);
        }
    }
}

/// D lies where C lay.
void scatter_sums(Warp& warp, const MatrixSite& site, const u8* bytes) {
    const u32 bits = exec::bits_of(site.d);
    const u32 count = site.m * site.n;
    const u32 step = kLanes * (bits == 64 ? 8 : 4);
    const auto interleave = [&](const auto* from) {
        using Word = std::remove_const_t<std::remove_reference_t<decltype(*from)>>;
        for (u32 pair = 0; pair * 2 < site.d_slots.size(); ++pair) {
            Word* even = warp.slot<Word>(site.d_slots[pair * 2]);
            Word* odd = warp.slot<Word>(site.d_slots[pair * 2 + 1]);
            for (u32 lane = 0; lane < kLanes; ++lane) {
                even[lane] = from[pair * 2 * kLanes + 2 * lane];
                odd[lane] = from[pair * 2 * kLanes + 2 * lane + 1];
            }
        }
    };
    if (!site.warp_layout && bits == 64) {
        interleave(reinterpret_cast<const u64*>(bytes));
    } else if (!site.warp_layout && bits == 32) {
        interleave(reinterpret_cast<const u32*>(bytes));
    } else {
        for (u32 done = 0, reg = 0; done < count * bits / 8; done += step, ++reg) {
            u32* to = warp.slot<u32>(site.d_slots[reg]);
            if (site.warp_layout && bits == 16) {
                const u16* from = reinterpret_cast<const u16*>(bytes + done);
                GANTRY_LANES
                for (u32 lane = 0; lane < kLanes; ++lane) {
                    to[lane] = from[lane] | (static_cast<u32>(from[kLanes + lane]) << 16);
                }
            } else {
                std::memcpy(to, bytes + done, step);
            }
        }
    }
}

template <typename E, typename T, typename Body>
GANTRY_INLINE void convert(const u8* raw, u32 count, T* out, Body body) {
    const E* in = reinterpret_cast<const E*>(raw);
    GANTRY_LANES
    for (u32 i = 0; i < count; ++i) {
        out[i] = body(in[i]);
    }
}

void to_numbers(MatrixType type, const u8* raw, u32 count, float* out) {
    switch (type) {
        case MatrixType::kF16:
            convert<u16>(raw, count, out, [](u16 bits) { return to_float(half_t{bits}); });
            break;
        case MatrixType::kBf16:
            convert<u16>(raw, count, out, [](u16 bits) { return to_float(bf16_t{bits}); });
            break;
        case MatrixType::kTf32:  // the hardware reads the upper 19 bits
            convert<u32>(raw, count, out,
                         [](u32 bits) { return bits_as<float>(bits & 0xffffe000U); });
            break;
        case MatrixType::kE4m3:
        case MatrixType::kE5m2: {
            const float* table = table_of(type);
            convert<u8>(raw, count, out, [table](u8 bits) { return table[bits]; });
            break;
        }
        default: std::memcpy(out, raw, count * sizeof(float)); break;
    }
}

void to_numbers(MatrixType, const u8* raw, u32 count, double* out) {
    std::memcpy(out, raw, count * sizeof(double));
}

/// Integers wrap round, as the hardware's do.
void to_numbers(MatrixType type, const u8* raw, u32 count, u32* out) {
    const auto nibble = [raw](u32 i) {
        return (static_cast<u32>(raw[i / 2]) >> (i % 2 * 4)) & 0xfU;
    };
    switch (type) {
        case MatrixType::kS8:
            convert<s8>(raw, count, out, [](s8 value) { return static_cast<u32>(s32{value}); });
            break;
        case MatrixType::kU8:
            convert<u8>(raw, count, out, [](u8 value) { return u32{value}; });
            break;
        case MatrixType::kS4:
            for (u32 i = 0; i < count; ++i) {
                out[i] = static_cast<u32>(static_cast<s32>(nibble(i) << 28) >> 28);
            }
            break;
        case MatrixType::kU4:
            for (u32 i = 0; i < count; ++i) {
                out[i] = nibble(i);
            }
            break;
        default: std::memcpy(out, raw, count * sizeof(u32)); break;
    }
}

/// As many bytes as the level's registers have.
#if defined(__AVX512F__)
constexpr u32 kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr u32 kVectorBytes = 32;
#else
constexpr u32 kVectorBytes = 16;
#endif

template <typename T>
struct VectorOf {
    static constexpr u32 kCount =
        kVectorBytes / sizeof(T) < kNarrow ? kVectorBytes / sizeof(T) : kNarrow;
    typedef T type __attribute__((vector_size(kCount * sizeof(T))));
};

template <typename V, typename T>
GANTRY_INLINE V multiply_add(T left, V right, V sum) {
    if constexpr (std::is_same_v<T, double>) {
#if defined(__AVX512F__)
        return _mm512_fmadd_pd(_mm512_set1_pd(left), right, sum);
#elif defined(__FMA__)
        return _mm256_fmadd_pd(_mm256_set1_pd(left), right, sum);
#else
        for (u32 i = 0; i < VectorOf<T>::kCount; ++i) {
            sum[i] = __builtin_fma(left, right[i], sum[i]);
        }
        return sum;
#endif
    } else {
        return sum + right * left;
    }
}

/// c += a * b for kRows rows and 8 columns: as many sums at a time as hide the adder's latency.
template <u32 kRows, typename T>
GANTRY_INLINE void multiply_block(u32 n, u32 k, const T* a, const T* b, T* c) {
    using Vector = typename VectorOf<T>::type;
    constexpr u32 kCount = VectorOf<T>::kCount;
    constexpr u32 kVectors = kNarrow / kCount;
    Vector sums[kRows][kVectors];
#pragma GCC unroll 8
    for (u32 row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
        for (u32 part = 0; part < kVectors; ++part) {
            std::memcpy(&sums[row][part], c + row * n + part * kCount, sizeof(Vector));
        }
    }
    for (u32 step = 0; step < k; ++step) {
        Vector right[kVectors];
        std::memcpy(right, b + step * n, sizeof right);
#pragma GCC unroll 8
        for (u32 row = 0; row < kRows; ++row) {
            const T left = a[row * k + step];
#pragma GCC unroll 4
            for (u32 part = 0; part < kVectors; ++part) {
                sums[row][part] = multiply_add(left, right[part], sums[row][part]);
            }
        }
    }
#pragma GCC unroll 8
    for (u32 row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
        for (u32 part = 0; part < kVectors; ++part) {
            std::memcpy(c + row * n + part * kCount, &sums[row][part], sizeof(Vector));
        }
    }
}

template <typename T>
void multiply(u32 m, u32 n, u32 k, const T* a, const T* b, T* c) {
    constexpr u32 kRows = VectorOf<T>::kCount == kNarrow ? 8 : 4;
    for (u32 row = 0; row < m; row += kRows) {
        for (u32 column = 0; column < n; column += kNarrow) {
            multiply_block<kRows>(n, k, a + row * k, b + column, c + row * n + column);
        }
    }
}

template <typename T>
void transpose(const T* in, u32 rows, u32 columns, T* out) {
    for (u32 row = 0; row < rows; ++row) {
        for (u32 column = 0; column < columns; ++column) {
            out[column * rows + row] = in[row * columns + column];
        }
    }
}

template <typename T>
void finish(const MatrixSite& site, const T* sums, u32 count, u8* raw) {
    if constexpr (std::is_same_v<T, float>) {
        if (site.d == MatrixType::kF16) {
            u16* out = reinterpret_cast<u16*>(raw);
            GANTRY_LANES
            for (u32 i = 0; i < count; ++i) {
                out[i] = to_half(sums[i]).bits;
            }
        } else {
            u32* out = reinterpret_cast<u32*>(raw);
            GANTRY_LANES
            for (u32 i = 0; i < count; ++i) {
                const u32 bits = bits_as<u32>(sums[i]);
                out[i] = (bits & 0x7fffffffU) > 0x7f800000U ? 0x7fffffffU : bits;
            }
        }
    } else {
        std::memcpy(raw, sums, count * sizeof(T));
    }
}

/// .satfinite: the products of one instruction fit in 32 bits; their sum with c may not.
void multiply_saturated(const MatrixSite& site, const u32* a, const u32* b, u32* c) {
    alignas(64) u32 products[kLargest];
    const u32 count = site.m * site.n;
    std::memset(products, 0, count * sizeof(u32));
    multiply(site.m, site.n, site.k, a, b, products);
    for (u32 i = 0; i < count; ++i) {
        const s64 sum = s64{static_cast<s32>(c[i])} + static_cast<s32>(products[i]);
        const s64 clamped = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
        c[i] = static_cast<u32>(clamped);
    }
}

template <typename T>
void multiply_as(Warp& warp, const MatrixSite& site) {
    alignas(64) u8 raw[kLargest * sizeof(T)];
    alignas(64) T a[kLargest];
    alignas(64) T b[kLargest];
    alignas(64) T c[kLargest];
    const u32 count = site.m * site.n;
    gather_operand(warp, site, true, raw);
    to_numbers(site.a, raw, site.m * site.k, a);
    gather_operand(warp, site, false, raw);
    if (site.warp_layout) {
        to_numbers(site.b, raw, site.k * site.n, b);
    } else {
        to_numbers(site.b, raw, site.k * site.n, c);
        transpose(c, site.n, site.k, b);
    }
    gather_sums(warp, site, raw);
    to_numbers(site.c, raw, count, c);
    if constexpr (std::is_same_v<T, u32>) {
        site.saturate ? multiply_saturated(site, a, b, c)
                      : multiply(site.m, site.n, site.k, a, b, c);
    } else {
        multiply(site.m, site.n, site.k, a, b, c);
    }
    finish(site, c, count, raw);
    scatter_sums(warp, site, raw);
}

const Inst* do_multiply(Warp& warp, const Inst* inst) {
    const auto& site = *static_cast<const MatrixSite*>(inst->table);
    exec::require_whole_warp(warp, inst);
    warp.thread->set_fp_mode(kFpNearest);
    if (site.a >= MatrixType::kS8) {
        multiply_as<u32>(warp, site);
    } else if (site.a == MatrixType::kF64) {
        multiply_as<double>(warp, site);
    } else {
        multiply_as<float>(warp, site);
    }
    return inst + 1;
}

}  // namespace

void fill_matrix(HandlerTable& table) { table.multiply_matrices = &do_multiply; }

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
