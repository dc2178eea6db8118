// SourceMachine: the arbiter. Owns a session's epoch N until it has durably granted N + 1, once.
//
// Invariants, checked by tests/sim at every step:
//   - It grants a VM's session only to the host whose certificate presented the current ticket
//   while
//     the hypervisor was migrating the VM away, only with that ticket, and only once that migration
//     has stopped the guest. Nobody else makes it begin, or disturbs one that has begun.
//   - It grants only while the workers are frozen under the token that the target has verified, and
//     only if no RESUMED of the guest on this host came since that freeze.
//   - MsgGrant leaves only after GrantDurable. From PersistGrant on there is no thaw unless
//     GrantWriteFailed proves that nothing was written.
//   - A grant is taken back only on its holder's word that nothing was served under it and nothing
//     will be, only into the state that it was given for, and under an epoch of its own.
//   - It never thaws because the peer is silent; it asks libvirt, and waits.
//   - Any RESUMED before the grant is a rollback: thaw, void the token, then precopy again if
//     libvirt's job still runs, else abort.
// One machine per session; it serves migration after migration until one is granted.
#pragma once

#include <memory>

#include "migration/engine/actions.h"
#include "migration/engine/source_events.h"

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

/// Why a host may not have the session: in MsgRefused and MsgGrantRefused, with what to do.
namespace peer_refusal {
inline constexpr std::string_view kTicket = "peer.ticket";
inline constexpr std::string_view kOtherTarget = "migration.other_target";
inline constexpr std::string_view kNoJob = "migration.no_outgoing_job";
}  // namespace peer_refusal

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
    /// A session that this host owns at `epoch`. After a restart of gantryd feed Restarted first.
    SourceMachine(std::string session_id, Epoch epoch, Settings settings);
    ~SourceMachine();
    SourceMachine(SourceMachine&&) noexcept;
    SourceMachine& operator=(SourceMachine&&) noexcept;

    [[nodiscard]] SourceActions step(const SourceEvent& event, TimePoint now);

    /// When Timer is due; nullopt: nothing to wait for.
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;
    [[nodiscard]] SourceState state() const;
    [[nodiscard]] Epoch epoch() const;
    [[nodiscard]] std::optional<MigrationId> migration() const;
    /// Name of the certificate of the host that the migration under way goes to, or that the
    /// session was given to; "" when there is neither.
    [[nodiscard]] const std::string& peer() const;
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

}  // namespace gantry::engine
