// The soft GPU's driver on a card that is full at first: a process's first two tries to have a
// context find no room. All that is not here is found in the soft GPU's, which it is linked with.
#include <dlfcn.h>

#include <atomic>

#include "proto/cuda/abi.h"

extern "C" CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    constexpr int kRefused = 2;
    static std::atomic<int> tries{0};
    if (tries.fetch_add(1) < kRefused) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    using Retain = CUresult (*)(CUcontext*, CUdevice);
    static const auto retain =
        reinterpret_cast<Retain>(dlsym(RTLD_NEXT, "cuDevicePrimaryCtxRetain"));
    return retain != nullptr ? retain(context, device) : CUDA_ERROR_UNKNOWN;
}
