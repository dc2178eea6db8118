// ld and st that threads of other blocks and the host may be waiting for (volatile, relaxed,
// acquire, release), through global and generic addresses. Every element, and every vector of up to
// eight bytes, is one atomic access of the host's, with acquire or release: on x86-64 a plain move,
// but one that no compiler splits, repeats or moves, and whose order ThreadSanitizer knows. Sixteen
// bytes are a single vector move, for which C++ has no name; ThreadSanitizer does not see it.
#include <immintrin.h>

#include "host-daemon/softgpu/engine/isa/addresses.h"
#include "host-daemon/softgpu/engine/isa/cells.h"
#include "host-daemon/softgpu/engine/isa/fill.h"

#ifdef __AVX__
#define GANTRY_MOVE_16 "vmovdqa %1, %0"
#else
#define GANTRY_MOVE_16 "movdqa %1, %0"
#endif

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

template <std::size_t Bytes>
struct WordOf;
template <>
struct WordOf<1> {
    using type = u8;
};
template <>
struct WordOf<2> {
    using type = u16;
};
template <>
struct WordOf<4> {
    using type = u32;
};
template <>
struct WordOf<8> {
    using type = u64;
};

template <typename T, int N>
GANTRY_INLINE void peek_ordered(u64 address, T (&values)[N]) {
    if constexpr (sizeof values == 16) {
        __m128i all;
        __asm__ volatile(GANTRY_MOVE_16
                         : "=x"(all)
                         : "m"(*reinterpret_cast<const __m128i*>(address))
                         : "memory");
        std::memcpy(values, &all, 16);
    } else {
        using Word = typename WordOf<sizeof values>::type;
        const Word all = __atomic_load_n(reinterpret_cast<const Word*>(address), __ATOMIC_ACQUIRE);
        std::memcpy(values, &all, sizeof values);
    }
}

template <typename T, int N>
GANTRY_INLINE void poke_ordered(u64 address, const T (&values)[N]) {
    if constexpr (sizeof values == 16) {
        __m128i all;
        std::memcpy(&all, values, 16);
        __asm__ volatile(GANTRY_MOVE_16
                         : "=m"(*reinterpret_cast<__m128i*>(address))
                         : "x"(all)
                         : "memory");
    } else {
        using Word = typename WordOf<sizeof values>::type;
        Word all;
        std::memcpy(&all, values, sizeof values);
        __atomic_store_n(reinterpret_cast<Word*>(address), all, __ATOMIC_RELEASE);
    }
}

/// The elements' slots. The one element of 16 bytes is two of eight, whose slots are neighbours.
template <Cell C, int N>
struct Form {
    using T = typename CellType<C>::type;
    static constexpr int kElements = N;
    static Slot<T>* slot(Warp& warp, const Inst* inst, int element) {
        return warp.slot<Slot<T>>(element_slot(inst, element));
    }
};
template <>
struct Form<Cell::kB128, 1> {
    using T = u64;
    static constexpr int kElements = 2;
    static u64* slot(Warp& warp, const Inst* inst, int element) {
        return warp.slot<u64>(inst->dst) + element * kLanes;
    }
};

template <Cell C, int N>
const Inst* load_ordered(Warp& warp, const Inst* inst) {
    using F = Form<C, N>;
    using T = typename F::T;
    T values[F::kElements];
    Slot<T>* out[F::kElements];
    for (int element = 0; element < F::kElements; ++element) {
        out[element] = F::slot(warp, inst, element);
    }
    Addresses addresses;
    form_addresses<Access::kFlat, false>(warp, inst, sizeof values, Touch::kRead, addresses);
    if (warp.mask == kAllLanes && addresses.uniform) {
        peek_ordered(addresses.at[0], values);
        for (int element = 0; element < F::kElements; ++element) {
            const Slot<T> value = to_slot<T>(values[element]);
            for (int lane = 0; lane < kLanes; ++lane) {
                out[element][lane] = value;
            }
        }
        return inst + 1;
    }
    for_active(warp.mask, [&](int lane) {
        peek_ordered(addresses.at[lane], values);
        for (int element = 0; element < F::kElements; ++element) {
            out[element][lane] = to_slot<T>(values[element]);
        }
    });
    return inst + 1;
}

template <Cell C, int N>
const Inst* store_ordered(Warp& warp, const Inst* inst) {
    using F = Form<C, N>;
    using T = typename F::T;
    T values[F::kElements];
    const Slot<T>* in[F::kElements];
    for (int element = 0; element < F::kElements; ++element) {
        in[element] = F::slot(warp, inst, element);
    }
    Addresses addresses;
    form_addresses<Access::kFlat, false>(warp, inst, sizeof values, Touch::kWrite, addresses);
    for_active(warp.mask, [&](int lane) {
        for (int element = 0; element < F::kElements; ++element) {
            values[element] = static_cast<T>(in[element][lane]);
        }
        poke_ordered(addresses.at[lane], values);
    });
    return inst + 1;
}

template <Cell C, int N>
void fill_form(HandlerTable& table, int log) {
    table.load_ordered[index_of(C)][log] = &load_ordered<C, N>;
    table.store_ordered[index_of(C)][log] = &store_ordered<C, N>;
}

template <Cell C>
void fill_cell(HandlerTable& table) {
    fill_form<C, 1>(table, 0);
    fill_form<C, 2>(table, 1);
    if constexpr (C != Cell::kB64) {
        fill_form<C, 4>(table, 2);
    }
}

}  // namespace

void fill_ordered(HandlerTable& table) {
    fill_cell<Cell::kU8>(table);
    fill_cell<Cell::kS8>(table);
    fill_cell<Cell::kU16>(table);
    fill_cell<Cell::kS16>(table);
    fill_cell<Cell::kB32>(table);
    fill_cell<Cell::kB64>(table);
    fill_form<Cell::kB128, 1>(table, 0);
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
