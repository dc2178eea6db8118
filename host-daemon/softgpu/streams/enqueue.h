// Where work goes: into the stream's queue, or, while the stream captures, into a graph.
//
// graph/capture.h builds that graph. It implements CaptureBuilder and holds all of a capture's
// state; this layer knows only that a stream captures, and whom to tell. The builder is set once,
// when the driver starts, before there is any stream.
// Threads: any.
#pragma once

#include <memory>

#include "host-daemon/softgpu/streams/operation.h"
#include "host-daemon/softgpu/streams/stream.h"

namespace gantry::softgpu {

class CaptureBuilder {
public:
    /// Work of a capturing stream: becomes a node of the graph.
    virtual CUresult add(const std::shared_ptr<Stream>& stream, OperationPtr operation) = 0;
    /// A call that the capture forbids was made on the stream.
    virtual void invalidate(const std::shared_ptr<Stream>& stream) = 0;
    /// Work on a legacy stream: 906 while a blocking stream of the context captures.
    virtual CUresult refuse_legacy(const std::shared_ptr<Stream>& legacy) = 0;

protected:
    ~CaptureBuilder() = default;
};

void set_capture_builder(CaptureBuilder& builder);
CaptureBuilder& capture_builder();

inline bool capturing(const std::shared_ptr<Stream>& stream) {
    return stream->capturing.load(std::memory_order_acquire);
}

/// For work on the legacy stream: 906 while a blocking stream of the context captures.
inline CUresult refuse_legacy_during_capture(const std::shared_ptr<Stream>& stream) {
    return stream->legacy ? capture_builder().refuse_legacy(stream) : CUDA_SUCCESS;
}

/// Runs the operation as one item of the stream, or adds it to the graph being captured.
CUresult enqueue(const std::shared_ptr<Stream>& stream, OperationPtr operation);

/// What a call answers that has queued a kernel or a graph with this result: with
/// CUDA_LAUNCH_BLOCKING it waits for them.
CUresult launched(CUresult queued, const std::shared_ptr<Stream>& stream, Context& context);

}  // namespace gantry::softgpu
