// LaunchPolicy: which of the guest's plain launches go to the driver as a graph (launch_batcher.h):
// those of a shape that comes often by themselves, and those that stand in the ring one behind the
// other together.
//
// Owner: GuestProcess. Threads: the loop's thread. Failure: what it does not launch is to be
// launched the plain way, which gives the driver's own answer. Cost: a few loads for a launch that
// stays plain.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/memory/pinned_writes.h"
#include "host-daemon/execution/objects/objects.h"
#include "host-daemon/execution/process/guest_streams.h"
#include "host-daemon/execution/process/launch_account.h"
#include "host-daemon/execution/process/launch_batcher.h"
#include "host-daemon/execution/ring/command.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

[[nodiscard]] KernelShape shape_of(const cuda::wire_hand::LaunchCall& launch);
/// What the times of launches are known by, in one process.
[[nodiscard]] std::uint64_t launch_key(const cuda::wire_hand::LaunchCall& launch);

struct LaunchCounters {
    std::atomic<std::uint64_t> launches{0};
    std::atomic<std::uint64_t> batched_launches{0};   ///< Of these.
    std::atomic<std::uint64_t> prepared_launches{0};  ///< Of the others.
};

class LaunchPolicy {
public:
    /// What launches depend on; all outlive them.
    struct Needs {
        Device& device;
        const ObjectTable& objects;
        Contexts& contexts;
        GuestStreams& streams;
        const Captures& captures;
        const HeldWork& held;
        const ErrorLedger& errors;
        PinnedWrites& pinned_writes;
        LaunchAccount& account;
    };
    struct Wishes {
        bool batches_launches = true;
        /// Single ones too where it does not pay: a soft GPU executes a graph no faster.
        bool always_prepares = false;
    };

    LaunchPolicy(const Needs& needs, const Wishes& wishes);

    LaunchCounters counters;

    /// How many launches go together; 0: none ever do.
    [[nodiscard]] std::size_t batch_size() const { return batches_ ? LaunchBatcher::kBatch : 0; }
    /// Until it is said again: every launch is a plain one.
    void hold_back(bool held_back) { is_held_back_ = held_back; }

    /// Launches by the graph of its shape, if it has one. False: it is still to be launched.
    bool launch_one(const Command& command, const cuda::wire_hand::LaunchCall& launch,
                    std::span<const std::byte> arguments, CUstream stream);
    /// Whether `next` may follow those; an empty batch: whether it may be the first.
    [[nodiscard]] bool joins(std::span<const Command> batch, const Command& next) const;
    /// Launches them all, and says into which stream; nullopt: none of them.
    std::optional<CUstream> launch_batch(std::span<const Command> batch);

    /// This function, kernel or stream is configured: it is left out from now on.
    void leave_out(std::uint64_t handle) { batcher_.leave_out(handle); }
    /// Before modules end: no graph has any of the guest's kernels any more.
    void forget_all() { batcher_.forget_all(); }

private:
    /// What is launched in this context now may go to the driver as a graph.
    [[nodiscard]] bool may_use_graphs(std::uint64_t context) const;

    Contexts& contexts_;
    GuestStreams& streams_;
    const Captures& captures_;
    const HeldWork& held_;
    const ErrorLedger& errors_;
    PinnedWrites& pinned_writes_;
    LaunchAccount& account_;
    LaunchBatcher batcher_;
    const bool batches_;   ///< It is wished, and the device can.
    const bool prepares_;  ///< Single ones, too.
    bool is_held_back_ = false;
};

}  // namespace gantry::worker
