// Which of a host's GPUs a session would go to: the first, in the host's own order, that preflight
// does not refuse. Used by the target before it asks the source, and by `gantry preflight` on the
// source. A pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "migration/engine/preflight.h"

namespace gantry::engine {

/// One GPU of a host.
struct HostGpu {
    std::optional<std::uint32_t> number;  ///< As its driver counts; nothing: an older release.
    TargetCapabilities capabilities;
};

struct GpuChoice {
    std::size_t index = 0;  ///< Of the list; of its first where all are refused.
    /// Of the one chosen: warnings. Where all are refused, of each, with the GPU in each sentence.
    std::vector<Finding> findings;
};

/// `gpus`: in the order in which they are tried; none: refused as gpu.absent.
[[nodiscard]] GpuChoice choose_gpu(const SessionNeeds& needs, const std::vector<HostGpu>& gpus);

}  // namespace gantry::engine
