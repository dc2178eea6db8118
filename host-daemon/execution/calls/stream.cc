// Streams: what the worker keeps about them beside the object.
#include "host-daemon/execution/dispatch/handlers.h"

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {

CUresult on_cuStreamDestroy_v2(CallContext& context, const wire::cuStreamDestroy_v2_call& destroy,
                               std::span<const std::byte> trailing, Reply& reply) {
    GuestProcess& process = as_call(context).process();
    if (const auto stream =
            process.objects.native_as<CUstream>(destroy.hStream, HandleKind::kStream);
        stream != nullptr) {
        process.streams.leave(stream);
    }
    const CUresult result = generated::on_cuStreamDestroy_v2(context, destroy, trailing, reply);
    if (result == CUDA_SUCCESS) {
        process.graphs.captures.end(destroy.hStream);  // The driver gave it up with its stream.
    }
    return result;
}

CUresult on_cuStreamQuery(CallContext& context, const wire::cuStreamQuery_call& query,
                          std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    CUstream stream = nullptr;
    const CUresult result = call.stream(query.hStream, &stream);
    return result == CUDA_SUCCESS ? call.process().streams.query(stream) : result;
}

CUresult on_cuStreamSynchronize(CallContext& context,
                                const wire::cuStreamSynchronize_call& synchronise,
                                std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    CUstream stream = nullptr;
    const CUresult result = call.stream(synchronise.hStream, &stream);
    return result == CUDA_SUCCESS ? call.process().streams.synchronise(stream, call.busy())
                                  : result;
}

}  // namespace gantry::worker
