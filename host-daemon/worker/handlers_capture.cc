// What a guest asks about a capture that is open.
#include "host-daemon/worker/handlers.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {

/// The capture's state, and its id. Its graph has the handle that the guest
/// chose for it, and its nodes get theirs when the guest lists them after the capture.
CUresult on_cuStreamGetCaptureInfo_v3(CallContext& context,
                                      const wire::cuStreamGetCaptureInfo_v3_call& wanted,
                                      std::span<const std::byte>, Reply& reply) {
    Call& call = static_cast<Call&>(context);
    const driver::DriverApi& api = call.api();
    CUstream stream = nullptr;
    if (const CUresult result = call.stream(wanted.stream, &stream); result != CUDA_SUCCESS) {
        return result;
    }
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (api.cuStreamGetCaptureInfo_v3 != nullptr) {
        result = api.cuStreamGetCaptureInfo_v3(stream, &status, &id, nullptr, nullptr, nullptr,
                                               nullptr);
    } else if (api.cuStreamGetCaptureInfo_v2 != nullptr) {
        result = api.cuStreamGetCaptureInfo_v2(stream, &status, &id, nullptr, nullptr, nullptr);
    } else {
        return call.unsupported(call.op());
    }
    wire::cuStreamGetCaptureInfo_v3_reply answer{};
    answer.id = id;
    answer.status = static_cast<std::uint32_t>(status);
    reply.put(answer);
    return result;
}

}  // namespace gantry::worker
