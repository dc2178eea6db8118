// ld and st. Addresses of all lanes are formed first, checked together (alignment, window), and
// then one of three ways is taken: neighbouring lanes at neighbouring cells (one block move),
// all lanes at one cell, or lane by lane. A bad flat address is caught as a signal (fault.cc).
//
// 16-byte accesses are single vector moves, so that a flag and a value written together are seen
// together by other blocks.
#include <immintrin.h>

#include <type_traits>

#include "host-daemon/softgpu/engine/isa/fill.h"
#include "host-daemon/softgpu/engine/kernel_code.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

struct Addresses {
    alignas(64) u64 at[kLanes];
    bool contiguous;
    bool uniform;
};

template <Access A>
GANTRY_INLINE u64 offset_of(const Warp& warp, const Inst* inst, int lane) {
    if constexpr (A == Access::kFlat || A == Access::kShared64 || A == Access::kLocal64) {
        return warp.slot<u64>(inst->a)[lane] + static_cast<u64>(inst->imm);
    } else if constexpr (A == Access::kFrame) {
        return warp.frame[static_cast<std::size_t>(lane)] + static_cast<u64>(inst->imm);
    } else {
        return static_cast<u32>(warp.slot<u32>(inst->a)[lane] + static_cast<u32>(inst->imm));
    }
}

[[gnu::cold, gnu::noinline]] void report(Warp& warp, const Inst* inst, const u64* at, u64 base,
                                         u64 stride, u64 limit, u32 size) {
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const u32 lane = static_cast<u32>(__builtin_ctz(mask));
        const u64 offset = at[lane] - base - stride * lane;
        if (offset > limit || limit - offset < size) {
            raise_fault(warp, inst, LaunchError::kIllegalAddress, lane, offset,
                        stride != 0 ? "address outside the thread's local memory"
                                    : "address outside the block's shared memory");
        }
        if ((at[lane] & (size - 1)) != 0) {
            raise_fault(warp, inst, LaunchError::kMisalignedAddress, lane, at[lane],
                        "misaligned address");
        }
    }
}

/// Forms, checks and classifies the addresses of `size`-byte accesses.
template <Access A>
GANTRY_INLINE void form_addresses(Warp& warp, const Inst* inst, u32 size, Addresses& out) {
    constexpr bool kShared = A == Access::kShared32 || A == Access::kShared64;
    constexpr bool kLocal =
        A == Access::kLocal32 || A == Access::kLocal64 || A == Access::kFrame;
    u64 base = 0;
    u64 stride = 0;
    u64 limit = ~u64{0};
    if constexpr (kShared) {
        base = reinterpret_cast<u64>(warp.block->shared);
        limit = warp.block->shared_bytes;
    } else if constexpr (kLocal) {
        base = reinterpret_cast<u64>(warp.local);
        stride = warp.local_stride;
        limit = stride;
    }
    const u32 mask = warp.mask;
    u64 bad = 0;
    u64 uneven = 0;
    u64 unlike = 0;
    const u64 first = base + offset_of<A>(warp, inst, 0);
    const u64 room = limit >= size ? limit - size : 0;
    const bool no_room = limit < size;
    const auto form = [&](auto masked) {
        GANTRY_LANES
        for (int lane = 0; lane < kLanes; ++lane) {
            const u64 offset = offset_of<A>(warp, inst, lane);
            const u64 address = base + stride * static_cast<u64>(lane) + offset;
            out.at[lane] = address;
            u64 wrong = address & (size - 1);
            if constexpr (kShared || kLocal) {
                wrong |= static_cast<u64>(offset > room || no_room);
            }
            if constexpr (masked.value) {
                bad |= ((mask >> lane) & 1U) != 0 ? wrong : 0;
            } else {
                bad |= wrong;
            }
            uneven |= address ^ (first + static_cast<u64>(lane) * size);
            unlike |= address ^ first;
        }
    };
    if (mask == kAllLanes) [[likely]] {
        form(std::false_type{});
    } else {
        form(std::true_type{});
    }
    out.contiguous = uneven == 0;
    out.uniform = unlike == 0;
    if (bad != 0) [[unlikely]] {
        report(warp, inst, out.at, base, stride, limit, size);
    }
    warp.thread->inst = inst;
    if constexpr (A == Access::kFlat) {
        warp.thread->polls += inst->flags & 1U;
    }
}

template <Cell C> struct CellType;
template <> struct CellType<Cell::kU8> { using type = u8; };
template <> struct CellType<Cell::kS8> { using type = s8; };
template <> struct CellType<Cell::kU16> { using type = u16; };
template <> struct CellType<Cell::kS16> { using type = s16; };
template <> struct CellType<Cell::kB32> { using type = u32; };
template <> struct CellType<Cell::kB64> { using type = u64; };

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

GANTRY_INLINE u32 element_slot(const Inst* inst, int element) {
    return element == 0 ? inst->dst : element == 1 ? inst->b : element == 2 ? inst->c : inst->d;
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

template <Access A, Cell C>
const Inst* load_one(Warp& warp, const Inst* inst) {
    using T = typename CellType<C>::type;
    Addresses addresses;
    form_addresses<A>(warp, inst, sizeof(T), addresses);
    Slot<T>* out = warp.slot<Slot<T>>(inst->dst);
    if (warp.mask == kAllLanes) [[likely]] {
        if (addresses.contiguous) {
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
        return inst + 1;
    }
    for_active(warp.mask, [&](int lane) { out[lane] = to_slot<T>(peek<T>(addresses.at[lane])); });
    return inst + 1;
}

template <Access A, Cell C>
const Inst* store_one(Warp& warp, const Inst* inst) {
    using T = typename CellType<C>::type;
    Addresses addresses;
    form_addresses<A>(warp, inst, sizeof(T), addresses);
    const Slot<T>* in = warp.slot<Slot<T>>(inst->dst);
    if (warp.mask == kAllLanes) [[likely]] {
        if (addresses.contiguous) {
            const u64 first = addresses.at[0];
            GANTRY_LANES
            for (int lane = 0; lane < kLanes; ++lane) {
                poke<T>(first + static_cast<u64>(lane) * sizeof(T), static_cast<T>(in[lane]));
            }
        } else {
            for (int lane = 0; lane < kLanes; ++lane) {
                poke<T>(addresses.at[lane], static_cast<T>(in[lane]));
            }
        }
        return inst + 1;
    }
    for_active(warp.mask,
               [&](int lane) { poke<T>(addresses.at[lane], static_cast<T>(in[lane])); });
    return inst + 1;
}

template <Access A, Cell C, int N>
const Inst* load_vector(Warp& warp, const Inst* inst) {
    using T = typename CellType<C>::type;
    constexpr u32 kBytes = sizeof(T) * N;
    Addresses addresses;
    form_addresses<A>(warp, inst, kBytes, addresses);
    Slot<T>* out[N];
    for (int element = 0; element < N; ++element) {
        out[element] = warp.slot<Slot<T>>(element_slot(inst, element));
    }
    const auto one = [&](int lane) {
        T values[N];
        if constexpr (kBytes == 16) {
            const __m128i all = peek16(addresses.at[lane]);
            std::memcpy(values, &all, 16);
        } else {
            std::memcpy(values, reinterpret_cast<const void*>(addresses.at[lane]), kBytes);
        }
        for (int element = 0; element < N; ++element) {
            out[element][lane] = to_slot<T>(values[element]);
        }
    };
    if (warp.mask == kAllLanes) [[likely]] {
        if (addresses.uniform) {
            T values[N];
            if constexpr (kBytes == 16) {
                const __m128i all = peek16(addresses.at[0]);
                std::memcpy(values, &all, 16);
            } else {
                std::memcpy(values, reinterpret_cast<const void*>(addresses.at[0]), kBytes);
            }
            for (int element = 0; element < N; ++element) {
                const Slot<T> value = to_slot<T>(values[element]);
                for (int lane = 0; lane < kLanes; ++lane) {
                    out[element][lane] = value;
                }
            }
            return inst + 1;
        }
        for (int lane = 0; lane < kLanes; ++lane) {
            one(lane);
        }
    } else {
        for_active(warp.mask, one);
    }
    return inst + 1;
}

template <Access A, Cell C, int N>
const Inst* store_vector(Warp& warp, const Inst* inst) {
    using T = typename CellType<C>::type;
    constexpr u32 kBytes = sizeof(T) * N;
    Addresses addresses;
    form_addresses<A>(warp, inst, kBytes, addresses);
    const Slot<T>* in[N];
    for (int element = 0; element < N; ++element) {
        in[element] = warp.slot<Slot<T>>(element_slot(inst, element));
    }
    for_active(warp.mask, [&](int lane) {
        T values[N];
        for (int element = 0; element < N; ++element) {
            values[element] = static_cast<T>(in[element][lane]);
        }
        if constexpr (kBytes == 16) {
            __m128i all;
            std::memcpy(&all, values, 16);
            poke16(addresses.at[lane], all);
        } else {
            std::memcpy(reinterpret_cast<void*>(addresses.at[lane]), values, kBytes);
        }
    });
    return inst + 1;
}

template <Access A>
const Inst* load_b128(Warp& warp, const Inst* inst) {
    Addresses addresses;
    form_addresses<A>(warp, inst, 16, addresses);
    u64* out = warp.slot<u64>(inst->dst);
    for_active(warp.mask, [&](int lane) {
        const __m128i all = peek16(addresses.at[lane]);
        u64 halves[2];
        std::memcpy(halves, &all, 16);
        out[lane] = halves[0];
        out[kLanes + lane] = halves[1];
    });
    return inst + 1;
}

template <Access A>
const Inst* store_b128(Warp& warp, const Inst* inst) {
    Addresses addresses;
    form_addresses<A>(warp, inst, 16, addresses);
    const u64* in = warp.slot<u64>(inst->dst);
    for_active(warp.mask, [&](int lane) {
        const u64 halves[2] = {in[lane], in[kLanes + lane]};
        __m128i all;
        std::memcpy(&all, halves, 16);
        poke16(addresses.at[lane], all);
    });
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
        for_lanes(warp, warp.slot<Slot<T>>(element_slot(inst, element)),
                  [=](int) { return wide; });
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
