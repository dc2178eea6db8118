// Stream capture. As long as no capture has begun, queries are answered here: libraries ask with
// every call whether a stream captures.
#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/objects.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/wire_structs.h"

namespace gantry::shim {
namespace {

std::atomic<int> g_captures{0};  // Begun and not ended.
constexpr std::uint32_t kMaxDependencies = 1024;

bool none_captures() { return g_captures.load(std::memory_order_acquire) == 0; }

struct CaptureInfo {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    std::uint64_t id = 0;
    CUgraph graph = nullptr;
    std::uint32_t count = 0;
};

/// Handles that cuStreamGetCaptureInfo returns a pointer to: the caller reads them before its
/// thread's next call.
struct Dependencies {
    std::uint64_t nodes[kMaxDependencies];
    CUgraphEdgeData edges[kMaxDependencies];
};
thread_local Dependencies* t_dependencies
    __attribute__((tls_model("initial-exec"))) = nullptr;

CUresult ask(CUstream stream, CaptureInfo* out) {
    if (!is_stream(stream)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (none_captures()) {
        return CUDA_SUCCESS;
    }
    if (t_dependencies == nullptr) {
        t_dependencies = static_cast<Dependencies*>(std::calloc(1, sizeof(Dependencies)));
        if (t_dependencies == nullptr) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    constexpr std::uint32_t kBytes = kMaxDependencies * (8 + sizeof(CUgraphEdgeData));
    auto* bytes = static_cast<std::byte*>(std::malloc(kBytes));
    if (bytes == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const cuda::wire::cuStreamGetCaptureInfo_v3_call arguments{bits(stream), kMaxDependencies, 0};
    cuda::wire::cuStreamGetCaptureInfo_v3_reply reply{};
    std::uint32_t got = 0;
    const CUresult result =
        session::call(cuda::Op::cuStreamGetCaptureInfo_v3, &arguments, sizeof(arguments), nullptr,
                      0, &reply, sizeof(reply), bytes, kBytes, &got);
    const std::uint64_t needed =
        static_cast<std::uint64_t>(reply.count) * (8 + sizeof(CUgraphEdgeData));
    if (result == CUDA_SUCCESS) {
        out->status = static_cast<CUstreamCaptureStatus>(reply.status);
        out->id = reply.id;
        out->graph = reinterpret_cast<CUgraph>(reply.graph);
        if (reply.count <= kMaxDependencies && got >= needed) {
            out->count = reply.count;
            std::memcpy(t_dependencies->nodes, bytes, reply.count * 8ull);
            std::memcpy(t_dependencies->edges, bytes + reply.count * 8ull,
                        reply.count * sizeof(CUgraphEdgeData));
        }
    }
    std::free(bytes);
    return result;
}

CUresult begin(CUstream stream, CUstreamCaptureMode mode) {
    if (bits(stream) <= 1) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (!is_stream(stream)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (static_cast<unsigned>(mode) > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // Counted first: another thread must not take a capturing stream for an idle one.
    g_captures.fetch_add(1, std::memory_order_acq_rel);
    const cuda::wire::cuStreamBeginCapture_v2_call arguments{bits(stream),
                                                             static_cast<std::uint32_t>(mode), 0};
    const CUresult result = call_status(cuda::Op::cuStreamBeginCapture_v2, arguments);
    if (result != CUDA_SUCCESS) {
        g_captures.fetch_sub(1, std::memory_order_acq_rel);
    }
    return result;
}

}  // namespace

bool captures_open() noexcept { return !none_captures(); }

}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuStreamBeginCapture(CUstream hStream) noexcept {
    return begin(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) noexcept {
    return begin(hStream, mode);
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) noexcept {
    if (phGraph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_stream(hStream)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (none_captures()) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    const cuda::wire::cuStreamEndCapture_call arguments{bits(hStream),
                                                        session::mint(HandleKind::kGraph)};
    const CUresult result = call_status(cuda::Op::cuStreamEndCapture, arguments);
    // Whatever the result, a stream that was capturing does not any more; one that was not
    // (ILLEGAL_STATE) has counted nothing.
    if (result != CUDA_ERROR_ILLEGAL_STATE && result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
        result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED) {
        g_captures.fetch_sub(1, std::memory_order_acq_rel);
    }
    *phGraph = result == CUDA_SUCCESS ? reinterpret_cast<CUgraph>(arguments.graph) : nullptr;
    return result;
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) noexcept {
    if (captureStatus == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_stream(hStream)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
    if (none_captures()) {
        return CUDA_SUCCESS;
    }
    cuda::wire::cuStreamIsCapturing_reply reply{};
    const CUresult result =
        call_reply(cuda::Op::cuStreamIsCapturing,
                   cuda::wire::cuStreamIsCapturing_call{bits(hStream)}, &reply);
    if (result == CUDA_SUCCESS) {
        *captureStatus = static_cast<CUstreamCaptureStatus>(reply.captureStatus);
    }
    return result;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                   cuuint64_t* id_out, CUgraph* graph_out,
                                   const CUgraphNode** dependencies_out,
                                   const CUgraphEdgeData** edgeData_out,
                                   size_t* numDependencies_out) noexcept {
    if (captureStatus_out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CaptureInfo info;
    if (const CUresult result = ask(hStream, &info); result != CUDA_SUCCESS) {
        return result;
    }
    *captureStatus_out = info.status;
    if (info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        return CUDA_SUCCESS;
    }
    if (id_out != nullptr) {
        *id_out = info.id;
    }
    if (graph_out != nullptr) {
        *graph_out = info.graph;
    }
    if (dependencies_out != nullptr) {
        *dependencies_out = reinterpret_cast<const CUgraphNode*>(t_dependencies->nodes);
    }
    if (edgeData_out != nullptr) {
        *edgeData_out = t_dependencies->edges;
    }
    if (numDependencies_out != nullptr) {
        *numDependencies_out = info.count;
    }
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                   cuuint64_t* id_out, CUgraph* graph_out,
                                   const CUgraphNode** dependencies_out,
                                   size_t* numDependencies_out) noexcept {
    return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, graph_out,
                                     dependencies_out, nullptr, numDependencies_out);
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                cuuint64_t* id_out) noexcept {
    return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, nullptr, nullptr, nullptr,
                                     nullptr);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) noexcept {
    session::Thread* self = session::thread();
    if (mode == nullptr || self == nullptr ||
        static_cast<unsigned>(*mode) > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto before = static_cast<CUstreamCaptureMode>(self->capture_mode);
    self->capture_mode = static_cast<std::uint32_t>(*mode);
    *mode = before;
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
