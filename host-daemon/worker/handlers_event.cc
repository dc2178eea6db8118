// Event times that outlive a move: an event recorded before it keeps the time it had, because the
// event of the new worker was recorded anew.
#include "host-daemon/worker/handlers.h"

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

Call& as_call(CallContext& context) { return static_cast<Call&>(context); }

}  // namespace

CUresult on_cuEventRecord(CallContext& context, const wire::cuEventRecord_call& call,
                          std::span<const std::byte> trailing, Reply& reply) {
    if (!as_call(context).is_replay()) {
        as_call(context).process().event_times.forget(call.hEvent);
    }
    return generated::on_cuEventRecord(context, call, trailing, reply);
}

CUresult on_cuEventRecordWithFlags(CallContext& context,
                                   const wire::cuEventRecordWithFlags_call& call,
                                   std::span<const std::byte> trailing, Reply& reply) {
    if (!as_call(context).is_replay()) {
        as_call(context).process().event_times.forget(call.hEvent);
    }
    return generated::on_cuEventRecordWithFlags(context, call, trailing, reply);
}

CUresult on_cuEventElapsedTime(CallContext& context, const wire::cuEventElapsedTime_call& call,
                               std::span<const std::byte> trailing, Reply& reply) {
    const auto kept = as_call(context).process().event_times.between(call.hStart, call.hEnd);
    if (!kept) {
        return generated::on_cuEventElapsedTime(context, call, trailing, reply);
    }
    reply.put(wire::cuEventElapsedTime_reply{*kept, 0});
    return CUDA_SUCCESS;
}

CUresult on_cuEventElapsedTime_v2(CallContext& context,
                                  const wire::cuEventElapsedTime_v2_call& call,
                                  std::span<const std::byte> trailing, Reply& reply) {
    const auto kept = as_call(context).process().event_times.between(call.hStart, call.hEnd);
    if (!kept) {
        return generated::on_cuEventElapsedTime_v2(context, call, trailing, reply);
    }
    reply.put(wire::cuEventElapsedTime_v2_reply{*kept, 0});
    return CUDA_SUCCESS;
}

}  // namespace gantry::worker
