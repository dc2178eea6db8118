// Host functions: the stream waits on the host's side while this process's callback thread runs
// the application's function.
#include "guest-shim/driver/core/objects.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

CUresult add_host_function(cuda::Op op, wire::CallbackKind kind, CUstream stream,
                           std::uint64_t function, void* user_data, unsigned flags) {
    GANTRY_REFUSE_IF(function == 0, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(!is_stream(stream), CUDA_ERROR_INVALID_HANDLE);
    if (const CUresult result = session::start_callbacks(); result != CUDA_SUCCESS) {
        return result;
    }
    const cuda::wire_hand::HostFunctionCall arguments{bits(stream), function, bits(user_data),
                                                      flags, static_cast<std::uint32_t>(kind)};
    return post_args(op, arguments);
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) noexcept {
    return add_host_function(cuda::Op::cuLaunchHostFunc, wire::CallbackKind::kHostFunction, hStream,
                             reinterpret_cast<std::uint64_t>(fn), userData, 0);
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData,
                             unsigned int flags) noexcept {
    GANTRY_REFUSE_IF(flags != 0, CUDA_ERROR_INVALID_VALUE);
    return add_host_function(cuda::Op::cuStreamAddCallback, wire::CallbackKind::kStreamCallback,
                             hStream, reinterpret_cast<std::uint64_t>(callback), userData, flags);
}

}  // namespace gantry::cuda_impl
