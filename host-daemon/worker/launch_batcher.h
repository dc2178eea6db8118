// LaunchBatcher: launches that stand in the ring one behind the other go to the driver together, as
// one of its graphs, where the guest repeats itself.
//
// WHICH. LaunchGraphs::kKernels plain launches (cuLaunchKernel) into one stream that follow each
// other in the ring: so only where the guest is ahead of the driver. Kernels, their sizes and the
// stream are the shape of a batch; arguments are not. A shape that came often enough gets a graph,
// in place of one that came less often; others go to the driver one by one, since a kernel that is
// not the one its node has costs half a launch.
//
// HOW FAR AHEAD. At most kAhead batches are on their way to the device: a driver's own queue counts
// a graph as one launch, and what is queued is what a freeze waits for.
//
// NOT. Streams with priorities or attributes, functions that were configured, cooperative launches
// and those with attributes, more shared memory than every block may have; in a context other than
// the primary one; while a stream is captured or a host callback is open.
//
// Invariant: launch() either launches all or none, and then each of them gives the driver's own
// answer when it is launched by itself. No graph has a kernel whose module was ended: forget_all()
// comes before that. Threads: all calls lock; launch() on the loop's thread. Cost of a batch: a
// comparison with what its graph has, and a call of the driver's for each launch whose arguments
// are others than last time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "host-daemon/worker/device.h"
#include "host-daemon/worker/launch_graphs.h"

namespace gantry::worker {

class ObjectTable;

/// One cuLaunchKernel of the guest, without its stream.
struct KernelLaunch {
    std::uint64_t kernel = 0;  ///< The guest's handle of a kernel or a function.
    std::array<std::uint32_t, 3> grid{};
    std::array<std::uint32_t, 3> block{};
    std::uint32_t shared_bytes = 0;
    std::span<const std::byte> arguments;  ///< Packed.
};

class LaunchBatcher {
public:
    static constexpr std::size_t kBatch = LaunchGraphs::kKernels;
    /// What every block of every device may have without being granted more.
    static constexpr std::uint32_t kSharedBytesMax = 48 * 1024;

    LaunchBatcher(Device& device, const ObjectTable& objects)
        : device_(device), objects_(objects) {}
    ~LaunchBatcher();
    LaunchBatcher(const LaunchBatcher&) = delete;
    LaunchBatcher& operator=(const LaunchBatcher&) = delete;

    [[nodiscard]] bool can_batch() const { return device_.launch_graphs().count() != 0; }
    /// Launches kBatch kernels into `stream`, which the guest calls `key`. False: none of them.
    bool launch(std::span<const KernelLaunch> batch, std::uint64_t key, CUstream stream);

    /// This function, kernel or stream is configured: it is left out from now on.
    void leave_out(std::uint64_t handle);
    /// Before modules end: no graph has any of the guest's kernels any more.
    void forget_all();

private:
    static constexpr std::size_t kSeen = 256;         // A power of two.
    static constexpr std::uint32_t kOften = 3;        // Times that a shape comes before it counts.
    static constexpr std::uint32_t kDecayEvery = 1024;  // Batches.
    static constexpr std::size_t kMark = 4;   // Batches between two events.
    static constexpr std::size_t kMarks = 8;
    static constexpr std::size_t kAhead = kMark * kMarks;

    struct Kernel {
        std::uint64_t handle = 0;  ///< 0: the empty one.
        CUfunction function = nullptr;
        std::array<std::uint32_t, 3> grid{};
        std::array<std::uint32_t, 3> block{};
        std::uint32_t shared_bytes = 0;
        std::vector<std::byte> arguments;  ///< That its node has.
    };
    struct Slot {  ///< One graph.
        std::uint64_t hash = 0;  ///< 0: of no shape.
        std::uint64_t stream_key = 0;
        std::uint32_t uses = 0;
        std::array<Kernel, kBatch> kernels;
    };
    struct Seen {
        std::uint64_t hash = 0;
        std::uint32_t times = 0;
        bool is_unfit = false;
    };

    static std::uint64_t hash_of(std::span<const KernelLaunch> batch, std::uint64_t key);
    static bool is_shape(const Slot& slot, std::span<const KernelLaunch> batch, std::uint64_t key);
    Slot* find(std::uint64_t hash, std::span<const KernelLaunch> batch, std::uint64_t key);
    Slot* admit(Seen& seen, std::span<const KernelLaunch> batch, std::uint64_t key,
                CUstream stream);
    [[nodiscard]] bool is_fit(std::span<const KernelLaunch> batch, std::uint64_t key,
                              CUstream stream) const;
    [[nodiscard]] CUfunction function_of(std::uint64_t handle) const;
    bool set_arguments(Slot& slot, std::span<const KernelLaunch> batch);
    CUresult set(std::size_t graph, std::size_t index, const Kernel& kernel,
                 std::span<const std::byte> arguments);
    void empty(Slot& slot);
    bool has_room();
    void mark(CUstream stream);
    void decay();

    Device& device_;
    const ObjectTable& objects_;
    std::mutex mutex_;
    std::array<Slot, LaunchGraphs::kGraphs> slots_;
    std::array<Seen, kSeen> seen_{};
    std::array<CUevent, kMarks> marks_{};  ///< Null until first used.
    std::uint64_t launched_ = 0;
    bool is_full_ = false;  ///< There was no room when last looked.
    std::uint32_t since_decay_ = 0;
};

}  // namespace gantry::worker
