#include "host-daemon/softgpu/engine/decode/decoder.h"

namespace gantry::softgpu {

#define GANTRY_PENDING(name) \
    void Decoder::name(Operands) { refuse("the soft GPU does not implement this instruction"); }
GANTRY_PENDING(op_cp)
GANTRY_PENDING(op_mbarrier)
GANTRY_PENDING(op_mapa)
GANTRY_PENDING(op_tex)
GANTRY_PENDING(op_suld)
GANTRY_PENDING(op_sust)
GANTRY_PENDING(op_query)
GANTRY_PENDING(op_video)

}  // namespace gantry::softgpu
