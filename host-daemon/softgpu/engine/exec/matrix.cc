// Matrix instructions. The whole warp works on one product: the operands are gathered from the
// lanes into plain arrays, multiplied, and scattered again.
//
// mma's registers follow the layouts that PTX documents. Those of wmma are left to the
// implementation; here element e lies in lane e % 32, register position e / 32. Products of small
// floats are exact in f32 and are summed in f32 in the order of k: hardware promises no order.
#include "host-daemon/softgpu/engine/exec/matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "host-daemon/softgpu/engine/exec/addresses.h"
#include "host-daemon/softgpu/engine/numbers.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s32 = std::int32_t;

std::uint32_t bits_of(MatrixType type) {
    switch (type) {
        case MatrixType::kF64: return 64;
        case MatrixType::kF16: case MatrixType::kBf16: return 16;
        case MatrixType::kE4m3: case MatrixType::kE5m2: case MatrixType::kS8:
        case MatrixType::kU8: return 8;
        case MatrixType::kS4: case MatrixType::kU4: return 4;
        default: return 32;
    }
}

namespace {

constexpr u32 kLargest = 32 * 64;  // elements of the largest operand of any supported shape

const float* half_table() {
    static const float* const table = [] {
        auto* made = new float[65536];
        for (u32 i = 0; i < 65536; ++i) {
            made[i] = float_from_half(static_cast<u16>(i));
        }
        return made;
    }();
    return table;
}

bool is_integer(MatrixType type) { return type >= MatrixType::kS8; }

double number(u64 bits, MatrixType type) {
    switch (type) {
        case MatrixType::kF16: return static_cast<double>(half_table()[bits & 0xffffU]);
        case MatrixType::kBf16: return static_cast<double>(float_from_bf16(static_cast<u16>(bits)));
        case MatrixType::kTf32:  // the hardware reads the upper 19 bits
            return static_cast<double>(std::bit_cast<float>(static_cast<u32>(bits) & 0xffffe000U));
        case MatrixType::kF32:
            return static_cast<double>(std::bit_cast<float>(static_cast<u32>(bits)));
        case MatrixType::kF64: return std::bit_cast<double>(bits);
        case MatrixType::kE4m3: return double_from_small(static_cast<u32>(bits), kE4m3);
        case MatrixType::kE5m2: return double_from_small(static_cast<u32>(bits), kE5m2);
        case MatrixType::kS8: return static_cast<std::int8_t>(bits);
        case MatrixType::kU8: return static_cast<std::uint8_t>(bits);
        case MatrixType::kS4: return static_cast<s32>(static_cast<u32>(bits) << 28) >> 28;
        case MatrixType::kU4: return static_cast<double>(bits & 0xfU);
        case MatrixType::kS32: return static_cast<s32>(bits);
    }
    return 0;
}

struct Place {
    u32 lane;
    u32 slot;   ///< Index into the operand's registers.
    u32 shift;  ///< In bits.
};

enum class Role : std::uint8_t { kA, kB, kC };

/// Where element (row, column) of an operand lies.
Place place_of(const MatrixSite& site, Role role, MatrixType type, u32 row, u32 column) {
    const u32 bits = bits_of(type);
    const u32 per = bits >= 32 ? 1 : 32 / bits;
    if (site.warp_layout) {
        const u32 columns = role == Role::kA ? site.k : site.n;
        const u32 element = row * columns + column;
        const u32 index = element / 32;
        return {element % 32, index / per, index % per * bits};
    }
    if (role == Role::kA) {
        const u32 group = column / per;  // register-sized pieces along k
        const u32 half = row / 8;
        const u32 halves = site.m / 8;
        return {row % 8 * 4 + group % 4, group / 4 * halves + half, column % per * bits};
    }
    if (role == Role::kB) {
        const u32 group = row / per;
        return {column * 4 + group % 4, group / 4, row % per * bits};
    }
    const u32 pair = row / 8;
    const u32 element = pair * 2 + column % 2;
    return {row % 8 * 4 + column / 2, element / per, element % per * bits};
}

u64 fetch(const Warp& warp, const std::vector<u32>& slots, const Place& place, u32 bits) {
    if (bits == 64) {
        return warp.slot<u64>(slots[place.slot])[place.lane];
    }
    const u32 word = warp.slot<u32>(slots[place.slot])[place.lane];
    return bits == 32 ? word : (word >> place.shift) & ((1U << bits) - 1);
}

void put(Warp& warp, const std::vector<u32>& slots, const Place& place, u32 bits, u64 value) {
    if (bits == 64) {
        warp.slot<u64>(slots[place.slot])[place.lane] = value;
        return;
    }
    u32& word = warp.slot<u32>(slots[place.slot])[place.lane];
    const u32 field = bits == 32 ? ~0U : ((1U << bits) - 1) << place.shift;
    word = (word & ~field) | ((static_cast<u32>(value) << place.shift) & field);
}

template <typename T>
void gather(const Warp& warp, const MatrixSite& site, Role role, MatrixType type,
            const std::vector<u32>& slots, u32 rows, u32 columns, T* out) {
    const u32 bits = bits_of(type);
    for (u32 row = 0; row < rows; ++row) {
        for (u32 column = 0; column < columns; ++column) {
            const u64 raw = fetch(warp, slots, place_of(site, role, type, row, column), bits);
            out[row * columns + column] = static_cast<T>(number(raw, type));
        }
    }
}

u64 result_bits(double value, MatrixType type) {
    switch (type) {
        case MatrixType::kF16: return half_from_double(value);
        case MatrixType::kF64: return std::bit_cast<u64>(value);
        default: {
            const float single = static_cast<float>(value);
            return single != single ? 0x7fffffffU : std::bit_cast<u32>(single);
        }
    }
}

template <typename T>
void multiply(u32 m, u32 n, u32 k, const T* a, const T* b, T* c) {
    for (u32 row = 0; row < m; ++row) {
        for (u32 step = 0; step < k; ++step) {
            const T left = a[row * k + step];
            const T* right = b + step * n;
            T* out = c + row * n;
            for (u32 column = 0; column < n; ++column) {
                if constexpr (std::is_same_v<T, double>) {
                    out[column] = std::fma(left, right[column], out[column]);
                } else {
                    out[column] += left * right[column];
                }
            }
        }
    }
}

template <typename T>
void multiply_as(Warp& warp, const MatrixSite& site) {
    alignas(64) T a[kLargest];
    alignas(64) T b[kLargest];
    alignas(64) T c[kLargest];
    gather(warp, site, Role::kA, site.a, site.a_slots, site.m, site.k, a);
    gather(warp, site, Role::kB, site.b, site.b_slots, site.k, site.n, b);
    gather(warp, site, Role::kC, site.c, site.c_slots, site.m, site.n, c);
    multiply(site.m, site.n, site.k, a, b, c);
    const u32 bits = bits_of(site.d);
    for (u32 row = 0; row < site.m; ++row) {
        for (u32 column = 0; column < site.n; ++column) {
            u64 value = 0;
            if constexpr (std::is_integral_v<T>) {
                const T sum = c[row * site.n + column];
                value = static_cast<u32>(site.saturate ? std::clamp<T>(sum, INT32_MIN, INT32_MAX)
                                                       : sum);
            } else {
                value = result_bits(static_cast<double>(c[row * site.n + column]), site.d);
            }
            put(warp, site.d_slots, place_of(site, Role::kC, site.d, row, column), bits, value);
        }
    }
}

void require_full(Warp& warp, const Inst* inst) {
    if ((warp.mask | warp.dead) != kAllLanes) {
        raise_fault(warp, inst, LaunchError::kIllegalInstruction,
                    static_cast<u32>(__builtin_ctz(warp.mask)), warp.mask,
                    "a matrix instruction needs all lanes of the warp");
    }
}

const Inst* do_multiply(Warp& warp, const Inst* inst) {
    const auto& site = *static_cast<const MatrixSite*>(inst->table);
    require_full(warp, inst);
    warp.thread->set_fp_mode(kFpNearest);
    if (is_integer(site.a)) {
        multiply_as<std::int64_t>(warp, site);
    } else if (site.a == MatrixType::kF64) {
        multiply_as<double>(warp, site);
    } else {
        multiply_as<float>(warp, site);
    }
    return inst + 1;
}

/// Address of element (row, column) for wmma.load and .store.
u64 element_address(Warp& warp, const Inst* inst, const MatrixSite& site, u32 lane, u32 row,
                    u32 column, u32 bytes) {
    const u64 stride = warp.slot<u32>(site.stride_slot)[lane];
    const u64 index = site.column_major ? column * stride + row : row * stride + column;
    return lane_address(warp, inst, site.access, inst->a,
                        site.offset + static_cast<std::int64_t>(index * bytes), lane, bytes);
}

const Inst* do_load_fragment(Warp& warp, const Inst* inst) {
    const auto& site = *static_cast<const MatrixSite*>(inst->table);
    require_full(warp, inst);
    warp.thread->inst = inst;
    const u32 bits = bits_of(site.d);
    const u32 lane = static_cast<u32>(__builtin_ctz(warp.mask));
    const u32 per = bits >= 32 ? 1 : 32 / bits;
    for (u32 row = 0; row < site.rows; ++row) {
        for (u32 column = 0; column < site.columns; ++column) {
            const u64 at = element_address(warp, inst, site, lane, row, column, bits / 8);
            u64 value = 0;
            std::memcpy(&value, reinterpret_cast<const void*>(at), bits / 8);
            const u32 element = row * site.columns + column;
            const u32 index = element / 32;
            put(warp, site.d_slots, {element % 32, index / per, index % per * bits}, bits, value);
        }
    }
    return inst + 1;
}

const Inst* do_store_fragment(Warp& warp, const Inst* inst) {
    const auto& site = *static_cast<const MatrixSite*>(inst->table);
    require_full(warp, inst);
    warp.thread->inst = inst;
    const u32 bits = bits_of(site.d);
    const u32 lane = static_cast<u32>(__builtin_ctz(warp.mask));
    const u32 per = bits >= 32 ? 1 : 32 / bits;
    for (u32 row = 0; row < site.rows; ++row) {
        for (u32 column = 0; column < site.columns; ++column) {
            const u64 at = element_address(warp, inst, site, lane, row, column, bits / 8);
            const u32 element = row * site.columns + column;
            const u32 index = element / 32;
            const u64 value = fetch(warp, site.d_slots,
                                    {element % 32, index / per, index % per * bits}, bits);
            std::memcpy(reinterpret_cast<void*>(at), &value, bits / 8);
        }
    }
    return inst + 1;
}

u32 matrix_register(const Inst* inst, u32 index) {
    return index == 0 ? inst->dst : index == 1 ? inst->b : index == 2 ? inst->c : inst->e;
}

/// Lane l holds two elements of its row (or column, when transposed): see PTX, ldmatrix.
void matrix_elements(u32 lane, bool transposed, u32 element, u32& row, u32& column) {
    row = lane / 4;
    column = lane % 4 * 2 + element;
    if (transposed) {
        std::swap(row, column);
    }
}

template <bool Store>
const Inst* do_matrices(Warp& warp, const Inst* inst) {
    require_full(warp, inst);
    warp.thread->inst = inst;
    const auto access = static_cast<Access>(inst->d);
    const bool transposed = (inst->flags & 1U) != 0;
    for (u32 matrix = 0; matrix < inst->aux; ++matrix) {
        u16 rows[8][8];
        u64 at[8];
        for (u32 row = 0; row < 8; ++row) {
            at[row] = lane_address(warp, inst, access, inst->a, inst->imm, matrix * 8 + row, 16);
            if (!Store) {
                std::memcpy(rows[row], reinterpret_cast<const void*>(at[row]), 16);
            }
        }
        u32* reg = warp.slot<u32>(matrix_register(inst, matrix));
        for (u32 lane = 0; lane < kLanes; ++lane) {
            u32 word = Store ? reg[lane] : 0U;
            for (u32 element = 0; element < 2; ++element) {
                u32 row = 0;
                u32 column = 0;
                matrix_elements(lane, transposed, element, row, column);
                if (Store) {
                    rows[row][column] = static_cast<u16>(word >> (16 * element));
                } else {
                    word |= static_cast<u32>(rows[row][column]) << (16 * element);
                }
            }
            if (!Store) {
                reg[lane] = word;
            }
        }
        for (u32 row = 0; Store && row < 8; ++row) {
            std::memcpy(reinterpret_cast<void*>(at[row]), rows[row], 16);
        }
    }
    return inst + 1;
}

const Inst* do_transpose(Warp& warp, const Inst* inst) {
    require_full(warp, inst);
    const u32* in = warp.slot<u32>(inst->a);
    u16 rows[8][8];
    for (u32 lane = 0; lane < kLanes; ++lane) {
        for (u32 element = 0; element < 2; ++element) {
            rows[lane / 4][lane % 4 * 2 + element] = static_cast<u16>(in[lane] >> (16 * element));
        }
    }
    u32* out = warp.slot<u32>(inst->dst);
    for (u32 lane = 0; lane < kLanes; ++lane) {
        out[lane] = rows[lane % 4 * 2][lane / 4] |
                    (static_cast<u32>(rows[lane % 4 * 2 + 1][lane / 4]) << 16);
    }
    return inst + 1;
}

}  // namespace

Handler multiply_matrices() { return &do_multiply; }
Handler load_fragment() { return &do_load_fragment; }
Handler store_fragment() { return &do_store_fragment; }
Handler load_matrices() { return &do_matrices<false>; }
Handler store_matrices() { return &do_matrices<true>; }
Handler transpose_matrix() { return &do_transpose; }

}  // namespace gantry::softgpu::exec
