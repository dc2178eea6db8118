// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Loads a CUDA driver's entry points by name.

#include <cstring>
#include <dlfcn.h>

#include "proto/cuda/gen/driver_api_table.h"

namespace gantry::driver {
namespace {

template <typename Function>
std::size_t find(void* library, const char* name, Function** out) noexcept {
    void* const symbol = dlsym(library, name);
    static_assert(sizeof symbol == sizeof *out);
    std::memcpy(out, &symbol, sizeof symbol);
    return symbol != nullptr ? 1 : 0;
}

}  // namespace

std::size_t DriverApi::load(void* library) noexcept {
    std::size_t found = 0;
    found += find(library, "cuInit", &cuInit);
    found += find(library, "cuStreamCreate", &cuStreamCreate);
    found += find(library, "cuStreamDestroy_v2", &cuStreamDestroy_v2);
    found += find(library, "cuMemsetD8Async", &cuMemsetD8Async);
    found += find(library, "cuMemsetD8_v2", &cuMemsetD8_v2);
    found += find(library, "cuGraphAddMemsetNode", &cuGraphAddMemsetNode);
    found += find(library, "cuMemRangeGetAttribute", &cuMemRangeGetAttribute);
    found += find(library, "cuLaunchKernel", &cuLaunchKernel);
    found += find(library, "cuGetProcAddress_v2", &cuGetProcAddress_v2);
    found += find(library, "cuIpcGetMemHandle", &cuIpcGetMemHandle);
    found += find(library, "cuModuleGetFunctionCount", &cuModuleGetFunctionCount);
    found += find(library, "cuEventElapsedTime", &cuEventElapsedTime);
    found += find(library, "cuLinkName", &cuLinkName);
    return found;
}

}  // namespace gantry::driver
