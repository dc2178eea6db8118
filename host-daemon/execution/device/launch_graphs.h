// LaunchGraphs: graphs of the driver's, of one kernel or of some one behind the other, which are
// set anew before they are launched.
//
// WHAT FOR. A driver takes 2.7 to 4.3 us for a launch, whatever the kernel does; 16 kernels of a
// graph take 6 us to set and to launch, and a device goes from one to the next in 1.1 us. A graph
// of one kernel takes 2.6 us where only its arguments change, and its end is known 2 us earlier
// (H100, H200, driver 580). LaunchBatcher decides which launches go this way.
//
// All graphs are made when the device is opened, and nothing of the driver's later: where it puts
// the variables of modules depends on what it has allocated before, and a target's worker has not
// launched what this one has. To set a kernel allocates nothing (seen: variables of modules lie
// where they lie without it).
//
// Invariant: a node that holds no kernel of the guest's holds the empty one. Owner: Device.
// Threads: none of its own, one at a time. Failure: a driver that cannot make them, or has no such
// calls, leaves count() at 0.
#pragma once

#include <array>
#include <cstddef>

#include "host-daemon/driver/driver_library.h"

namespace gantry::worker {

class LaunchGraphs {
public:
    static constexpr std::size_t kLong = 16;     ///< Graphs, the first ones.
    static constexpr std::size_t kKernels = 16;  ///< Of each of these.
    static constexpr std::size_t kSingle = 64;   ///< Graphs of one kernel, behind them.
    static constexpr std::size_t kGraphs = kLong + kSingle;
    static constexpr std::size_t kernels_of(std::size_t graph) {
        return graph < kLong ? kKernels : 1;
    }

    /// The device's context is current, now and at the end.
    explicit LaunchGraphs(const driver::DriverApi& api);
    ~LaunchGraphs();
    LaunchGraphs(const LaunchGraphs&) = delete;
    LaunchGraphs& operator=(const LaunchGraphs&) = delete;

    [[nodiscard]] std::size_t count() const { return count_; }
    /// What kernel number `kernel` of graph number `graph` is from its next launch on. On failure
    /// it stays what it was.
    CUresult set(std::size_t graph, std::size_t kernel, const CUDA_KERNEL_NODE_PARAMS& params) {
        return api_.cuGraphExecKernelNodeSetParams_v2(graphs_[graph].exec,
                                                      graphs_[graph].nodes[kernel], &params);
    }
    /// From its next launch on it is the empty one.
    CUresult clear(std::size_t graph, std::size_t kernel);
    CUresult launch(std::size_t graph, CUstream stream) {
        return api_.cuGraphLaunch(graphs_[graph].exec, stream);
    }

private:
    struct Graph {
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
        std::array<CUgraphNode, kKernels> nodes{};
    };
    bool make(Graph* graph, std::size_t kernels);
    void end(const Graph& graph);

    const driver::DriverApi& api_;
    CUmodule module_ = nullptr;
    CUfunction empty_ = nullptr;
    std::size_t count_ = 0;
    std::array<Graph, kGraphs> graphs_{};
};

}  // namespace gantry::worker
