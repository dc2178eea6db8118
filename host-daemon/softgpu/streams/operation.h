// What a stream or a graph node can do: launch, copy, set, call the host, signal.
//
// An Operation is a complete, checked description; it is immutable once shared, so a graph exec
// that changes a node's parameters puts a new one in its place while old launches keep theirs.
// run() is called on a driver thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "host-daemon/softgpu/code/module.h"
#include "host-daemon/softgpu/memory/copy_plan.h"
#include "host-daemon/softgpu/streams/event.h"
#include "host-daemon/softgpu/streams/stream.h"

namespace gantry::softgpu {

class Operation {
public:
    explicit Operation(CUgraphNodeType type) : type_(type) {}
    virtual ~Operation() = default;
    [[nodiscard]] CUgraphNodeType type() const { return type_; }
    virtual void run() const = 0;
    /// After a sticky error, instead of run().
    virtual void skip(CUresult) const {}

private:
    const CUgraphNodeType type_;
};

using OperationPtr = std::shared_ptr<const Operation>;

struct KernelOperation final : Operation {
    KernelOperation() : Operation(CU_GRAPH_NODE_TYPE_KERNEL) {}
    void run() const override;

    std::shared_ptr<Context> context;
    std::shared_ptr<Function> function;
    void* handle = nullptr;  ///< As the program gave it: CUfunction or CUkernel.
    Dim3 grid;
    Dim3 block;
    Dim3 cluster{1, 1, 1};
    std::uint32_t dynamic_shared_bytes = 0;
    bool cooperative = false;
    std::vector<std::byte> params;
    std::vector<CUlaunchAttribute> attributes;
};

struct CopyOperation final : Operation {
    CopyOperation() : Operation(CU_GRAPH_NODE_TYPE_MEMCPY) {}
    void run() const override { execute_copy(plan); }

    CopyPlan plan;
    CUDA_MEMCPY3D params{};         ///< For queries; what the program passed.
    std::vector<std::byte> staged;  ///< Copy of a pageable source, when `plan` reads from it.
};

struct MemsetOperation final : Operation {
    MemsetOperation() : Operation(CU_GRAPH_NODE_TYPE_MEMSET) {}
    void run() const override;

    CUDA_MEMSET_NODE_PARAMS params{};
};

struct HostOperation final : Operation {
    HostOperation() : Operation(CU_GRAPH_NODE_TYPE_HOST) {}
    void run() const override;

    CUDA_HOST_NODE_PARAMS params{};
};

/// cuStreamAddCallback: called with the status, after an error too.
struct CallbackOperation final : Operation {
    CallbackOperation() : Operation(CU_GRAPH_NODE_TYPE_HOST) {}
    void run() const override;
    void skip(CUresult error) const override;

    CUstream stream = nullptr;
    CUstreamCallback callback = nullptr;
    void* user = nullptr;
};

struct BatchMemoryOperation final : Operation {
    BatchMemoryOperation() : Operation(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {}
    void run() const override;

    CUcontext context = nullptr;
    unsigned flags = 0;
    std::vector<CUstreamBatchMemOpParams> steps;
};

struct EmptyOperation final : Operation {
    EmptyOperation() : Operation(CU_GRAPH_NODE_TYPE_EMPTY) {}
    void run() const override {}
};

struct EventOperation final : Operation {
    explicit EventOperation(CUgraphNodeType type) : Operation(type) {}
    void run() const override {}  // A graph launch resolves events itself.

    std::shared_ptr<Event> event;
};

/// Returns when everything in the stream is done and its output is written, with its error.
CUresult wait_for(const std::shared_ptr<Stream>& stream, Context& context);

/// Marks the calling thread as running a host function: CUDA calls answer 800 meanwhile.
class HostCallbackScope {
public:
    HostCallbackScope();
    ~HostCallbackScope();
    HostCallbackScope(const HostCallbackScope&) = delete;
    HostCallbackScope& operator=(const HostCallbackScope&) = delete;
};

}  // namespace gantry::softgpu
