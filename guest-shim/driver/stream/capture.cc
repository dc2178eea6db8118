// Stream capture. As long as no capture has begun, queries are answered here: libraries ask with
// every call whether a stream captures.
#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/core/call_rules.h"
#include "guest-shim/driver/memory/graph_copy.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/cuda/gen/shim_marshal.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {

std::atomic<int> g_captures{0};

namespace {

bool none_captures() { return !captures_open(); }

/// What the next node of a stream depends on, as the application was told last.
struct Told {
    std::uint64_t stream;
    CUgraphNode* nodes;
    CUgraphEdgeData* edges;
    Told* next;
};

/// A capture that has begun here, and the handle that its graph has and will have.
struct OpenCapture {
    std::uint64_t stream;
    std::uint64_t id;  ///< The host's, as cuStreamGetCaptureInfo tells it; 0 until asked for.
    std::uint64_t graph;
    CUstreamCaptureMode mode;
    const session::Thread* thread;  ///< Who began it.
    bool is_given;                  ///< The graph was there before (cuStreamBeginCaptureToGraph).
    Told* told;                     ///< One for each stream that was asked about.
};
constexpr std::size_t kMostOpenCaptures = 64;
constexpr std::uint64_t kPerThreadStream = 2;  // CU_STREAM_PER_THREAD
session::FutexMutex g_open_mutex;
OpenCapture g_open[kMostOpenCaptures] GANTRY_GUARDED_BY(g_open_mutex);

/// The stream that each thread has for itself has one name for all.
bool is_capture_of(const OpenCapture& open, std::uint64_t stream) {
    return open.graph != 0 && open.stream == stream &&
           (stream != kPerThreadStream || open.thread == session::thread());
}

/// `given`: the graph that the capture adds to; 0: it makes one.
void open_capture(std::uint64_t stream, CUstreamCaptureMode mode, std::uint64_t given) {
    session::Guard guard(g_open_mutex);
    for (OpenCapture& open : g_open) {
        if (open.graph == 0) {
            const std::uint64_t graph = given != 0 ? given : session::mint(HandleKind::kGraph);
            open = {stream, 0, graph, mode, session::thread(), given != 0, nullptr};
            return;
        }
    }
}

void forget_told(Told* told) {
    while (told != nullptr) {
        Told* next = told->next;
        std::free(told->nodes);
        std::free(told->edges);
        std::free(told);
        told = next;
    }
}

/// A capture that was not begun as relaxed is ended by the thread that began it.
bool is_other_threads(std::uint64_t stream) {
    session::Guard guard(g_open_mutex);
    for (const OpenCapture& open : g_open) {
        if (is_capture_of(open, stream)) {
            return open.mode != CU_STREAM_CAPTURE_MODE_RELAXED && open.thread != session::thread();
        }
    }
    return false;
}

/// What a capture is to a potentially unsafe call of this thread.
bool forbids(const OpenCapture& open, const session::Thread& self) {
    const bool own = open.thread == &self && open.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global = open.mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        self.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    return open.graph != 0 && (own || global);
}

/// Makes the stream's capture invalid: a captured stream cannot be waited for, and who tries loses
/// the capture. False when the stream is not captured any more, as when it was destroyed.
bool spoil_capture(std::uint64_t stream) {
    const CUresult result =
        call_status(cuda::Op::cuStreamSynchronize, cuda::wire::cuStreamSynchronize_call{stream});
    return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
           result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

/// A stream's capture, which is over now.
OpenCapture close_capture(std::uint64_t stream) {
    session::Guard guard(g_open_mutex);
    for (OpenCapture& open : g_open) {
        if (is_capture_of(open, stream)) {
            OpenCapture closed = open;
            forget_told(closed.told);
            closed.told = nullptr;
            open = {};
            return closed;
        }
    }
    OpenCapture unknown{};
    unknown.graph = session::mint(HandleKind::kGraph);
    return unknown;
}

/// Makes the captures invalid that `concerns` names; 900 if there are any.
template <typename Concerns>
CUresult spoil_captures(Concerns concerns) {
    CUresult result = CUDA_SUCCESS;
    for (OpenCapture& slot : g_open) {
        g_open_mutex.lock();
        const OpenCapture open = slot;
        g_open_mutex.unlock();
        if (concerns(open) && spoil_capture(open.stream)) {
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

CUresult ask_host(std::uint64_t stream, cuda::wire::cuStreamGetCaptureInfo_v3_reply* reply) {
    const cuda::wire::cuStreamGetCaptureInfo_v3_call arguments{stream, 0, 0, 0, 0};
    return call_reply(cuda::Op::cuStreamGetCaptureInfo_v3, arguments, reply);
}

/// The graph of a capture by its id: streams that joined the capture share it. 0 if unknown.
std::uint64_t graph_of(std::uint64_t id) {
    for (OpenCapture& open : g_open) {
        session::Guard guard(g_open_mutex);
        cuda::wire::cuStreamGetCaptureInfo_v3_reply reply{};
        if (open.graph != 0 && open.id == 0 && ask_host(open.stream, &reply) == CUDA_SUCCESS) {
            open.id = reply.id;
        }
        if (open.graph != 0 && open.id == id) {
            return open.graph;
        }
    }
    return 0;
}

constexpr std::uint32_t kMostTold = 1u << 12;

/// Keeps what the host has told: node handles, then their edges' data.
CUresult keep_told(std::uint64_t graph, std::uint64_t stream, const std::byte* bytes,
                   std::uint32_t count, Told* out) {
    Told made{stream, nullptr, nullptr, nullptr};
    made.nodes = static_cast<CUgraphNode*>(std::calloc(count + 1u, sizeof(CUgraphNode)));
    made.edges = static_cast<CUgraphEdgeData*>(std::calloc(count + 1u, sizeof(CUgraphEdgeData)));
    auto* kept = static_cast<Told*>(std::calloc(1, sizeof(Told)));
    if (made.nodes == nullptr || made.edges == nullptr || kept == nullptr) {
        std::free(made.nodes);
        std::free(made.edges);
        std::free(kept);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    std::memcpy(made.nodes, bytes, count * sizeof(CUgraphNode));
    std::memcpy(made.edges, bytes + count * sizeof(CUgraphNode), count * sizeof(CUgraphEdgeData));
    *kept = made;
    session::Guard guard(g_open_mutex);
    for (OpenCapture& open : g_open) {
        if (open.graph != graph) {
            continue;
        }
        for (Told** at = &open.told; *at != nullptr; at = &(*at)->next) {
            if ((*at)->stream == stream) {
                Told* old = *at;
                *at = old->next;
                old->next = nullptr;
                forget_told(old);
                break;
            }
        }
        kept->next = open.told;
        open.told = kept;
        *out = made;
        return CUDA_SUCCESS;
    }
    forget_told(kept);
    return CUDA_ERROR_ILLEGAL_STATE;  // It has ended meanwhile.
}

/// Lets the host name the capture's graph, and the nodes that the stream's next one depends on.
CUresult name_nodes(std::uint64_t graph, std::uint64_t stream, Told* told, std::uint32_t* count) {
    constexpr std::uint32_t kBytes = kMostTold * (sizeof(CUgraphNode) + sizeof(CUgraphEdgeData));
    auto* bytes = static_cast<std::byte*>(std::malloc(kBytes));
    GANTRY_REFUSE_IF(bytes == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    const std::uint64_t names = session::mint_many(HandleKind::kGraphNode, kMostTold);
    const cuda::wire::cuStreamGetCaptureInfo_v3_call call{stream, graph, names, kMostTold, 0};
    cuda::wire::cuStreamGetCaptureInfo_v3_reply reply{};
    std::uint32_t got = 0;
    CUresult result = session::call(cuda::Op::cuStreamGetCaptureInfo_v3, &call, sizeof(call),
                                    nullptr, 0, &reply, sizeof(reply), bytes, kBytes, &got);
    if (result == CUDA_SUCCESS) {
        session::unmint(names, kMostTold, reply.new_handles_used);
        *count = reply.count;
        result = keep_told(graph, stream, bytes, reply.count, told);
    }
    std::free(bytes);
    return result;
}

/// `ask` begins it at the host. `given`: as open_capture has it.
template <typename Ask>
CUresult begin(CUstream stream, CUstreamCaptureMode mode, std::uint64_t given, Ask ask) {
    GANTRY_REFUSE_IF(bits(stream) <= 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    GANTRY_REFUSE_IF(!is_stream(stream), CUDA_ERROR_INVALID_HANDLE);
    GANTRY_REFUSE_IF(static_cast<unsigned>(mode) > CU_STREAM_CAPTURE_MODE_RELAXED,
                     CUDA_ERROR_INVALID_VALUE);
    if (bits(stream) == kPerThreadStream && session::shares_lane()) {
        return CUDA_ERROR_NOT_SUPPORTED;  // The other threads' work would be captured with it.
    }
    // Counted first: another thread must not take a capturing stream for an idle one.
    g_captures.fetch_add(1, std::memory_order_acq_rel);
    const CUresult result = ask();
    if (result == CUDA_SUCCESS) {
        open_capture(bits(stream), mode, given);
    } else {
        g_captures.fetch_sub(1, std::memory_order_acq_rel);
    }
    return result;
}

CUresult begin(CUstream stream, CUstreamCaptureMode mode) {
    return begin(stream, mode, 0, [&] { return marshal::cuStreamBeginCapture_v2(stream, mode); });
}

}  // namespace

CUresult refuse_in_capture() noexcept {
    const session::Thread* self = session::thread();
    if (!captures_open() || self == nullptr ||
        self->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    return spoil_captures([&](const OpenCapture& open) { return forbids(open, *self); });
}

CUresult refuse_context_in_capture() noexcept {
    const std::uint64_t context = session::current_context();
    return spoil_captures([&](const OpenCapture& open) {
        const Stream* stream = g_streams.find(open.stream);
        return open.graph != 0 && (stream == nullptr || stream->context == context);
    });
}

void abandon_capture(std::uint64_t stream) noexcept {
    session::Guard guard(g_open_mutex);
    for (OpenCapture& open : g_open) {
        if (is_capture_of(open, stream)) {
            forget_told(open.told);
            open = {};
            g_captures.fetch_sub(1, std::memory_order_acq_rel);
        }
    }
}

CUresult settled_in_capture(cuda::Op op, CUresult result) noexcept {
    const cuda::OpInfo& info = cuda::op_info(op);
    const bool queues =
        info.op_class == cuda::OpClass::kAsync || info.op_class == cuda::OpClass::kBulk ||
        info.effect == cuda::OpEffect::kWrites || info.effect == cuda::OpEffect::kLaunches;
    // Of a call that has failed nothing is left for a later one either.
    const CUresult told = queues ? settle(CUDA_SUCCESS) : CUDA_SUCCESS;
    return result != CUDA_SUCCESS ? result : told;
}

bool is_captured(CUstream stream) noexcept {
    cuda::wire::cuStreamIsCapturing_reply reply{};
    return !none_captures() && bits(stream) > 1 &&
           call_reply(cuda::Op::cuStreamIsCapturing,
                      cuda::wire::cuStreamIsCapturing_call{bits(stream)}, &reply) == CUDA_SUCCESS &&
           reply.captureStatus != CU_STREAM_CAPTURE_STATUS_NONE;
}

std::uint64_t capture_graph(CUstream stream) noexcept {
    cuda::wire::cuStreamGetCaptureInfo_v3_reply reply{};
    return ask_host(bits(stream), &reply) == CUDA_SUCCESS &&
                   reply.status == CU_STREAM_CAPTURE_STATUS_ACTIVE
               ? graph_of(reply.id)
               : 0;
}

}  // namespace gantry::shim

namespace gantry::shim::rules {

Answer nothing_captures(CUstream stream, CUstreamCaptureStatus* status) noexcept {
    if (status == nullptr || !is_stream(stream)) {
        return {};
    }
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return none_captures() ? Answer(CUDA_SUCCESS) : Answer();
}

}  // namespace gantry::shim::rules

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuStreamBeginCapture(CUstream hStream) noexcept {
    return begin(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) noexcept {
    return begin(hStream, mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                     const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                     CUstreamCaptureMode mode) noexcept {
    return begin(hStream, mode, bits(hGraph), [&] {
        return marshal::cuStreamBeginCaptureToGraph(hStream, hGraph, dependencies, dependencyData,
                                                    numDependencies, mode);
    });
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) noexcept {
    GANTRY_REFUSE_IF(phGraph == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(!is_stream(hStream), CUDA_ERROR_INVALID_HANDLE);
    GANTRY_REFUSE_IF(none_captures(), CUDA_ERROR_ILLEGAL_STATE);
    *phGraph = nullptr;
    GANTRY_REFUSE_IF(is_other_threads(bits(hStream)), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    const OpenCapture closed = close_capture(bits(hStream));
    const cuda::wire::cuStreamEndCapture_call arguments{bits(hStream), closed.graph,
                                                        closed.is_given ? 1u : 0u, 0};
    const CUresult result = call_status(cuda::Op::cuStreamEndCapture, arguments);
    if (result != CUDA_SUCCESS && !closed.is_given) {
        disown_copies(arguments.graph);
    }
    // Whatever the result, a stream that was capturing does not any more; one that was not
    // (ILLEGAL_STATE) has counted nothing.
    if (result != CUDA_ERROR_ILLEGAL_STATE && result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
        result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED) {
        g_captures.fetch_sub(1, std::memory_order_acq_rel);
    }
    *phGraph = result == CUDA_SUCCESS ? reinterpret_cast<CUgraph>(arguments.graph) : nullptr;
    return result;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                   cuuint64_t* id_out, CUgraph* graph_out,
                                   const CUgraphNode** dependencies_out,
                                   const CUgraphEdgeData** edgeData_out,
                                   size_t* numDependencies_out) noexcept {
    GANTRY_REFUSE_IF(captureStatus_out == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(!is_stream(hStream), CUDA_ERROR_INVALID_HANDLE);
    *captureStatus_out = CU_STREAM_CAPTURE_STATUS_NONE;
    if (none_captures()) {
        return CUDA_SUCCESS;
    }
    cuda::wire::cuStreamGetCaptureInfo_v3_reply reply{};
    if (const CUresult result = ask_host(bits(hStream), &reply); result != CUDA_SUCCESS) {
        return result;
    }
    *captureStatus_out = static_cast<CUstreamCaptureStatus>(reply.status);
    if (*captureStatus_out != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        return CUDA_SUCCESS;
    }
    if (id_out != nullptr) {
        *id_out = reply.id;
    }
    const bool wants_nodes =
        dependencies_out != nullptr || edgeData_out != nullptr || numDependencies_out != nullptr;
    if (graph_out == nullptr && !wants_nodes) {
        return CUDA_SUCCESS;
    }
    const std::uint64_t graph = graph_of(reply.id);
    GANTRY_REFUSE_IF(graph == 0, CUDA_ERROR_NOT_SUPPORTED);
    Told told{};
    std::uint32_t count = 0;
    if (const CUresult result = name_nodes(graph, bits(hStream), &told, &count);
        result != CUDA_SUCCESS) {
        return result;
    }
    if (graph_out != nullptr) {
        *graph_out = reinterpret_cast<CUgraph>(graph);
    }
    if (dependencies_out != nullptr) {
        *dependencies_out = told.nodes;
    }
    if (edgeData_out != nullptr) {
        *edgeData_out = told.edges;
    }
    if (numDependencies_out != nullptr) {
        *numDependencies_out = count;
    }
    // The nodes are named all the same: an application may ask again, for the edges as well.
    constexpr CUgraphEdgeData kPlain{};
    for (std::uint32_t i = 0; dependencies_out != nullptr && edgeData_out == nullptr && i < count;
         ++i) {
        GANTRY_REFUSE_IF(std::memcmp(&told.edges[i], &kPlain, sizeof(kPlain)) != 0,
                         CUDA_ERROR_LOSSY_QUERY);
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

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode* dependencies,
                                              const CUgraphEdgeData* dependencyData,
                                              size_t numDependencies, unsigned int flags) noexcept {
    GANTRY_REFUSE_IF(!is_stream(hStream), CUDA_ERROR_INVALID_HANDLE);
    GANTRY_REFUSE_IF(flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES ||
                         (numDependencies != 0 && dependencies == nullptr),
                     CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(none_captures(), CUDA_ERROR_ILLEGAL_STATE);
    return marshal::cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, dependencyData,
                                                         numDependencies, flags);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode* dependencies,
                                           size_t numDependencies, unsigned int flags) noexcept {
    return cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, nullptr, numDependencies,
                                                flags);
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
