// Moves of matrices between memory and registers; their products: isa/matrix.cc.
#include "host-daemon/softgpu/engine/matrix.h"

#include <cstring>

#include "host-daemon/softgpu/engine/exec/addresses.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

}  // namespace

std::uint32_t bits_of(MatrixType type) {
    switch (type) {
        case MatrixType::kF64: return 64;
        case MatrixType::kF16:
        case MatrixType::kBf16: return 16;
        case MatrixType::kE4m3:
        case MatrixType::kE5m2:
        case MatrixType::kS8:
        case MatrixType::kU8: return 8;
        case MatrixType::kS4:
        case MatrixType::kU4: return 4;
        default: return 32;
    }
}

void require_whole_warp(Warp& warp, const Inst* inst) {
    if ((warp.mask | warp.dead) != kAllLanes) {
        raise_fault(warp, inst, LaunchError::kIllegalInstruction,
                    static_cast<u32>(__builtin_ctz(warp.mask)), warp.mask,
                    "a matrix instruction needs all lanes of the warp");
    }
}

namespace {

/// The lines of a matrix in memory: rows, or columns if those lie together.
struct Lines {
    u32 count;
    u32 length;  ///< In elements.
};

Lines lines_of(const MatrixSite& site) {
    return site.column_major ? Lines{site.columns, site.rows} : Lines{site.rows, site.columns};
}

/// Address of a line for wmma.load and .store; its first and last elements are checked, and what
/// lies between.
u64 line_address(Warp& warp, const Inst* inst, const MatrixSite& site, Touch touch, u32 lane,
                 u32 line, u32 length, u32 bytes) {
    const u64 first = u64{line} * warp.slot<u32>(site.stride_slot)[lane] * bytes;
    const auto at = [&](u64 offset) {
        return lane_address(warp, inst, site.access, touch, inst->a,
                            site.offset + static_cast<std::int64_t>(offset), lane, bytes);
    };
    at(first + u64{length - 1} * bytes);
    if (site.access == Access::kFlat) {
        const u64 address = warp.slot<u64>(inst->a)[lane] + static_cast<u64>(site.offset) + first;
        return flat_address(warp, inst, touch, lane, address, u64{length} * bytes);
    }
    return at(first);
}

/// Registers hold element e, in order of rows, in lane e % 32, position e / 32.
template <typename E>
void to_registers(const Warp& warp, const MatrixSite& site, const E* elements) {
    constexpr u32 kPer = sizeof(E) < 4 ? 4 / sizeof(E) : 1;
    const u32 count = site.rows * site.columns;
    for (u32 done = 0, reg = 0; done < count; done += kLanes * kPer, ++reg) {
        if constexpr (kPer == 1) {
            std::memcpy(warp.slot<E>(site.d_slots[reg]), elements + done, kLanes * sizeof(E));
        } else {
            u32* to = warp.slot<u32>(site.d_slots[reg]);
            for (u32 lane = 0; lane < kLanes; ++lane) {
                u32 word = 0;
                for (u32 part = 0; part < kPer; ++part) {
                    word |= static_cast<u32>(elements[done + part * kLanes + lane])
                            << (8 * sizeof(E) * part);
                }
                to[lane] = word;
            }
        }
    }
}

template <typename E>
void from_registers(const Warp& warp, const MatrixSite& site, E* elements) {
    constexpr u32 kPer = sizeof(E) < 4 ? 4 / sizeof(E) : 1;
    const u32 count = site.rows * site.columns;
    for (u32 done = 0, reg = 0; done < count; done += kLanes * kPer, ++reg) {
        if constexpr (kPer == 1) {
            std::memcpy(elements + done, warp.slot<E>(site.d_slots[reg]), kLanes * sizeof(E));
        } else {
            const u32* from = warp.slot<u32>(site.d_slots[reg]);
            for (u32 part = 0; part < kPer; ++part) {
                for (u32 lane = 0; lane < kLanes; ++lane) {
                    elements[done + part * kLanes + lane] =
                        static_cast<E>(from[lane] >> (8 * sizeof(E) * part));
                }
            }
        }
    }
}

template <typename E>
const Inst* load_elements(Warp& warp, const Inst* inst, const MatrixSite& site) {
    E elements[kLargestOperand];
    E line[kLargestOperand];
    const u32 lane = static_cast<u32>(__builtin_ctz(warp.mask));
    const auto [count, length] = lines_of(site);
    for (u32 index = 0; index < count; ++index) {
        const u64 at = line_address(warp, inst, site, Touch::kRead, lane, index, length, sizeof(E));
        E* to = site.column_major ? line : elements + index * length;
        std::memcpy(to, reinterpret_cast<const void*>(at), length * sizeof(E));
        for (u32 row = 0; site.column_major && row < length; ++row) {
            elements[row * count + index] = line[row];
        }
    }
    to_registers(warp, site, elements);
    return inst + 1;
}

template <typename E>
const Inst* store_elements(Warp& warp, const Inst* inst, const MatrixSite& site) {
    E elements[kLargestOperand];
    E line[kLargestOperand];
    from_registers(warp, site, elements);
    const u32 lane = static_cast<u32>(__builtin_ctz(warp.mask));
    const auto [count, length] = lines_of(site);
    for (u32 index = 0; index < count; ++index) {
        const u64 at =
            line_address(warp, inst, site, Touch::kWrite, lane, index, length, sizeof(E));
        for (u32 row = 0; site.column_major && row < length; ++row) {
            line[row] = elements[row * count + index];
        }
        const E* from = site.column_major ? line : elements + index * length;
        std::memcpy(reinterpret_cast<void*>(at), from, length * sizeof(E));
    }
    return inst + 1;
}

template <bool Store, typename E>
const Inst* move_elements(Warp& warp, const Inst* inst, const MatrixSite& site) {
    return Store ? store_elements<E>(warp, inst, site) : load_elements<E>(warp, inst, site);
}

template <bool Store>
const Inst* do_fragment(Warp& warp, const Inst* inst) {
    const auto& site = *static_cast<const MatrixSite*>(inst->table);
    require_whole_warp(warp, inst);
    warp.thread->inst = inst;
    switch (bits_of(site.d)) {
        case 8: return move_elements<Store, std::uint8_t>(warp, inst, site);
        case 16: return move_elements<Store, u16>(warp, inst, site);
        case 64: return move_elements<Store, u64>(warp, inst, site);
        default: return move_elements<Store, u32>(warp, inst, site);
    }
}

u32 matrix_register(const Inst* inst, u32 index) {
    return index == 0 ? inst->dst : index == 1 ? inst->b : index == 2 ? inst->c : inst->e;
}

/// 8 rows of 8 elements: lane l holds elements 2l and 2l + 1.
struct SmallMatrix {
    static constexpr u32 kSide = 8;
    u16 elements[kSide * kSide];
    static constexpr u32 kRowBytes = kSide * sizeof(u16);

    [[nodiscard]] SmallMatrix transposed() const {
        SmallMatrix out;
        for (u32 row = 0; row < kSide; ++row) {
            for (u32 column = 0; column < kSide; ++column) {
                out.elements[column * kSide + row] = elements[row * kSide + column];
            }
        }
        return out;
    }
};

template <bool Store>
const Inst* do_matrices(Warp& warp, const Inst* inst) {
    require_whole_warp(warp, inst);
    warp.thread->inst = inst;
    const auto access = static_cast<Access>(inst->d);
    const bool transposed = (inst->flags & 1U) != 0;
    u64 lines[kLanes];  // all read first: their register may be a result too
    for (u32 line = 0; line < inst->aux * SmallMatrix::kSide; ++line) {
        lines[line] = lane_address(warp, inst, access, Store ? Touch::kWrite : Touch::kRead,
                                   inst->a, inst->imm, line, SmallMatrix::kRowBytes);
    }
    for (u32 index = 0; index < inst->aux; ++index) {
        u32* reg = warp.slot<u32>(matrix_register(inst, index));
        SmallMatrix matrix;
        if (Store) {
            std::memcpy(matrix.elements, reg, sizeof matrix.elements);
            matrix = transposed ? matrix.transposed() : matrix;
        }
        for (u32 row = 0; row < SmallMatrix::kSide; ++row) {
            auto* const near = matrix.elements + row * SmallMatrix::kSide;
            auto* const far = reinterpret_cast<void*>(lines[index * SmallMatrix::kSide + row]);
            std::memcpy(Store ? far : near, Store ? near : far, SmallMatrix::kRowBytes);
        }
        if (!Store) {
            matrix = transposed ? matrix.transposed() : matrix;
            std::memcpy(reg, matrix.elements, sizeof matrix.elements);
        }
    }
    return inst + 1;
}

const Inst* do_transpose(Warp& warp, const Inst* inst) {
    require_whole_warp(warp, inst);
    SmallMatrix matrix;
    std::memcpy(matrix.elements, warp.slot<u32>(inst->a), sizeof matrix.elements);
    matrix = matrix.transposed();
    std::memcpy(warp.slot<u32>(inst->dst), matrix.elements, sizeof matrix.elements);
    return inst + 1;
}

}  // namespace

Handler load_fragment() { return &do_fragment<false>; }
Handler store_fragment() { return &do_fragment<true>; }
Handler load_matrices() { return &do_matrices<false>; }
Handler store_matrices() { return &do_matrices<true>; }
Handler transpose_matrix() { return &do_transpose; }

}  // namespace gantry::softgpu::exec
