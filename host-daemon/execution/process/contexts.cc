#include "host-daemon/execution/process/contexts.h"

namespace gantry::worker {
namespace {

/// Context that this thread has made current; avoids a driver call per command.
thread_local CUcontext t_context = nullptr;
/// How many contexts had ended when it did: another one may get the address of one that has.
thread_local std::uint64_t t_ended = 0;

}  // namespace

CUcontext Contexts::current() { return t_context; }

void Contexts::bind_thread() {
    device_.bind_thread();
    t_context = device_.context();
    // A capture of one guest thread must not forbid what the worker does for another one.
    auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (device_.api().cuThreadExchangeStreamCaptureMode != nullptr) {
        device_.api().cuThreadExchangeStreamCaptureMode(&mode);
    }
}

CUresult Contexts::enter(std::uint64_t context) {
    CUcontext wanted = device_.context();
    if (context != 0 && context != cuda::primary_context_handle(0)) {
        wanted = objects_.native_as<CUcontext>(context, HandleKind::kContext);
        if (wanted == nullptr) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
    }
    const std::uint64_t ended = ended_.load(std::memory_order_acquire);
    if (wanted == t_context && ended == t_ended) {
        return CUDA_SUCCESS;
    }
    t_ended = ended;
    const CUresult result = device_.api().cuCtxSetCurrent(wanted);
    t_context = result == CUDA_SUCCESS ? wanted : nullptr;
    return result;
}

CUresult Contexts::destroy(CUcontext context) {
    const CUresult result = device_.api().cuCtxDestroy_v2(context);
    ended_.fetch_add(1, std::memory_order_release);
    t_context = nullptr;
    enter(0);
    return result;
}

}  // namespace gantry::worker
