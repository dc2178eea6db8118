// SourceRunner: runs one session's SourceMachine with a clock, workers, disk, peers and libvirt:
// gantryd's real ones, or those of tests/sim.
//
// The machine decides; this carries its actions out in order and feeds the outcomes back. Two
// executors: `main_` steps the machine and never blocks (but for the grant's fsync, which must come
// before anything else); `slow_` makes the calls to workers, one at a time. A round that is being
// sent is cut short when a freeze or a thaw is due: what was not sent is still unsent, so nothing
// is lost. Threads: feed(), receive(), status() and bulk() from any. The driver outlives what its
// hooks touch until stop() has returned.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "host-daemon/supervisor/base/compression.h"
#include "host-daemon/supervisor/base/runtime.h"
#include "host-daemon/supervisor/base/token_bucket.h"
#include "host-daemon/supervisor/moves/epoch_store.h"
#include "host-daemon/supervisor/moves/move_log.h"
#include "host-daemon/supervisor/parts/session_state.h"
#include "migration/engine/source_machine.h"
#include "migration/transport/bulk_queue.h"
#include "migration/transport/links.h"
#include "proto/base/mutex.h"
#include "proto/base/ticket.h"

namespace gantry::supervisor {

using transport::BulkQueue;
using transport::MessageLink;
using transport::SentBlocks;

struct SourceHooks {
    /// Answers by feeding source_event::Domain, from a thread of its own.
    std::function<void()> query_domain;
    std::function<void()> abort_job;
    /// Draws a ticket and stamps it; answers by feeding TicketStands or TicketFailed.
    std::function<void(Epoch)> renew_ticket;
    std::function<void(engine::AlertKind, const Error&)> alert;
    std::function<void(const engine::Progress&)> progress;
    /// An attempt has ended; the move goes on while status().awaits_attempt.
    std::function<void(engine::Outcome, const Error&)> finished;
    /// No other attempt came.
    std::function<void()> given_up;
    /// The session is not here any more (granted and confirmed): take it out of the books.
    std::function<void()> released;
    MoveLog log = {};
};

struct SourceStatus {
    engine::SourceState state = engine::SourceState::kServing;
    Epoch epoch;
    bool serves = true;
    bool announced = false;       ///< engine::SourceMachine::announced
    bool awaits_attempt = false;  ///< engine::SourceMachine::awaits_attempt
    std::optional<engine::MigrationId> migration;
    std::string peer;   ///< engine::SourceMachine::peer, or that of the last attempt.
    bool ends = false;  ///< The last move has just ended, and the hooks do not know how yet.
    engine::Progress progress;
    engine::MigrationId last_migration;  ///< That under way, or the one before.
    engine::BlockSetDigest digest;  ///< Of all memory at the last freeze; empty: not frozen yet.
};

class SourceRunner {
public:
    SourceRunner(std::string session_id, Epoch epoch, engine::Settings settings,
                 std::string compression, std::uint64_t bandwidth_bytes_s, RecordStore& store,
                 SessionSource& source, SourceHooks hooks, Runtime& runtime = real_runtime());
    ~SourceRunner() { stop(); }

    void feed(engine::SourceEvent event);
    /// A message of the host whose certificate has that name; answers to its migration go out by
    /// `link` from now on.
    void receive(engine::Message message, std::string peer, std::shared_ptr<MessageLink> link);
    /// The queue of the migration's bulk streams; nullptr when it is not the one under way, or goes
    /// to another host.
    std::shared_ptr<BulkQueue> bulk(engine::MigrationId migration, const std::string& peer);
    [[nodiscard]] SourceStatus status() const;
    /// Runs `work` on the executor of worker calls, where nothing of a migration runs meanwhile,
    /// and waits for its outcome. Nothing: the driver was stopped before, and it has not run.
    template <typename Work>
    std::optional<std::invoke_result_t<Work>> run_with_workers(Work work);
    void stop();
    [[nodiscard]] bool is_stopped() const { return is_stopped_; }

private:
    void step(const engine::SourceEvent& event);
    struct Stamps;  ///< What the record of the move says of an event.
    /// The machine's before a step, which may end the move.
    struct Before {
        engine::SourceState state;
        std::optional<engine::MigrationId> migration;
        std::string peer;
    };
    void record(const engine::SourceEvent& event, const Before& before);
    /// Carries actions out: one overload of its operator() for each kind.
    struct Carrier;
    void persist_grant(const engine::DurableRecord& record);
    void send(const engine::Message& message);
    void remember_link(engine::MigrationId migration, const std::string& peer,
                       std::shared_ptr<MessageLink> link);
    void log_refusal(engine::MigrationId migration, const std::string& why);
    void begin_precopy(engine::Seed seed);
    /// One round being sent.
    struct Round {
        std::uint64_t number = 0;
        std::uint64_t cut_serial = 0;  ///< What cut_serial_ was when the round was ordered.
        std::shared_ptr<BulkQueue> bulk;
        std::uint64_t blocks_before = 0;  ///< Acknowledged before it began.
        engine::RoundStats stats;
    };
    void order_round(std::uint64_t number, bool resend);
    void send_round(Round round, bool resend);
    Result<void> send_part(engine::PartId part, Round& round);
    Result<void> send_graph(engine::PartId part, Round& round);
    Result<void> send_blocks(engine::PartId part, std::span<const engine::BlockAddress> blocks,
                             Round& round);
    Result<void> push(control::BulkDown batch, SentBlocks blocks, Round& round);
    static void count_acknowledged(Round& round);
    void pace(const Round& round, Runtime::Clock::time_point begun, std::uint64_t sent_before);
    [[nodiscard]] bool is_cut(const Round& round) const { return cut_serial_ != round.cut_serial; }
    std::shared_ptr<BulkQueue> current_bulk() const;
    Result<void> mark_lost_unsent();
    Result<void> mark_unsent(engine::PartId part, std::vector<engine::BlockAddress>& blocks);
    Result<void> unless_ended(engine::PartId part, Result<void> outcome) const;
    void send_complete(engine::FreezeToken token, std::uint64_t round);
    void freeze(engine::FreezeToken token, engine::Duration deadline);
    void describe();
    void thaw();
    void release();
    void on_slow(std::function<void()> function) { slow_->post(std::move(function)); }
    bool is_moving() const { return machine_.migration() || machine_.awaits_attempt(); }
    void publish(bool ends);
    /// For a line of the log: "; target NAME", or nothing.
    [[nodiscard]] std::string about_peer() const;

    const std::string session_id_;
    Runtime& runtime_;
    RecordStore& store_;
    SessionSource& source_;
    SourceHooks hooks_;
    engine::SourceMachine machine_;

    // main_ only
    struct Link {
        engine::MigrationId migration;
        std::string peer;
        std::shared_ptr<MessageLink> link;
    };
    std::vector<Link> links_;  ///< Oldest first. That of the migration under way is never dropped.
    TokenBucket refusal_lines_{4, 1};
    std::optional<engine::FreezeToken> freezing_;  ///< Under way on slow_.
    /// What an action has ended in at once. The machine is told when those after it are carried
    /// out.
    std::optional<engine::SourceEvent> outcome_;

    // slow_ only
    std::optional<snapshot::Fingerprint> zero_block_;
    std::map<engine::PartId, std::vector<std::string>> images_sent_;
    std::map<engine::PartId, std::vector<engine::BlockAddress>> lost_;  ///< To be marked unsent.
    CompressionChooser compression_;
    std::uint64_t bandwidth_bytes_s_;
    std::uint64_t next_batch_ = 1;

    std::atomic<bool> is_stopped_{false};
    std::atomic<std::uint64_t> cut_serial_{0};  ///< Counted up: rounds ordered before end early.
    mutable Mutex mutex_;
    std::shared_ptr<BulkQueue> bulk_ GANTRY_GUARDED_BY(mutex_);
    std::optional<engine::MigrationId> bulk_migration_ GANTRY_GUARDED_BY(mutex_);
    SourceStatus status_ GANTRY_GUARDED_BY(mutex_);

    const std::unique_ptr<Executor> slow_;
    const std::unique_ptr<Executor> main_;
};

template <typename Work>
std::optional<std::invoke_result_t<Work>> SourceRunner::run_with_workers(Work work) {
    std::future<std::invoke_result_t<Work>> waiting;
    {
        const auto outcome = std::make_shared<std::promise<std::invoke_result_t<Work>>>();
        waiting = outcome->get_future();
        slow_->post([outcome, work = std::move(work)] { outcome->set_value(work()); });
    }
    try {  // the standard library tells a dropped promise by throwing; it ends here
        return waiting.get();
    } catch (const std::future_error&) {
        return std::nullopt;
    }
}

/// The engine's clock.
engine::TimePoint to_engine(Runtime::Clock::time_point at);
/// As MoveStamp and engine::MessageTime have it.
std::uint64_t to_microseconds(Runtime::Clock::time_point at);
Runtime::Clock::time_point to_clock(engine::TimePoint at);
engine::MigrationId random_migration();
Ticket random_ticket();

}  // namespace gantry::supervisor
