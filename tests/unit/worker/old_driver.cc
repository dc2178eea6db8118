// The soft GPU's driver, but that it says it is for another CUDA: 12.1 as NVIDIA's release 530, the
// last that Gantry does not take, or one of a major release that nobody has seen yet.
#include "proto/cuda/abi.h"

extern "C" CUresult cuDriverGetVersion(int* version) {
    *version = GANTRY_TEST_DRIVER_VERSION;
    return CUDA_SUCCESS;
}
