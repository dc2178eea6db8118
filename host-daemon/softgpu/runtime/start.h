// cuInit's work: settings, devices, the window of device memory, and the ties between the layers.
#pragma once

#include "proto/cuda/abi.h"

namespace gantry::softgpu {

/// Starts the driver, once; also makes the error permanent when it fails. Any thread.
CUresult initialise();

}  // namespace gantry::softgpu
