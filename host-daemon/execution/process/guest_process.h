// GuestProcess: what this worker holds for the one guest process it serves: its parts, each with a
// state of its own, and what concerns several of them.
//
// A handler of a call, and a snapshot, take from here the part that they need. What executes the
// guest's commands stands above it (dispatch/execution.h).
//
// Owner: Execution. Threads: any; each part as its header says. Failure: what the guest sends can
// fail only its own calls.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <shared_mutex>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/device/event_pool.h"
#include "host-daemon/execution/device/launch_gate.h"
#include "host-daemon/execution/objects/objects.h"
#include "host-daemon/execution/process/bulk_pages.h"
#include "host-daemon/execution/process/contexts.h"
#include "host-daemon/execution/process/error_ledger.h"
#include "host-daemon/execution/process/guest_channel.h"
#include "host-daemon/execution/process/guest_code.h"
#include "host-daemon/execution/process/guest_graphs.h"
#include "host-daemon/execution/process/guest_memory.h"
#include "host-daemon/execution/process/guest_streams.h"
#include "host-daemon/execution/process/held_work.h"
#include "host-daemon/execution/process/launch_account.h"
#include "host-daemon/execution/process/launch_policy.h"
#include "host-daemon/execution/ring/lane_executors.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

struct ProcessLimits {
    std::uint64_t device_memory_bytes = 0;  ///< 0: what the device has.
    std::uint64_t image_bytes = 4ull << 30;
    std::uint64_t object_count = 1u << 20;
};

struct ProcessOptions {
    enum class WaitHere { kWithProcessorsToSpare, kNever, kAlways };

    DeviceBaseline baseline;
    ProcessLimits limits;
    std::uint32_t spin_us = 20;
    /// Whether short waits may take place on the loop's thread (dispatch/call_waits.h).
    WaitHere wait_here = WaitHere::kWithProcessorsToSpare;
    /// How long such a wait looks at a word. Longer than the waits of which a microsecond matters;
    /// then the driver waits, and tells errors.
    std::chrono::microseconds word_patience{1000};
    /// Whether launches may go to the driver together (launch_batcher.h).
    bool batches_launches = true;
    /// Single ones too where it does not pay: a soft GPU executes a graph no faster.
    bool always_prepares_launches = false;
    /// Whether launches are counted and measured by kernel (launch_account.h).
    bool accounts_launches = false;
};

struct ProcessCounters {
    std::atomic<std::uint64_t> refused{0};
};

class GuestProcess {
public:
    GuestProcess(Device& device_in, OutputCapture& output, const ProcessOptions& options);
    ~GuestProcess();
    GuestProcess(const GuestProcess&) = delete;
    GuestProcess& operator=(const GuestProcess&) = delete;

    // Parts. Each may use those above it.
    Device& device;
    ObjectTable objects;
    EventPool own_events;
    LaunchGate launch_gate;
    GuestChannel channel;
    ErrorLedger errors;
    HeldWork held;
    GuestMemory memory;
    GuestShares shares;
    GuestCode code;
    GuestGraphs graphs;
    Contexts contexts;
    GuestStreams streams;
    BulkPages bulk_pages;
    LaunchAccount account;
    LaunchPolicy launches;
    ProcessCounters counters;
    wire::DeviceFacts facts{};
    /// Held shared by a lane's call that may make or end objects, while it runs: whoever has it
    /// alone, with the loop held, sees objects and what is kept beside them agree.
    std::shared_timed_mutex lane_changes;

    // What concerns several parts.
    [[nodiscard]] bool is_broken() const { return errors.is_broken(); }
    /// The driver's answer to a question of no consequence: tells an error that no call has told
    /// yet. Not asked while a stream is captured, which it would cost.
    bool finds_broken();
    /// The guest has run a callback. False for one that it does not have.
    bool callback_done(std::uint64_t callback_id);
    /// Frees parked memory as soon as the device is idle, on the chore thread.
    void schedule_reap();
    /// Ends an object at the driver and forgets it.
    void destroy_object(const Object& object);
    /// Forgets what is kept beside the object, and the object.
    void forget_object(std::uint64_t handle);

    LaneExecutors& executors() { return *executors_; }
    [[nodiscard]] const LaneExecutors& executors() const { return *executors_; }
    /// Waits for the calls that run on threads of their own, and ends these.
    void stop_executors() { executors_.reset(); }

private:
    std::atomic<bool> is_reap_scheduled_{false};
    std::unique_ptr<LaneExecutors> executors_;
};

}  // namespace gantry::worker
