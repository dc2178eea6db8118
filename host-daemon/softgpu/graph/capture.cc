#include "host-daemon/softgpu/graph/capture.h"

#include <algorithm>
#include <set>

#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/streams/enqueue.h"
#include "host-daemon/softgpu/streams/stream.h"

namespace gantry::softgpu {
namespace {

std::atomic<int> g_active_captures{0};

/// Every open capture. Guarded by a GraphLock; never destroyed: threads may outlive exit().
std::vector<std::shared_ptr<CaptureState>>& open_captures() {
    static auto* captures = new std::vector<std::shared_ptr<CaptureState>>;
    return *captures;
}

std::uint64_t next_capture_id() {
    static std::atomic<std::uint64_t> next{1};
    return next.fetch_add(1);
}

void merge(std::vector<GraphEdge>& into, const std::vector<GraphEdge>& from) {
    for (const GraphEdge& edge : from) {
        const bool known = std::any_of(into.begin(), into.end(), [&](const GraphEdge& each) {
            return each.from == edge.from;
        });
        if (!known) {
            into.push_back(edge);
        }
    }
}

std::vector<GraphEdge> edges_from(const std::vector<std::shared_ptr<GraphNode>>& nodes) {
    std::vector<GraphEdge> edges;
    for (const auto& node : nodes) {
        edges.push_back({node, {}});
    }
    return edges;
}

void join(const std::shared_ptr<CaptureState>& capture, const std::shared_ptr<Stream>& stream,
          std::vector<GraphEdge> tips) {
    stream->capture = capture;
    capture->tips[stream] = std::move(tips);
    stream->capturing.store(true, std::memory_order_release);
}

void finish(const std::shared_ptr<CaptureState>& capture) {
    for (const auto& [stream, tips] : capture->tips) {
        stream->capture.reset();
        stream->capturing.store(false, std::memory_order_release);
    }
    capture->tips.clear();
    if (std::erase(open_captures(), capture) != 0) {
        g_active_captures.fetch_sub(1);
    }
}

/// True when each other stream's last nodes lead into the origin's.
bool all_joined(const CaptureState& capture, const std::shared_ptr<Stream>& origin) {
    std::set<const GraphNode*> reached;
    std::vector<const GraphNode*> open;
    for (const GraphEdge& edge : capture.tips.at(origin)) {
        open.push_back(edge.from.get());
    }
    while (!open.empty()) {
        const GraphNode* node = open.back();
        open.pop_back();
        if (!reached.insert(node).second) {
            continue;
        }
        for (const GraphEdge& edge : node->needs) {
            open.push_back(edge.from.get());
        }
    }
    for (const auto& [stream, tips] : capture.tips) {
        for (const GraphEdge& edge : tips) {
            if (!reached.contains(edge.from.get())) {
                return false;
            }
        }
    }
    return true;
}

/// The nodes that a captured record of an event stands for.
struct CapturedNodes final : CapturedRecord {
    std::weak_ptr<CaptureState> capture;
    std::vector<std::shared_ptr<GraphNode>> nodes;
};

/// Null unless a capture recorded the event last.
std::shared_ptr<const CapturedNodes> captured_nodes(const Event& event) {
    return std::static_pointer_cast<const CapturedNodes>(event.captured());
}

/// The capture that recorded the event last, while that is open; else null.
std::shared_ptr<CaptureState> capture_of_event(const Event& event) {
    const auto record = captured_nodes(event);
    return record != nullptr ? record->capture.lock() : nullptr;
}

CUresult add_to_capture(const GraphLock& lock, const std::shared_ptr<Stream>& stream,
                        OperationPtr operation) {
    const auto capture = capture_of(lock, stream);
    GANTRY_REFUSE_IF(capture == nullptr || capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    std::vector<GraphEdge>& tips = capture->tips[stream];
    const auto node = capture->graph->add(lock, std::move(operation), tips);
    tips = {{node, {}}};
    return CUDA_SUCCESS;
}

class GraphCaptures final : public CaptureBuilder {
public:
    CUresult add(const std::shared_ptr<Stream>& stream, OperationPtr operation) override {
        const GraphLock lock;
        return add_to_capture(lock, stream, std::move(operation));
    }
    void invalidate(const std::shared_ptr<Stream>& stream) override {
        const GraphLock lock;
        if (const auto capture = capture_of(lock, stream)) {
            capture->invalid = true;
        }
    }
    CUresult refuse_legacy(const std::shared_ptr<Stream>& legacy) override {
        const auto beside = captures_beside(legacy);
        if (beside.empty()) {
            return CUDA_SUCCESS;
        }
        const GraphLock lock;
        for (const auto& capture : beside) {
            capture->invalid = true;
        }
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
};

}  // namespace

CaptureBuilder& graph_captures() {
    static auto* captures = new GraphCaptures;  // Driver threads may outlive exit().
    return *captures;
}

std::shared_ptr<CaptureState> capture_of(const GraphLock&, const std::shared_ptr<Stream>& stream) {
    return std::static_pointer_cast<CaptureState>(stream->capture);
}

CUresult capture_event_record(const std::shared_ptr<Stream>& stream,
                              const std::shared_ptr<Event>& event, unsigned flags) {
    if ((flags & CU_EVENT_RECORD_EXTERNAL) != 0) {
        auto operation = std::make_shared<EventOperation>(CU_GRAPH_NODE_TYPE_EVENT_RECORD);
        operation->event = event;
        return capture_builder().add(stream, std::move(operation));
    }
    const GraphLock lock;
    const auto capture = capture_of(lock, stream);
    GANTRY_REFUSE_IF(capture == nullptr || capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    auto record = std::make_shared<CapturedNodes>();
    record->capture = capture;
    for (const GraphEdge& edge : capture->tips[stream]) {
        record->nodes.push_back(edge.from);
    }
    event->set_captured(std::move(record));
    return CUDA_SUCCESS;
}

CUresult capture_event_wait(const std::shared_ptr<Stream>& stream,
                            const std::shared_ptr<Event>& event, unsigned flags, bool& handled) {
    handled = false;
    if (g_active_captures.load() == 0) {
        return CUDA_SUCCESS;
    }
    const GraphLock lock;
    const auto record = captured_nodes(*event);
    const auto of_event = record != nullptr ? record->capture.lock() : nullptr;
    const auto of_stream = capture_of(lock, stream);
    if (of_event == nullptr && of_stream == nullptr) {
        return CUDA_SUCCESS;
    }
    handled = true;
    if (of_stream != nullptr && (flags & CU_EVENT_WAIT_EXTERNAL) != 0) {
        auto operation = std::make_shared<EventOperation>(CU_GRAPH_NODE_TYPE_WAIT_EVENT);
        operation->event = event;
        return add_to_capture(lock, stream, std::move(operation));
    }
    if (of_event == nullptr) {
        of_stream->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    GANTRY_REFUSE_IF(of_event->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (stream->legacy) {
        of_event->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (of_stream == nullptr) {
        join(of_event, stream, edges_from(record->nodes));
        return CUDA_SUCCESS;
    }
    if (of_stream != of_event) {
        of_stream->invalid = true;
        of_event->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    merge(of_stream->tips[stream], edges_from(record->nodes));
    return CUDA_SUCCESS;
}

CUresult begin_capture(const GraphLock& lock, const std::shared_ptr<Stream>& stream,
                       CUstreamCaptureMode mode, std::shared_ptr<Graph> graph,
                       std::vector<GraphEdge> tips) {
    GANTRY_REFUSE_IF(stream->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    GANTRY_REFUSE_IF(capture_of(lock, stream) != nullptr, CUDA_ERROR_ILLEGAL_STATE);
    auto capture = std::make_shared<CaptureState>();
    capture->id = next_capture_id();
    capture->mode = mode;
    capture->to_existing_graph = graph != nullptr;
    capture->graph = graph != nullptr ? std::move(graph) : std::make_shared<Graph>();
    capture->origin = stream;
    capture->thread = &thread_state();
    open_captures().push_back(capture);
    g_active_captures.fetch_add(1);
    join(capture, stream, std::move(tips));
    return CUDA_SUCCESS;
}

CUresult end_capture(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>& graph) {
    const GraphLock lock;
    const auto capture = capture_of(lock, stream);
    GANTRY_REFUSE_IF(capture == nullptr, CUDA_ERROR_ILLEGAL_STATE);
    if (capture->origin.lock() != stream) {
        capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    GANTRY_REFUSE_IF(
        capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != &thread_state(),
        CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    const bool joined = all_joined(*capture, stream);
    finish(capture);
    GANTRY_REFUSE_IF(capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    GANTRY_REFUSE_IF(!joined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    graph = capture->graph;
    return CUDA_SUCCESS;
}

void abandon_capture(const std::shared_ptr<Stream>& stream) {
    if (!capturing(stream)) {
        return;
    }
    const GraphLock lock;
    const auto capture = capture_of(lock, stream);
    // A stream that was only drawn in leaves its last nodes behind: whether they were joined is
    // asked when the capture ends.
    if (capture != nullptr && capture->origin.lock() == stream) {
        capture->invalid = true;
        finish(capture);
    }
}

void abandon_captures_of(const Context& context) {
    const GraphLock lock;
    const auto captures = open_captures();
    for (const auto& capture : captures) {
        const auto origin = capture->origin.lock();
        if (origin == nullptr || origin->context().get() == &context) {
            capture->invalid = true;
            finish(capture);
        }
    }
}

CUresult refuse_during_capture() {
    if (g_active_captures.load(std::memory_order_relaxed) == 0) {
        return CUDA_SUCCESS;
    }
    ThreadState& mine = thread_state();
    if (mine.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    const GraphLock lock;
    bool refused = false;
    for (const auto& capture : open_captures()) {
        const bool own =
            capture->thread == &mine && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        const bool global = mine.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                            capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (own || global) {
            capture->invalid = true;
            refused = true;
        }
    }
    return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

std::vector<std::shared_ptr<CaptureState>> captures_beside(const std::shared_ptr<Stream>& stream) {
    std::vector<std::shared_ptr<CaptureState>> found;
    if (!stream->legacy || g_active_captures.load(std::memory_order_relaxed) == 0) {
        return found;
    }
    const GraphLock lock;
    for (const auto& capture : open_captures()) {
        const auto waits = [&](const auto& each) {
            return each.first->blocking() && each.first->context() == stream->context();
        };
        const bool beside = std::any_of(capture->tips.begin(), capture->tips.end(), waits);
        if (beside) {
            found.push_back(capture);
        }
    }
    return found;
}

CUresult refuse_context_during_capture(const std::shared_ptr<Context>& context) {
    if (g_active_captures.load(std::memory_order_relaxed) == 0) {
        return CUDA_SUCCESS;
    }
    const GraphLock lock;
    bool refused = false;
    for (const auto& capture : open_captures()) {
        for (const auto& [taking_part, tips] : capture->tips) {
            if (taking_part->context() == context) {
                capture->invalid = true;
                refused = true;
            }
        }
    }
    return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

bool is_captured_event(const std::shared_ptr<Event>& event) {
    if (g_active_captures.load(std::memory_order_relaxed) == 0) {
        return false;
    }
    const GraphLock lock;
    const auto capture = capture_of_event(*event);
    return capture != nullptr && !capture->tips.empty();
}

CUresult refuse_captured_event(const std::shared_ptr<Event>& event) {
    if (g_active_captures.load(std::memory_order_relaxed) == 0) {
        return CUDA_SUCCESS;
    }
    const GraphLock lock;
    const auto capture = capture_of_event(*event);
    if (capture == nullptr || capture->tips.empty()) {
        return CUDA_SUCCESS;
    }
    capture->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace gantry::softgpu
