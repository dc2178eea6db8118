// Stream capture: work given to a capturing stream becomes nodes of a graph.
//
// Guarded by a GraphLock; streams also carry an atomic flag so that a stream that does not capture
// costs one load (streams/enqueue.h). Error codes follow CUDA's: 900 for a call that a capture
// forbids (which also invalidates the captures concerned), 901 for a capture already invalid, 902
// to 908 for the ways of joining and ending one wrongly.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "host-daemon/softgpu/graph/graph.h"
#include "host-daemon/softgpu/streams/enqueue.h"
#include "host-daemon/softgpu/streams/event.h"

namespace gantry::softgpu {

class CaptureState final : public Capture {
public:
    std::uint64_t id = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::shared_ptr<Graph> graph;
    bool to_existing_graph = false;
    std::weak_ptr<Stream> origin;
    void* thread = nullptr;  ///< ThreadState of who began it.
    bool invalid = false;
    /// What the next node of each taking part stream has to follow.
    std::map<std::shared_ptr<Stream>, std::vector<GraphEdge>> tips;
    std::vector<CUgraphNode> tip_handles;  ///< Last answer of cuStreamGetCaptureInfo.
    std::vector<CUgraphEdgeData> tip_edges;
};

/// What the streams' layer calls; for set_capture_builder().
CaptureBuilder& graph_captures();

CUresult capture_event_record(const std::shared_ptr<Stream>& stream,
                              const std::shared_ptr<Event>& event, unsigned flags);
/// Decides what waiting means when stream or event take part in a capture; `handled` is false
/// when neither does.
CUresult capture_event_wait(const std::shared_ptr<Stream>& stream,
                            const std::shared_ptr<Event>& event, unsigned flags, bool& handled);

/// Captures into `graph`, after `tips`; into a new graph when it is null.
CUresult begin_capture(const GraphLock& lock, const std::shared_ptr<Stream>& stream,
                       CUstreamCaptureMode mode, std::shared_ptr<Graph> graph,
                       std::vector<GraphEdge> tips);
CUresult end_capture(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>& graph);
/// The stream's capture; null when there is none.
std::shared_ptr<CaptureState> capture_of(const GraphLock& lock,
                                         const std::shared_ptr<Stream>& stream);

/// A capturing stream is destroyed: a capture that began on it becomes invalid.
void abandon_capture(const std::shared_ptr<Stream>& stream);
/// The context ends, or is reset: so do captures that began on its streams.
void abandon_captures_of(const Context& context);

/// For calls that a capture forbids: 900 and the captures concerned become invalid, or 0.
CUresult refuse_during_capture();
/// For waiting for a whole context: 900 while any stream of it captures, whatever the modes.
CUresult refuse_context_during_capture(const std::shared_ptr<Context>& context);
/// Captures that take part in what a legacy stream waits for; none for any other stream.
std::vector<std::shared_ptr<CaptureState>> captures_beside(const std::shared_ptr<Stream>& stream);
/// For queries of an event that a capture recorded: 907, and the capture is invalid.
CUresult refuse_captured_event(const std::shared_ptr<Event>& event);
/// True for an event that an open capture recorded.
bool is_captured_event(const std::shared_ptr<Event>& event);

}  // namespace gantry::softgpu
