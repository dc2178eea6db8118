// A library with the generated entry points and a handful of implementations that write down how
// they were called. The test loads it as a program would load libcuda.so.1.
#include "proto/cuda/gen/proc_table.h"
#include "tests/conformance/cuda_table/hooks/cuda_impl_hooks.h"
#include "tests/conformance/cuda_table/probe.h"

namespace {

Probe g_probe;

}  // namespace

namespace gantry::cuda_impl {

CUresult g_enter_result = CUDA_SUCCESS;
cuda::Op g_entered = cuda::Op::kNone;
bool g_oblige = false;

CUresult refused(cuda::Op op) noexcept {
    g_probe.refused_op = static_cast<unsigned>(op);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuDriverGetVersion(int* version) noexcept {
    // The way for the test to reach in: a library under test exports the CUDA ABI and nothing else.
    if (version == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (*version == kProbeFetch) {
        g_probe.entered_op = static_cast<unsigned>(g_entered);
        *reinterpret_cast<Probe**>(version + 2) = &g_probe;
        return CUDA_SUCCESS;
    }
    if (*version == kProbeRefuse || *version == kProbeAllow) {
        g_enter_result = *version == kProbeRefuse ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
        return CUDA_SUCCESS;
    }
    if (*version == kProbeOblige) {
        g_oblige = true;
        return CUDA_SUCCESS;
    }
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) noexcept {
    g_probe.stream = stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamCopyAttributes(CUstream target, CUstream source) noexcept {
    g_probe.stream = target;
    g_probe.other_stream = source;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction, void**, void**) noexcept {
    g_probe.stream = config->hStream;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec*, CUgraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) noexcept {
    g_probe.stream = params->hUploadStream;
    params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8_v2(DefaultStream default_stream, CUdeviceptr address, unsigned char value,
                       size_t count) noexcept {
    g_probe.stream = default_stream_handle(default_stream);
    g_probe.address = address;
    g_probe.value = value;
    g_probe.count = count;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) noexcept {
    g_probe.stream = stream;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** entry, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) noexcept {
    cuda::ProcStatus found = cuda::ProcStatus::kFound;
    const int result = cuda::get_proc_address(symbol, entry, version, flags, &found, 13000);
    if (status != nullptr) {
        *status = static_cast<CUdriverProcAddressQueryResult>(found);
    }
    return static_cast<CUresult>(result);
}

CUresult cuGetProcAddress(const char* symbol, void** entry, int version,
                          cuuint64_t flags) noexcept {
    return static_cast<CUresult>(cuda::get_proc_address_v1(symbol, entry, version, flags, 13000));
}

}  // namespace gantry::cuda_impl
