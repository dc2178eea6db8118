// SourceMachine: the arbiter. Owns a session's epoch N until it has durably granted N + 1, once.
//
// Invariants, checked by tests/sim at every step:
//   - It grants only while the workers are frozen under the token that the target has verified, and
//     only if no RESUMED of the guest on this host came since that freeze.
//   - MsgGrant leaves only after kGrantDurable. From kPersistGrant on there is no thaw unless
//     kGrantWriteFailed proves that nothing was written.
//   - A grant is taken back only on its holder's word that nothing was served under it and nothing
//     will be, only into the state that it was given for, and under an epoch of its own.
//   - It never thaws because the peer is silent; it asks libvirt, and waits.
//   - Any RESUMED before the grant is a rollback: thaw, void the token, then precopy again if
//     libvirt's job still runs, else abort.
// One machine per session; it serves migration after migration until one is granted.
#pragma once

#include <memory>

#include "migration/engine/machine.h"

namespace gantry::engine {

enum class SourceState : std::uint32_t {
    kServing = 1,      ///< Owns the session, no migration.
    kDescribing = 2,   ///< Collecting needs for preflight.
    kOffered = 3,      ///< Offer sent, waiting for the target's reservation.
    kPrecopy = 4,      ///< Rounds while kernels run.
    kFreezing = 5,     ///< Draining.
    kFinalRound = 6,   ///< Frozen; last blocks and graphs on their way.
    kFrozen = 7,       ///< Frozen; everything was sent; waiting for the target to verify and to
                       ///< ask.
    kGranting = 8,     ///< The grant is being written: no way back but a proven failure.
    kGranted = 9,      ///< Given away; the guest here gets hard errors; state kept until confirmed.
    kThawing = 10,     ///< Rolling back.
    kRecovering = 11,  ///< gantryd restarted: asking workers and libvirt before anything else.
    kHolding = 12,     ///< Frozen, guest gone from here, peer silent: state kept for it.
    kReleased = 13,    ///< Final: nothing of the session is left here.
    kLost = 14,        ///< A worker died frozen: waits for the last token's grant, or for the
                       ///< guest to run here again, when what is left of the session goes on.
    kTakingBack = 15,  ///< The grant came back unused: the epoch after it is being written.
};

enum class SourceEventKind : std::uint32_t {
    kMessage = 1,         ///< message
    kTimer = 2,           ///< next_deadline() has come
    kDescribed = 3,       ///< needs
    kDescribeFailed = 4,  ///< error
    kPrecopyBegun = 5,
    kRoundSent = 6,      ///< round, stats (all batches handed to the link; the ack is a message)
    kRoundProgress = 7,  ///< round, stats so far
    kRoundFailed = 8,    ///< round, error: stream or worker trouble
    kFrozen = 9,         ///< token
    kFreezeFailed = 10,  ///< error; the source interface has thawed
    kCompleteSent = 11,  ///< token
    kGrantDurable = 12,
    /// The driver has PROOF that the record is not on disk (the rename was not done, or was undone
    /// and that was fsynced). When unsure it must end the process instead and read the disk at
    /// restart.
    kGrantWriteFailed = 13,
    kThawed = 14,
    kReleased = 15,
    kWorkerLost = 16,          ///< A worker of the session died: its program's state here is gone.
    kDomain = 17,              ///< domain
    kGuestSuspended = 18,      ///< SUSPENDED_MIGRATED, SUSPENDED_POSTCOPY
    kGuestPreSwitchover = 19,  ///< QMP pre-switchover/device, GET_VRING_BASE, lock plugin's release
    kGuestResumed = 20,        ///< Any RESUMED on this host
    kGuestGone = 21,           ///< STOPPED_MIGRATED: moved away for good
    kGuestStopped = 22,        ///< Shut down, destroyed or crashed here, not migrated
    kJobFailed = 23,           ///< QMP failed or cancelled
    kOperatorAbort = 24,
    kOperatorDiscard = 25,  ///< In kHolding or kGranted: the state may go
    kRestarted = 26,        ///< record, frozen: first event after a restart of gantryd
    kCompleteFailed = 27,   ///< token, error: the final parts were not sent
};

struct RoundStats {
    std::uint64_t bytes_resident = 0;
    std::uint64_t bytes_changed = 0;       ///< Found by the scan of this round.
    std::uint64_t bytes_content = 0;       ///< Content of the blocks sent so far in this round.
    std::uint64_t bytes_acknowledged = 0;  ///< Content of those that the target has confirmed.
    std::uint64_t bytes_sent = 0;   ///< Put on the link for it, after elision and compression.
    std::uint64_t batch_count = 0;  ///< kRoundSent: batches of this round on all streams
                                    ///< together.
    Duration scan{};  ///< Part of `elapsed`: graphs and scans, before any block is read.
    Duration elapsed{};
};

struct SourceEvent {
    SourceEventKind kind = SourceEventKind::kTimer;
    std::optional<Message> message;
    std::optional<SessionNeeds> needs;
    std::uint64_t round = 0;
    RoundStats stats;
    FreezeToken token;
    DomainReport domain;
    DurableRecord record;
    std::optional<FreezeToken> frozen;  ///< kRestarted: what StateSource::frozen_token says.
    bool workers_alive = true;          ///< kRestarted: every worker of the session lives.
    bool announced = false;  ///< kRestarted: what StateSource::announce said still holds.
    Seed seed;  ///< Message events: 128 fresh random bits for a migration that may begin now.
    Error error;
};

/// Reasons in MsgGrantRefused and MsgAbort from the source.
namespace grant_refusal {
inline constexpr std::string_view kNotFrozen = "grant.not_frozen";
inline constexpr std::string_view kRolledBack = "grant.rolled_back";
inline constexpr std::string_view kOtherMigration = "grant.other_migration";
inline constexpr std::string_view kEpoch = "grant.epoch";
inline constexpr std::string_view kGuestNotGone = "grant.guest_not_gone";
inline constexpr std::string_view kReturned = "grant.returned";
}  // namespace grant_refusal

class SourceMachine {
public:
    /// A session that this host owns at `epoch`. After a restart of gantryd feed kRestarted first.
    SourceMachine(std::string session_id, Epoch epoch, Settings settings);
    ~SourceMachine();
    SourceMachine(SourceMachine&&) noexcept;
    SourceMachine& operator=(SourceMachine&&) noexcept;

    [[nodiscard]] Actions step(const SourceEvent& event, TimePoint now);

    /// When kTimer is due; nullopt: nothing to wait for.
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;
    [[nodiscard]] SourceState state() const;
    [[nodiscard]] Epoch epoch() const;
    [[nodiscard]] std::optional<MigrationId> migration() const;
    [[nodiscard]] const Progress& progress() const;
    /// True while commands of the guest may be executed here (not frozen, not granted, not lost).
    [[nodiscard]] bool serves() const;
    /// True while a hypervisor may be copying the guest's memory (StateSource::announce).
    [[nodiscard]] bool announced() const;
    /// True after an attempt that failed while its job may go on, in which the target may begin
    /// another: for an operator that is one move, whose end is that of the last attempt. Turns
    /// false when the hypervisor's job is over.
    [[nodiscard]] bool awaits_attempt() const;

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

[[nodiscard]] const char* to_string(SourceState state);
[[nodiscard]] const char* to_string(SourceEventKind kind);

}  // namespace gantry::engine
