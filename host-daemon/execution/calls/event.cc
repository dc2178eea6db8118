// Events. A record is not kept as a command: what outlives a move is its time (event_times.h), and
// an event that was never recorded answers queries and waits as one that is long past.
#include "host-daemon/execution/dispatch/handlers.h"

#include "host-daemon/execution/base/log.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

std::uint64_t handle_of(Call& call, CUevent event) {
    return call.process().objects.handle_of(reinterpret_cast<std::uint64_t>(event),
                                            HandleKind::kEvent);
}

/// Event and stream of a record; forgets the event's earlier time.
CUresult prepare_record(Call& call, std::uint64_t handle, std::uint64_t stream_handle,
                        CUevent* event, CUstream* stream) {
    *event = call.process().objects.native_as<CUevent>(handle, HandleKind::kEvent);
    if (*event == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    call.process().streams.event_times.forget(handle);
    return call.stream(stream_handle, stream);
}

/// A record in a capture is none of the event's; what others may record, the guest asks about.
CUresult note_record(Call& call, std::uint64_t handle, CUevent event, CUstream stream,
                     CUresult result) {
    EventBoard& board = call.process().channel.event_board;
    if (result == CUDA_SUCCESS && !call.process().graphs.captures.any() &&
        !call.process().shares.events.is_shared(handle)) {
        board.recorded(handle, call.header().position, event, stream);
    } else {
        board.forget(handle);
    }
    return result;
}

}  // namespace

/// Where the driver cannot make an event that processes share, it is sound as one process's.
CUresult on_cuEventCreate(CallContext& context, const wire::cuEventCreate_call& create,
                          std::span<const std::byte> trailing, Reply& reply) {
    CUresult result = generated::on_cuEventCreate(context, create, trailing, reply);
    constexpr std::uint32_t kShared = CU_EVENT_INTERPROCESS;
    if (result != CUDA_SUCCESS && (create.Flags & kShared) != 0 &&
        as_call(context).process().errors.sticky() == 0) {
        log_limited("the driver makes no event that processes can share: error %d", result);
        wire::cuEventCreate_call own = create;
        own.Flags &= ~kShared;
        result = generated::on_cuEventCreate(context, own, trailing, reply);
    }
    return result;
}

CUresult on_cuEventRecord(CallContext& context, const wire::cuEventRecord_call& record,
                          std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    CUevent event = nullptr;
    CUstream stream = nullptr;
    const CUresult result = prepare_record(call, record.hEvent, record.hStream, &event, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return note_record(call, record.hEvent, event, stream, call.api().cuEventRecord(event, stream));
}

CUresult on_cuEventRecordWithFlags(CallContext& context,
                                   const wire::cuEventRecordWithFlags_call& record,
                                   std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    if (call.api().cuEventRecordWithFlags == nullptr) {
        return call.unsupported(call.op());
    }
    CUevent event = nullptr;
    CUstream stream = nullptr;
    const CUresult result = prepare_record(call, record.hEvent, record.hStream, &event, &stream);
    return result == CUDA_SUCCESS ? call.api().cuEventRecordWithFlags(event, stream, record.flags)
                                  : result;
}

CUresult on_cuEventDestroy_v2(CallContext& context, const wire::cuEventDestroy_v2_call& destroy,
                              std::span<const std::byte> trailing, Reply& reply) {
    GuestProcess& process = as_call(context).process();
    process.channel.event_board.forget(destroy.hEvent);
    const CUresult result = generated::on_cuEventDestroy_v2(context, destroy, trailing, reply);
    if (result == CUDA_SUCCESS) {
        process.shares.events.ended(destroy.hEvent);
    }
    return result;
}

namespace served {

CUresult cuCtxRecordEvent(CallContext& context, CUcontext of, CUevent event) {
    Call& call = as_call(context);
    if (call.api().cuCtxRecordEvent == nullptr) {
        return call.unsupported(call.op());
    }
    call.process().streams.event_times.forget(handle_of(call, event));
    return call.api().cuCtxRecordEvent(of, event);
}

CUresult cuEventElapsedTime(CallContext& context, float* milliseconds, CUevent start, CUevent end) {
    Call& call = as_call(context);
    return call.process().streams.event_times.between({handle_of(call, start), start},
                                                      {handle_of(call, end), end}, milliseconds);
}

CUresult cuEventElapsedTime_v2(CallContext& context, float* milliseconds, CUevent start,
                               CUevent end) {
    return cuEventElapsedTime(context, milliseconds, start, end);
}

}  // namespace served

}  // namespace gantry::worker
