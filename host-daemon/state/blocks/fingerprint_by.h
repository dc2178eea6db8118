// Who computes the fingerprints of device memory.
#pragma once

#include <cstdint>

namespace gantry::state {

enum class FingerprintBy : std::uint8_t {
    kAuto,  ///< The CPU where it can read device memory in place, else the GPU.
    kCpu,   ///< From copies, where it cannot read in place.
    kGpu,   ///< A kernel of ours; the CPU only for what a kernel cannot reach.
};

}  // namespace gantry::state
