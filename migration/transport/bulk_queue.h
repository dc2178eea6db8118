// BulkQueue: batches of one migration on their way from the source's workers to its bulk streams.
//
// Invariant: a batch is in the queue, on its way (handed to a stream, not acknowledged), or
// acknowledged; take_unacknowledged() returns the blocks of the first two, so that they can be
// marked unsent and nothing is lost with a stream. push() blocks while the queue holds
// kQueueBytesMax: the workers' pace follows the link's. Thread-safe. After close() every call
// returns at once.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "migration/engine/state.h"
#include "proto/base/mutex.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::transport {

inline constexpr std::size_t kQueueBytesMax = 32U << 20;

struct SentBlocks {
    engine::PartId part;
    std::vector<engine::BlockAddress> blocks;  ///< Empty: a graph.
};

class BulkQueue {
public:
    /// `on_lost` runs when a stream broke with batches of `round` unacknowledged. It must not call
    /// the queue, and does not run once close() has returned.
    explicit BulkQueue(std::function<void(std::uint64_t round)> on_lost)
        : on_lost_(std::move(on_lost)) {}

    /// False: closed. When `is_urgent` turns true while it waits, the batch goes in over the bound.
    bool push(control::BulkDown batch, SentBlocks blocks, const std::function<bool()>& is_urgent);
    /// For a stream's writer: the next batch, or nullptr when closed or when `stream` was lost.
    std::shared_ptr<const control::BulkDown> pop(std::uint64_t stream);
    void acknowledge(std::uint64_t round, std::uint64_t batch);

    std::uint64_t open_stream();
    /// The stream broke or ended; its writer is woken.
    void lose_stream(std::uint64_t stream);
    void close();

    /// Empties the queue and forgets what was on its way.
    std::vector<SentBlocks> take_unacknowledged();
    /// Blocks acknowledged since the start, for the operator's percentage.
    [[nodiscard]] std::uint64_t acknowledged_blocks() const;
    /// Content bytes acknowledged since the start, for the measure of the link.
    [[nodiscard]] std::uint64_t acknowledged_bytes() const;
    /// True while something is queued: the link is what limits.
    [[nodiscard]] bool waiting() const;

private:
    using Key = std::pair<std::uint64_t, std::uint64_t>;  // round, batch
    struct Sent {
        SentBlocks blocks;
        std::size_t bytes = 0;
        std::uint64_t stream = 0;  ///< 0: still queued.
    };

    std::function<void(std::uint64_t)> on_lost_;
    mutable Mutex mutex_;
    CondVar changed_;
    std::deque<std::shared_ptr<const control::BulkDown>> queue_ GANTRY_GUARDED_BY(mutex_);
    std::map<Key, Sent> unacknowledged_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::uint64_t, bool> streams_ GANTRY_GUARDED_BY(mutex_);  ///< Stream: open?
    std::size_t queued_bytes_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::uint64_t acknowledged_bytes_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::uint64_t acknowledged_blocks_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::uint64_t next_stream_ GANTRY_GUARDED_BY(mutex_) = 1;
    bool closed_ GANTRY_GUARDED_BY(mutex_) = false;
};

}  // namespace gantry::transport
