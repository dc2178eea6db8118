// One per CPU level: the filled table, and what its files share.
#include "host-daemon/softgpu/engine/isa/fill.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {

namespace {

template <typename S>
GANTRY_INLINE void blend_lanes(S* out, const S* in, u32 mask) {
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        out[lane] = ((mask >> lane) & 1U) != 0 ? in[lane] : out[lane];
    }
}

}  // namespace

void blend(u32* out, const u32* in, u32 mask) { blend_lanes(out, in, mask); }
void blend(u64* out, const u64* in, u32 mask) { blend_lanes(out, in, mask); }

const HandlerTable& handler_table() {
    static const HandlerTable* const table = [] {
        auto* made = new HandlerTable;
        fill_integer(*made);
        fill_integer_special(*made);
        fill_float(*made);
        fill_half(*made);
        fill_approximate(*made);
        fill_compare(*made);
        fill_convert(*made);
        fill_move(*made);
        fill_memory(*made);
        fill_ordered(*made);
        fill_matrix(*made);
        return made;
    }();
    return *table;
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
