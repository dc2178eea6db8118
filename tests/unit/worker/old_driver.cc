// The soft GPU's driver, but that it says it is for CUDA 12.1: as NVIDIA's release 530, the last
// that Gantry does not take.
#include "proto/cuda/abi.h"

extern "C" CUresult cuDriverGetVersion(int* version) {
    *version = 12010;
    return CUDA_SUCCESS;
}
