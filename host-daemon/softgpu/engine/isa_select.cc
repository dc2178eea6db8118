// Chooses the handlers for this CPU.
#include <cstdlib>
#include <cstring>

#include "host-daemon/softgpu/engine/inst.h"

namespace gantry::softgpu {

namespace isa_v2 {
[[nodiscard]] const HandlerTable& handler_table();
}
#ifdef GANTRY_ISA_LEVELS
namespace isa_v3 {
[[nodiscard]] const HandlerTable& handler_table();
}
namespace isa_v4 {
[[nodiscard]] const HandlerTable& handler_table();
}
#endif

const HandlerTable& handlers() {
    static const HandlerTable& table = []() -> const HandlerTable& {
#ifdef GANTRY_ISA_LEVELS
        const char* wanted = std::getenv("GANTRY_SOFT_ISA");
        const auto is = [wanted](const char* name) {
            return wanted == nullptr || std::strcmp(wanted, name) == 0;
        };
        const bool v3 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                        __builtin_cpu_supports("bmi2") != 0;
        const bool v4 =
            v3 && __builtin_cpu_supports("avx512f") != 0 &&
            __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512cd") != 0 &&
            __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
        if (v4 && is("v4")) {
            return isa_v4::handler_table();
        }
        if (v3 && is("v3")) {
            return isa_v3::handler_table();
        }
#endif
        return isa_v2::handler_table();
    }();
    return table;
}

}  // namespace gantry::softgpu
