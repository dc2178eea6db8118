#include "host-daemon/softgpu/memory/kernel_reach.h"

namespace gantry::softgpu {

Reach& kernel_reach() {
    static auto* const reach = new Reach;
    return *reach;
}

void end_reach(std::uint64_t begin, std::uint64_t bytes) {
    kernel_reach().remove(begin, bytes);
    Reach::await_kernels();
}

}  // namespace gantry::softgpu
