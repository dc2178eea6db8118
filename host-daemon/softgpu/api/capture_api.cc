// Stream capture, and memory operations in streams.
#include "host-daemon/softgpu/api/graph_common.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/graph/capture.h"
#include "host-daemon/softgpu/graph/make_operation.h"
#include "host-daemon/softgpu/streams/enqueue.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::CaptureState;
using softgpu::Graph;
using softgpu::GraphEdge;
using softgpu::GraphLock;
using softgpu::Stream;

bool mode_valid(CUstreamCaptureMode mode) {
    return mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED;
}

struct InfoOut {
    CUstreamCaptureStatus* status = nullptr;
    cuuint64_t* id = nullptr;
    CUgraph* graph = nullptr;
    const CUgraphNode** dependencies = nullptr;
    const CUgraphEdgeData** edges = nullptr;
    size_t* count = nullptr;
};

CUresult capture_info(CUstream handle, const InfoOut& out) {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, handle);
    GANTRY_REFUSE_IF(out.status == nullptr, CUDA_ERROR_INVALID_VALUE);
    *out.status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!softgpu::capturing(stream)) {
        // Asking spoils nothing.
        return softgpu::captures_beside(stream).empty() ? CUDA_SUCCESS
                                                        : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    const GraphLock lock;
    const auto capture = softgpu::capture_of(lock, stream);
    if (capture == nullptr) {
        return CUDA_SUCCESS;
    }
    *out.status =
        capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (capture->invalid) {
        return CUDA_SUCCESS;
    }
    if (out.id != nullptr) {
        *out.id = capture->id;
    }
    if (out.graph != nullptr) {
        if (capture->graph->handle() == nullptr) {
            softgpu::publish<CUgraph>(capture->graph);
        }
        *out.graph = capture->graph->as<CUgraph>();
    }
    capture->tip_handles.clear();
    capture->tip_edges.clear();
    for (const GraphEdge& edge : capture->tips[stream]) {
        capture->tip_handles.push_back(edge.from->as<CUgraphNode>());
        capture->tip_edges.push_back(edge.data);
    }
    if (out.dependencies != nullptr) {
        *out.dependencies = capture->tip_handles.data();
    }
    if (out.edges != nullptr) {
        *out.edges = capture->tip_edges.data();
    }
    if (out.count != nullptr) {
        *out.count = capture->tip_handles.size();
    }
    return CUDA_SUCCESS;
}

CUresult memory_step(CUstream handle, const CUstreamBatchMemOpParams& step) {
    CUstreamBatchMemOpParams copy = step;
    return cuStreamBatchMemOp_v2(handle, 1, &copy, 0);
}

CUstreamBatchMemOpParams wait_step(CUstreamBatchMemOpType type, CUdeviceptr address,
                                   cuuint64_t value, unsigned flags) {
    CUstreamBatchMemOpParams step{};
    step.waitValue.operation = type;
    step.waitValue.address = address;
    step.waitValue.value64 = value;
    step.waitValue.flags = flags;
    return step;
}

}  // namespace

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    return mode_valid(mode) ? softgpu::begin_capture(GraphLock(), stream, mode, nullptr, {})
                            : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamBeginCapture(CUstream hStream) noexcept {
    return cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                     const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                     CUstreamCaptureMode mode) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    const auto graph = softgpu::find<Graph>(hGraph);
    GANTRY_REFUSE_IF(graph == nullptr || !mode_valid(mode), CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    std::vector<GraphEdge> tips;
    GANTRY_CU(softgpu::resolve_edges(*graph, dependencies, dependencyData, numDependencies, tips));
    return softgpu::begin_capture(lock, stream, mode, graph, std::move(tips));
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    GANTRY_REFUSE_IF(phGraph == nullptr, CUDA_ERROR_INVALID_VALUE);
    *phGraph = nullptr;
    std::shared_ptr<Graph> graph;
    GANTRY_CU(softgpu::end_capture(stream, graph));
    *phGraph = graph->handle() != nullptr ? graph->as<CUgraph>() : softgpu::publish<CUgraph>(graph);
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) noexcept {
    InfoOut out;
    out.status = captureStatus;
    return capture_info(hStream, out);
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                cuuint64_t* id_out) noexcept {
    InfoOut out;
    out.status = captureStatus_out;
    out.id = id_out;
    return capture_info(hStream, out);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                   cuuint64_t* id_out, CUgraph* graph_out,
                                   const CUgraphNode** dependencies_out,
                                   size_t* numDependencies_out) noexcept {
    return capture_info(hStream, {captureStatus_out, id_out, graph_out, dependencies_out, nullptr,
                                  numDependencies_out});
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                   cuuint64_t* id_out, CUgraph* graph_out,
                                   const CUgraphNode** dependencies_out,
                                   const CUgraphEdgeData** edgeData_out,
                                   size_t* numDependencies_out) noexcept {
    return capture_info(hStream, {captureStatus_out, id_out, graph_out, dependencies_out,
                                  edgeData_out, numDependencies_out});
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode* dependencies,
                                              const CUgraphEdgeData* dependencyData,
                                              size_t numDependencies, unsigned int flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    const GraphLock lock;
    const auto capture = softgpu::capture_of(lock, stream);
    GANTRY_REFUSE_IF(capture == nullptr, CUDA_ERROR_ILLEGAL_STATE);
    GANTRY_REFUSE_IF(capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    GANTRY_REFUSE_IF(flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES, CUDA_ERROR_INVALID_VALUE);
    std::vector<GraphEdge> tips;
    if (flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES) {
        tips = capture->tips[stream];
    }
    GANTRY_CU(softgpu::resolve_edges(*capture->graph, dependencies, dependencyData, numDependencies,
                                     tips));
    capture->tips[stream] = std::move(tips);
    return CUDA_SUCCESS;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode* dependencies,
                                           size_t numDependencies, unsigned int flags) noexcept {
    return cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, nullptr, numDependencies,
                                                flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) noexcept {
    GANTRY_REFUSE_IF(mode == nullptr || !mode_valid(*mode), CUDA_ERROR_INVALID_VALUE);
    std::swap(*mode, softgpu::thread_state().capture_mode);
    return CUDA_SUCCESS;
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                               CUstreamBatchMemOpParams* paramArray, unsigned int flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(found, context, stream);
    GANTRY_REFUSE_IF(count > 256 || flags != 0, CUDA_ERROR_INVALID_VALUE);
    softgpu::OperationPtr operation;
    GANTRY_CU(softgpu::make_batch_operation({context->as<CUcontext>(), count, paramArray, flags},
                                            operation));
    return softgpu::enqueue(found, std::move(operation));
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                 unsigned int flags) noexcept {
    return memory_step(stream, wait_step(CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags));
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                 unsigned int flags) noexcept {
    return memory_step(stream, wait_step(CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags));
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                unsigned int flags) noexcept {
    return memory_step(stream, wait_step(CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags));
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                unsigned int flags) noexcept {
    return memory_step(stream, wait_step(CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags));
}

}  // namespace gantry::cuda_impl
