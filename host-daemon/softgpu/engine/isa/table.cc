// One per CPU level: the filled table.
#include "host-daemon/softgpu/engine/isa/fill.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {

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
        return made;
    }();
    return *table;
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
