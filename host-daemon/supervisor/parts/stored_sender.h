// StoredSender: blocks of a snapshot file on their way to the workers, in the file's order, while
// the file is read on.
//
// The file's reader puts the contents of a section where place_for() says, which is a slot of the
// worker's staging area: nothing is copied on the way. A thread of its own makes the calls.
// Threads: one caller. Failure: after the first one nothing more is sent, and each call returns it.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "host-daemon/supervisor/workers/worker_set.h"
#include "migration/engine/state.h"
#include "proto/snapshot/container.h"

namespace gantry::supervisor {

/// What a worker has to do with blocks as a file has them; arena and offset are left to the caller.
/// Their bytes are taken one after the other.
Result<control::ApplyBlocks> apply_request(engine::PartId part,
                                           std::span<const snapshot::StoredBlock> blocks);

class StoredSender {
public:
    explicit StoredSender(WorkerSet& workers);
    /// Waits for the call that is under way; what waits behind it is dropped.
    ~StoredSender();
    StoredSender(const StoredSender&) = delete;
    StoredSender& operator=(const StoredSender&) = delete;

    /// A slot of the part's staging area, as long as the next call; empty when it is too small or
    /// the part has no worker.
    std::span<std::byte> place_for(engine::PartId part, std::size_t bytes);
    /// The last place is filled: gives it up, so that the next one may be had.
    void take_place();
    /// Queues blocks whose bytes, if any, lie packed in the place that was taken; waits while
    /// kAheadMax are queued. False: they do not lie there, nothing was done.
    Result<bool> send(engine::PartId part, std::span<const snapshot::StoredBlock> blocks);
    /// Returns when all have been applied.
    Result<void> finish();

private:
    static constexpr std::size_t kAheadMax = 4;
    static_assert(kAheadMax + 3 <= kStagingSlots, "one is read into, one filled, one applied");

    struct Place {
        std::shared_ptr<Worker> worker;
        std::shared_ptr<const StagingSlot> slot;
    };
    struct Batch {
        Place place;
        control::ToWorker request;
    };
    void run();

    WorkerSet& workers_;
    Place filling_;
    Place filled_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Batch> waiting_;
    Result<void> outcome_;
    bool sending_ = false;
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace gantry::supervisor
