// Streams: what the worker keeps about them beside the object.
#include "host-daemon/worker/handlers.h"

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {

bool names_its_stream(const Call& call) {
    if (call.number() < cuda::kFirstOp) {
        switch (static_cast<gantry::wire::ControlOp>(call.number())) {
            case gantry::wire::ControlOp::kConfirm:
            case gantry::wire::ControlOp::kStageImage:
            case gantry::wire::ControlOp::kWriteDevice:
            case gantry::wire::ControlOp::kDrainOutput:
            case gantry::wire::ControlOp::kLookAtEvent:
            case gantry::wire::ControlOp::kWriteFromBulk:
            case gantry::wire::ControlOp::kReadToBulk:
            case gantry::wire::ControlOp::kLookAtBulk:
                return true;
            case gantry::wire::ControlOp::kReadDevice:
                return is_pollable(call);
            default:
                return false;
        }
    }
    switch (call.op()) {
        case cuda::Op::cuLaunchKernel:
        case cuda::Op::cuMemcpyAsync:
        case cuda::Op::cuMemsetD8Async:
        case cuda::Op::cuMemsetD16Async:
        case cuda::Op::cuMemsetD32Async:
        case cuda::Op::cuEventCreate:
        case cuda::Op::cuEventRecord:
        case cuda::Op::cuEventQuery:
        case cuda::Op::cuEventSynchronize:
        case cuda::Op::cuEventElapsedTime:
        case cuda::Op::cuEventElapsedTime_v2:
        case cuda::Op::cuEventDestroy_v2:
        case cuda::Op::cuStreamWaitEvent:
        case cuda::Op::cuStreamWriteValue32_v2:
        case cuda::Op::cuStreamWriteValue64_v2:
        case cuda::Op::cuStreamWaitValue32_v2:
        case cuda::Op::cuStreamWaitValue64_v2:
        case cuda::Op::cuStreamQuery:
        case cuda::Op::cuStreamSynchronize:
        case cuda::Op::cuCtxSynchronize:
        case cuda::Op::cuMemGetInfo_v2:
            return true;
        case cuda::Op::cuLaunchKernelEx: {
            const auto launch = call.arguments<cuda::wire_hand::LaunchExCall>();
            return launch && launch->attribute_count == 0;
        }
        default:
            return false;
    }
}

bool sets_stream_properties(const Call& call) {
    return call.number() >= cuda::kFirstOp && (call.op() == cuda::Op::cuStreamSetAttribute ||
                                               call.op() == cuda::Op::cuStreamCopyAttributes);
}

CUresult on_cuStreamDestroy_v2(CallContext& context, const wire::cuStreamDestroy_v2_call& destroy,
                               std::span<const std::byte> trailing, Reply& reply) {
    GuestProcess& process = as_call(context).process();
    if (const auto stream =
            process.objects.native_as<CUstream>(destroy.hStream, HandleKind::kStream);
        stream != nullptr) {
        process.leave_stream(stream);
    }
    return generated::on_cuStreamDestroy_v2(context, destroy, trailing, reply);
}

CUresult on_cuStreamQuery(CallContext& context, const wire::cuStreamQuery_call& query,
                          std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    CUstream stream = nullptr;
    const CUresult result = call.stream(query.hStream, &stream);
    return result == CUDA_SUCCESS ? call.process().query_stream(stream) : result;
}

}  // namespace gantry::worker
