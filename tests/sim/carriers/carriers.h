// gantryd's own carriers in the simulated world: SourceRunner and TargetRunner with all that they
// consist of, on simulated time, workers, disks, links and libvirt.
//
// What the world plays: what lies around them in gantryd (which message goes to which of them,
// another attempt, a restart), as it does for the engine's machines alone.
#pragma once

#include "tests/sim/world.h"

namespace gantry::sim {

/// Runs one seed to its end.
[[nodiscard]] Verdict run_carrier_seed(const Options& options);

}  // namespace gantry::sim
