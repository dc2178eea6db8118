// The driver API for programs of the runtime: fetched as a library would, by name and version.
#pragma once

#include <cuda.h>

#include "program.h"

template <typename Function>
static Function entry(const char* name, unsigned version) {
    void* function = nullptr;
#if CUDART_VERSION >= 12050
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &result));
#else  // The version is the runtime's own.
    (void)version;
    CHECK(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault));
#endif
    EXPECT(function != nullptr);
    return (Function)function;
}
#define ENTRY(name, version) auto name##_ = entry<decltype(&name)>(#name, version)

#define OK(call) EXPECT_STATUS(call, CUDA_SUCCESS)
