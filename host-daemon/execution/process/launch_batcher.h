// LaunchBatcher: launches that go to the driver as its graphs: one that has come often before, and
// those that stand in the ring one behind the other, together.
//
// BATCHES. LaunchGraphs::kKernels plain launches (cuLaunchKernel) into one stream that follow each
// other in the ring: so only where the guest is ahead of the driver. Kernels, their sizes and the
// stream are the shape of a batch; arguments are not. A shape that came often enough has a graph of
// its own, in place of one that came less often. Others take one of a few loose graphs, the one
// that differs least: a node that gets another kernel costs 2 us instead of 0.3. So long a device
// that has nothing to do would wait; it gets the launches one by one, once.
//
// SINGLE ONES. A launch whose shape came often enough has a graph of its own, too, of one kernel.
// There are no loose ones of these: with another kernel a graph takes no less than a launch.
//
// HOW FAR AHEAD. At most kAhead batches are on their way to the device: a driver's own queue counts
// a graph as one launch, and what is queued is what a freeze waits for.
//
// NOT. Streams with priorities or attributes, functions that were configured, cooperative launches
// and those with attributes, more shared memory than every block may have; in a context other than
// the primary one; while a stream is captured or a host callback is open.
//
// Invariant: launch() either launches all or none, and then each of them gives the driver's own
// answer when it is launched the plain way. No graph has a kernel whose module was ended:
// forget_all() comes before that. A driver lets no two launches of a graph run at a time, which
// streams must not notice: a graph goes to another stream only once its last launch has ended.
// Threads: all calls lock; launch() on the loop's thread. Cost: a comparison with what the graph
// has, and a call of the driver's for each launch that differs.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/device/launch_graphs.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

class ObjectTable;

/// What a launch has beside its stream and arguments.
struct KernelShape {
    std::uint64_t kernel = 0;  ///< The guest's handle of a kernel or a function.
    std::array<std::uint32_t, 3> grid{};
    std::array<std::uint32_t, 3> block{};
    std::uint32_t shared_bytes = 0;
    friend bool operator==(const KernelShape&, const KernelShape&) = default;
};

/// One cuLaunchKernel of the guest, without its stream.
struct KernelLaunch {
    KernelShape shape;
    std::span<const std::byte> arguments;  ///< Packed.
};

class LaunchBatcher {
public:
    static constexpr std::size_t kBatch = LaunchGraphs::kKernels;
    /// What every block of every device may have without being granted more.
    static constexpr std::uint32_t kSharedBytesMax = 48 * 1024;
    using Launches = std::span<const KernelLaunch>;

    LaunchBatcher(Device& device, const ObjectTable& objects);
    ~LaunchBatcher();
    LaunchBatcher(const LaunchBatcher&) = delete;
    LaunchBatcher& operator=(const LaunchBatcher&) = delete;

    /// A program that found its card full launches one by one.
    [[nodiscard]] bool has_graphs() const {
        return device_.has_context() && device_.launch_graphs().count() == LaunchGraphs::kGraphs;
    }
    /// Launches kBatch or one into `stream`, which the guest calls `key`. False: none of them.
    bool launch(Launches launches, std::uint64_t key, CUstream stream);

    /// This function, kernel or stream is configured: it is left out from now on.
    void leave_out(std::uint64_t handle);
    /// Before modules end: no graph has any of the guest's kernels any more.
    void forget_all();

private:
    static constexpr std::size_t kLoose = 4;  // Long graphs, the last ones.
    static constexpr std::size_t kShaped = LaunchGraphs::kLong - kLoose;
    static constexpr std::size_t kSeen = 1024;          // Hashes; a power of two.
    static constexpr std::size_t kKnown = 4096;         // Kernels and streams.
    static constexpr std::uint32_t kOften = 3;          // Times that a shape comes first.
    static constexpr std::uint32_t kDecayEvery = 4096;  // Batches and single launches.
    static constexpr std::size_t kMark = 4;             // Batches between two marks.
    static constexpr std::size_t kMarks = 8;
    static constexpr std::size_t kAhead = kMark * kMarks;

    struct Kernel {         ///< What a node has.
        KernelShape shape;  ///< Of kernel 0: the empty one.
        std::vector<std::byte> arguments;
    };
    struct Graph {
        std::uint64_t key = 0;  ///< Of the stream that it was launched into last.
        std::uint32_t uses = 0;
        CUevent ended = nullptr;  ///< Its last launch; null: it was never launched.
        std::vector<Kernel> kernels;
    };
    struct Seen {
        std::uint64_t hash = 0;
        std::uint32_t times = 0;
    };

    struct Numbers {  ///< Of graphs: from `first` on, before `end`.
        std::size_t first;
        std::size_t end;
    };
    /// Those that are given to shapes.
    static constexpr Numbers numbers_for(std::size_t launches) {
        return launches == 1 ? Numbers{LaunchGraphs::kLong, LaunchGraphs::kGraphs}
                             : Numbers{0, kShaped};
    }
    [[nodiscard]] std::size_t number_of(const Graph& graph) const GANTRY_REQUIRES(mutex_) {
        return static_cast<std::size_t>(&graph - graphs_.data());
    }
    Graph* find(Launches launches, std::uint64_t hash, std::uint64_t key) GANTRY_REQUIRES(mutex_);
    Graph* choose(Launches launches, std::uint64_t hash, std::uint64_t key, CUstream stream)
        GANTRY_REQUIRES(mutex_);
    Graph* give(Numbers numbers, std::uint64_t hash, std::uint64_t key) GANTRY_REQUIRES(mutex_);
    Graph* loose(Launches batch, std::uint64_t key) GANTRY_REQUIRES(mutex_);
    bool may_keep_waiting(CUstream stream) GANTRY_REQUIRES(mutex_);
    bool may_launch_into(const Graph& graph, std::uint64_t key) GANTRY_REQUIRES(mutex_);
    bool is_fit(Launches launches, std::uint64_t key, CUstream stream) GANTRY_REQUIRES(mutex_);
    CUfunction function_of(std::uint64_t handle) GANTRY_REQUIRES(mutex_);
    [[nodiscard]] CUfunction find_function(std::uint64_t handle) const GANTRY_REQUIRES(mutex_);
    bool set(Graph& graph, Launches launches) GANTRY_REQUIRES(mutex_);
    CUresult set(std::size_t graph, std::size_t index, const KernelLaunch& launch)
        GANTRY_REQUIRES(mutex_);
    void empty(Graph& graph) GANTRY_REQUIRES(mutex_);
    bool has_room() GANTRY_REQUIRES(mutex_);
    bool note_end(CUevent& event, CUstream stream) GANTRY_REQUIRES(mutex_);
    void decay() GANTRY_REQUIRES(mutex_);

    Device& device_;
    const ObjectTable& objects_;
    Mutex mutex_;
    std::array<Graph, LaunchGraphs::kGraphs> graphs_ GANTRY_GUARDED_BY(mutex_);
    std::array<std::uint64_t, LaunchGraphs::kGraphs> hashes_
        GANTRY_GUARDED_BY(mutex_){};  ///< Of shapes; 0: it has none.
    std::array<Seen, kSeen> seen_ GANTRY_GUARDED_BY(mutex_){};
    std::unordered_map<std::uint64_t, CUfunction> functions_
        GANTRY_GUARDED_BY(mutex_);  ///< By handle; null: left out.
    std::unordered_map<std::uint64_t, bool> plain_streams_ GANTRY_GUARDED_BY(mutex_);  ///< By key.
    std::array<CUevent, kMarks> marks_
        GANTRY_GUARDED_BY(mutex_){};  ///< Behind every kMark batches; null until first used.
    std::uint64_t batches_ GANTRY_GUARDED_BY(mutex_) = 0;  ///< That were launched.
    std::uint32_t since_decay_ GANTRY_GUARDED_BY(mutex_) = 0;
    bool is_full_ GANTRY_GUARDED_BY(mutex_) = false;  ///< There was no room when last looked.
    std::chrono::steady_clock::time_point spared_until_
        GANTRY_GUARDED_BY(mutex_){};  ///< No device is spared a wait.
};

}  // namespace gantry::worker
