// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Weak definitions: what an implementation does not define is refused by name.

#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {

[[gnu::weak]] CUresult cuInit(unsigned int) noexcept {
    return refused(cuda::Op::cuInit);
}
[[gnu::weak]] CUresult cuStreamCreate(CUstream *, unsigned int) noexcept {
    return refused(cuda::Op::cuStreamCreate);
}
[[gnu::weak]] CUresult cuStreamDestroy_v2(CUstream) noexcept {
    return refused(cuda::Op::cuStreamDestroy_v2);
}
[[gnu::weak]] CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream) noexcept {
    return refused(cuda::Op::cuMemsetD8Async);
}
[[gnu::weak]] CUresult cuMemsetD8_v2(DefaultStream, CUdeviceptr, unsigned char, size_t) noexcept {
    return refused(cuda::Op::cuMemsetD8_v2);
}
[[gnu::weak]] CUresult cuGraphAddMemsetNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
    const CUDA_MEMSET_NODE_PARAMS_v1 *, CUcontext) noexcept {
    return refused(cuda::Op::cuGraphAddMemsetNode);
}
[[gnu::weak]] CUresult cuMemRangeGetAttribute(void *, size_t, CUmem_range_attribute, CUdeviceptr,
    size_t) noexcept {
    return refused(cuda::Op::cuMemRangeGetAttribute);
}
[[gnu::weak]] CUresult cuLaunchKernel(CUfunction, CUstream, void **) noexcept {
    return refused(cuda::Op::cuLaunchKernel);
}
[[gnu::weak]] CUresult cuGetProcAddress_v2(const char *, cuuint64_t) noexcept {
    return refused(cuda::Op::cuGetProcAddress_v2);
}
[[gnu::weak]] CUresult cuIpcGetMemHandle(CUipcMemHandle_v1 *, CUdeviceptr) noexcept {
    return refused(cuda::Op::cuIpcGetMemHandle);
}
[[gnu::weak]] CUresult cuModuleGetFunctionCount(unsigned int *, CUmodule) noexcept {
    return refused(cuda::Op::cuModuleGetFunctionCount);
}
[[gnu::weak]] CUresult cuEventElapsedTime(float *, CUevent) noexcept {
    return refused(cuda::Op::cuEventElapsedTime);
}
[[gnu::weak]] CUresult cuLinkName(const char *, const CUuuid *, CUstreamCaptureMode *,
    CUmemLocation, CUevent *, unsigned int *, unsigned int, unsigned int,
    const cuuint64_t *) noexcept {
    return refused(cuda::Op::cuLinkName);
}

}  // namespace gantry::cuda_impl
