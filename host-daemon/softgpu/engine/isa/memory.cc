// ld and st. Addresses of all lanes are formed first, checked together (alignment, window), and
// then one of three ways is taken: neighbouring lanes at neighbouring cells (one block move),
// all lanes at one cell, or lane by lane. A flat address that the kernel may not touch never gets
// as far (isa/addresses.h).
//
// 16-byte accesses are single vector moves, so that a flag and a value written together are seen
// together by other blocks.
#include <immintrin.h>

#include <type_traits>

#include "host-daemon/softgpu/engine/isa/addresses.h"
#include "host-daemon/softgpu/engine/isa/cells.h"
#include "host-daemon/softgpu/engine/isa/fill.h"
#include "host-daemon/softgpu/engine/kernel_code.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

/// Whether an access is frequent enough to be built as one piece.
template <Access A, Cell C>
inline constexpr bool kFrequent = (A == Access::kFlat || A == Access::kShared32) && C == Cell::kB32;

template <typename T>
GANTRY_INLINE T peek(u64 address) {
    T value;
    std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
    return value;
}
template <typename T>
GANTRY_INLINE void poke(u64 address, T value) {
    std::memcpy(reinterpret_cast<void*>(address), &value, sizeof value);
}
GANTRY_INLINE __m128i peek16(u64 address) {
    return *reinterpret_cast<const volatile __m128i*>(address);
}
GANTRY_INLINE void poke16(u64 address, __m128i value) {
    *reinterpret_cast<volatile __m128i*>(address) = value;
}

/// 32 loads from 64-bit addresses.
template <typename T>
GANTRY_INLINE void gather_flat(const u64* at, Slot<T>* out) {
#ifdef __AVX512F__
    if constexpr (sizeof(T) == 4) {
        for (int part = 0; part < 4; ++part) {
            const __m512i index = _mm512_load_si512(at + 8 * part);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * part),
                                _mm512_i64gather_epi32(index, nullptr, 1));
        }
        return;
    }
    if constexpr (sizeof(T) == 8) {
        for (int part = 0; part < 4; ++part) {
            const __m512i index = _mm512_load_si512(at + 8 * part);
            _mm512_storeu_si512(out + 8 * part, _mm512_i64gather_epi64(index, nullptr, 1));
        }
        return;
    }
#endif
    for (int lane = 0; lane < kLanes; ++lane) {
        out[lane] = to_slot<T>(peek<T>(at[lane]));
    }
}

template <Access A, Cell C>
const Inst* load_one(Warp& warp, const Inst* inst);

/// 32-bit loads from shared memory through 32-bit addresses, by all lanes: everything in 32-bit
/// arithmetic. Anything unusual is left to the general way.
const Inst* load_shared_word(Warp& warp, const Inst* inst) {
    const u32 limit = warp.block->shared_bytes;
    if (warp.mask != kAllLanes || limit < 4) [[unlikely]] {
        return load_one<Access::kShared32, Cell::kB32>(warp, inst);
    }
    const u32* a = warp.slot<u32>(inst->a);
    const u32 add = static_cast<u32>(inst->imm);
    const u32 room = limit - 4;
    const u32 first = a[0] + add;
    alignas(64) u32 at[kLanes];
    u32 bad = 0;
    u32 uneven = 0;
    u32 unlike = 0;
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        const u32 offset = a[lane] + add;
        at[lane] = offset;
        bad |= (offset & 3U) | (offset > room ? 1U : 0U);
        uneven |= offset ^ (first + 4U * static_cast<u32>(lane));
        unlike |= offset ^ first;
    }
    if (bad != 0) [[unlikely]] {
        return load_one<Access::kShared32, Cell::kB32>(warp, inst);
    }
    const std::uint8_t* base = warp.block->shared;
    u32* out = warp.slot<u32>(inst->dst);
    if (unlike == 0) {
        const u32 value = peek<u32>(reinterpret_cast<u64>(base + first));
        for (int lane = 0; lane < kLanes; ++lane) {
            out[lane] = value;
        }
    } else if (uneven == 0) {
        std::memcpy(out, base + first, 4 * kLanes);
    } else {
#if defined(__AVX512F__)
        for (int part = 0; part < 2; ++part) {
            const __m512i index = _mm512_load_si512(at + 16 * part);
            _mm512_storeu_si512(out + 16 * part, _mm512_i32gather_epi32(index, base, 1));
        }
#elif defined(__AVX2__)
        for (int part = 0; part < 4; ++part) {
            const __m256i index =
                _mm256_load_si256(reinterpret_cast<const __m256i*>(at + 8 * part));
            _mm256_storeu_si256(
                reinterpret_cast<__m256i*>(out + 8 * part),
                _mm256_i32gather_epi32(reinterpret_cast<const int*>(base), index, 1));
        }
#else
        for (int lane = 0; lane < kLanes; ++lane) {
            out[lane] = peek<u32>(reinterpret_cast<u64>(base + at[lane]));
        }
#endif
    }
    return inst + 1;
}

/// The bodies of ld and st behind the addresses, the same for every way of addressing.
template <Cell C>
GANTRY_INLINE void load_cells_here(Warp& warp, const Inst* inst, const Addresses& addresses) {
    using T = typename CellType<C>::type;
    Slot<T>* out = warp.slot<Slot<T>>(inst->dst);
    if (warp.mask != kAllLanes) [[unlikely]] {
        for_active(warp.mask,
                   [&](int lane) { out[lane] = to_slot<T>(peek<T>(addresses.at[lane])); });
    } else if (addresses.contiguous) {
        const u64 first = addresses.at[0];
        GANTRY_LANES
        for (int lane = 0; lane < kLanes; ++lane) {
            out[lane] = to_slot<T>(peek<T>(first + static_cast<u64>(lane) * sizeof(T)));
        }
    } else if (addresses.uniform) {
        const Slot<T> value = to_slot<T>(peek<T>(addresses.at[0]));
        for (int lane = 0; lane < kLanes; ++lane) {
            out[lane] = value;
        }
    } else {
        gather_flat<T>(addresses.at, out);
    }
}

template <Cell C>
GANTRY_INLINE void store_cells_here(Warp& warp, const Inst* inst, const Addresses& addresses) {
    using T = typename CellType<C>::type;
    const Slot<T>* in = warp.slot<Slot<T>>(inst->dst);
    if (warp.mask == kAllLanes && addresses.contiguous) [[likely]] {
        const u64 first = addresses.at[0];
        GANTRY_LANES
        for (int lane = 0; lane < kLanes; ++lane) {
            poke<T>(first + static_cast<u64>(lane) * sizeof(T), static_cast<T>(in[lane]));
        }
        return;
    }
    for_active(warp.mask, [&](int lane) { poke<T>(addresses.at[lane], static_cast<T>(in[lane])); });
}

template <Cell C>
[[gnu::noinline]] void load_cells(Warp& warp, const Inst* inst, const Addresses& addresses) {
    load_cells_here<C>(warp, inst, addresses);
}

template <Cell C>
[[gnu::noinline]] void store_cells(Warp& warp, const Inst* inst, const Addresses& addresses) {
    store_cells_here<C>(warp, inst, addresses);
}

template <Access A, Cell C>
const Inst* load_one(Warp& warp, const Inst* inst) {
    using T = typename CellType<C>::type;
    Addresses addresses;
    form_addresses<A, kFrequent<A, C>>(warp, inst, sizeof(T), Touch::kRead, addresses);
    if constexpr (kFrequent<A, C>) {
        load_cells_here<C>(warp, inst, addresses);
    } else {
        load_cells<C>(warp, inst, addresses);
    }
    return inst + 1;
}

template <Access A, Cell C>
const Inst* store_one(Warp& warp, const Inst* inst) {
    using T = typename CellType<C>::type;
    Addresses addresses;
    form_addresses<A, kFrequent<A, C>>(warp, inst, sizeof(T), Touch::kWrite, addresses);
    if constexpr (kFrequent<A, C>) {
        store_cells_here<C>(warp, inst, addresses);
    } else {
        store_cells<C>(warp, inst, addresses);
    }
    return inst + 1;
}

/// The bytes of one lane's vector, moved at once where they are sixteen.
template <typename T, int N>
GANTRY_INLINE void peek_vector(u64 address, T (&values)[N]) {
    if constexpr (sizeof values == 16) {
        const __m128i all = peek16(address);
        std::memcpy(values, &all, 16);
    } else {
        std::memcpy(values, reinterpret_cast<const void*>(address), sizeof values);
    }
}

template <Cell C, int N>
[[gnu::noinline]] void load_vectors(Warp& warp, const Inst* inst, const Addresses& addresses) {
    using T = typename CellType<C>::type;
    Slot<T>* out[N];
    for (int element = 0; element < N; ++element) {
        out[element] = warp.slot<Slot<T>>(element_slot(inst, element));
    }
    if (warp.mask == kAllLanes && addresses.uniform) {
        T values[N];
        peek_vector(addresses.at[0], values);
        for (int element = 0; element < N; ++element) {
            const Slot<T> value = to_slot<T>(values[element]);
            for (int lane = 0; lane < kLanes; ++lane) {
                out[element][lane] = value;
            }
        }
        return;
    }
    for_active(warp.mask, [&](int lane) {
        T values[N];
        peek_vector(addresses.at[lane], values);
        for (int element = 0; element < N; ++element) {
            out[element][lane] = to_slot<T>(values[element]);
        }
    });
}

template <Cell C, int N>
[[gnu::noinline]] void store_vectors(Warp& warp, const Inst* inst, const Addresses& addresses) {
    using T = typename CellType<C>::type;
    const Slot<T>* in[N];
    for (int element = 0; element < N; ++element) {
        in[element] = warp.slot<Slot<T>>(element_slot(inst, element));
    }
    for_active(warp.mask, [&](int lane) {
        T values[N];
        for (int element = 0; element < N; ++element) {
            values[element] = static_cast<T>(in[element][lane]);
        }
        if constexpr (sizeof values == 16) {
            __m128i all;
            std::memcpy(&all, values, 16);
            poke16(addresses.at[lane], all);
        } else {
            std::memcpy(reinterpret_cast<void*>(addresses.at[lane]), values, sizeof values);
        }
    });
}

template <Access A, Cell C, int N>
const Inst* load_vector(Warp& warp, const Inst* inst) {
    Addresses addresses;
    form_addresses<A, false>(warp, inst, sizeof(typename CellType<C>::type) * N, Touch::kRead,
                             addresses);
    load_vectors<C, N>(warp, inst, addresses);
    return inst + 1;
}

template <Access A, Cell C, int N>
const Inst* store_vector(Warp& warp, const Inst* inst) {
    Addresses addresses;
    form_addresses<A, false>(warp, inst, sizeof(typename CellType<C>::type) * N, Touch::kWrite,
                             addresses);
    store_vectors<C, N>(warp, inst, addresses);
    return inst + 1;
}

[[gnu::noinline]] void load_b128_cells(Warp& warp, const Inst* inst, const Addresses& addresses) {
    u64* out = warp.slot<u64>(inst->dst);
    for_active(warp.mask, [&](int lane) {
        u64 halves[2];
        peek_vector(addresses.at[lane], halves);
        out[lane] = halves[0];
        out[kLanes + lane] = halves[1];
    });
}

[[gnu::noinline]] void store_b128_cells(Warp& warp, const Inst* inst, const Addresses& addresses) {
    const u64* in = warp.slot<u64>(inst->dst);
    for_active(warp.mask, [&](int lane) {
        const u64 halves[2] = {in[lane], in[kLanes + lane]};
        __m128i all;
        std::memcpy(&all, halves, 16);
        poke16(addresses.at[lane], all);
    });
}

template <Access A>
const Inst* load_b128(Warp& warp, const Inst* inst) {
    Addresses addresses;
    form_addresses<A, false>(warp, inst, 16, Touch::kRead, addresses);
    load_b128_cells(warp, inst, addresses);
    return inst + 1;
}

template <Access A>
const Inst* store_b128(Warp& warp, const Inst* inst) {
    Addresses addresses;
    form_addresses<A, false>(warp, inst, 16, Touch::kWrite, addresses);
    store_b128_cells(warp, inst, addresses);
    return inst + 1;
}

/// Kernel parameters are the same for all lanes; the decoder has checked the offset.
template <Cell C, int N>
const Inst* load_param(Warp& warp, const Inst* inst) {
    using T = typename CellType<C>::type;
    const std::uint8_t* from = warp.block->params + inst->imm;
    for (int element = 0; element < N; ++element) {
        T value;
        std::memcpy(&value, from + static_cast<u64>(element) * sizeof(T), sizeof value);
        const Slot<T> wide = to_slot<T>(value);
        for_lanes(warp, warp.slot<Slot<T>>(element_slot(inst, element)), [=](int) { return wide; });
    }
    return inst + 1;
}

template <Access A, Cell C>
void fill_cell(HandlerTable& table) {
    Handler* loads = table.load[index_of(A)][index_of(C)];
    Handler* stores = table.store[index_of(A)][index_of(C)];
    loads[0] = &load_one<A, C>;
    loads[1] = &load_vector<A, C, 2>;
    stores[0] = &store_one<A, C>;
    stores[1] = &store_vector<A, C, 2>;
    if constexpr (C != Cell::kB64) {
        loads[2] = &load_vector<A, C, 4>;
        stores[2] = &store_vector<A, C, 4>;
    }
}

template <Access A>
void fill_access(HandlerTable& table) {
    fill_cell<A, Cell::kU8>(table);
    fill_cell<A, Cell::kS8>(table);
    fill_cell<A, Cell::kU16>(table);
    fill_cell<A, Cell::kS16>(table);
    fill_cell<A, Cell::kB32>(table);
    fill_cell<A, Cell::kB64>(table);
    table.load[index_of(A)][index_of(Cell::kB128)][0] = &load_b128<A>;
    table.store[index_of(A)][index_of(Cell::kB128)][0] = &store_b128<A>;
}

template <Cell C>
void fill_param(HandlerTable& table) {
    table.load_param[index_of(C)][0] = &load_param<C, 1>;
    table.load_param[index_of(C)][1] = &load_param<C, 2>;
    table.load_param[index_of(C)][2] = &load_param<C, 4>;
}

}  // namespace

void fill_memory(HandlerTable& table) {
    fill_access<Access::kFlat>(table);
    fill_access<Access::kShared32>(table);
    fill_access<Access::kShared64>(table);
    table.load[index_of(Access::kShared32)][index_of(Cell::kB32)][0] = &load_shared_word;
    fill_access<Access::kLocal32>(table);
    fill_access<Access::kLocal64>(table);
    fill_access<Access::kFrame>(table);
    fill_param<Cell::kU8>(table);
    fill_param<Cell::kS8>(table);
    fill_param<Cell::kU16>(table);
    fill_param<Cell::kS16>(table);
    fill_param<Cell::kB32>(table);
    fill_param<Cell::kB64>(table);
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
