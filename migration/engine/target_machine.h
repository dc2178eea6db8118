// TargetMachine: pulls a session, never assumes that it has it. One per migration attempt.
//
// Invariants, checked by tests/sim at every step:
//   - Activate leaves only after MsgGrant (or the operator's word that the source host is fenced),
//     with the complete state of the granted token verified here.
//   - It asks for the grant only when its guest demonstrably runs (or arrived paused).
//   - Before the guest has arrived it drops everything on failure or when its reservation runs out;
//     after that it never drops complete state on its own: it keeps asking.
//   - It returns a grant only after the driver has proven that nothing was served under it, and has
//     forgotten what could have been: kActivate never leaves after that, and never before the
//     record is durable, so that a restarted gantryd knows it too.
#pragma once

#include <memory>

#include "migration/engine/actions.h"
#include "migration/engine/target_events.h"

namespace gantry::engine {

enum class TargetState : std::uint32_t {
    kAsking = 1,        ///< Prepare sent, waiting for the offer.
    kReserving = 2,     ///< Local reservation.
    kReceiving = 3,     ///< Rounds arrive.
    kApplying = 4,      ///< Final graph, verification.
    kComplete = 5,      ///< Verified; guest not yet here.
    kRequesting = 6,    ///< Verified and guest here: asking for the grant.
    kActivating = 7,    ///< Granted: writing the record, activating (or waiting for guest memory).
    kServing = 8,       ///< Owns the session; repeats MsgActivated until the source has let go.
    kDone = 9,          ///< Final: owns the session.
    kDiscarded = 10,    ///< Final: nothing here.
    kRecovering = 11,   ///< gantryd restarted with workers that hold something.
    kWithdrawing = 12,  ///< Asked for the grant, and wants out: keeps its state until the source
                        ///< said
                        ///< that it will never grant (or has granted after all).
    kReturning = 13,    ///< Was (or may have been) granted, and will not serve: says so until the
                        ///< source has taken the session back.
};

class TargetMachine {
public:
    TargetMachine(std::string session_id, Settings settings);
    ~TargetMachine();
    TargetMachine(TargetMachine&&) noexcept;
    TargetMachine& operator=(TargetMachine&&) noexcept;

    [[nodiscard]] TargetActions step(const TargetEvent& event, TimePoint now);

    [[nodiscard]] std::optional<TimePoint> next_deadline() const;
    [[nodiscard]] TargetState state() const;
    [[nodiscard]] std::optional<MigrationId> migration() const;
    /// The epoch asked for or owned; value 0 before the offer.
    [[nodiscard]] Epoch epoch() const;
    [[nodiscard]] bool guest_is_here() const;
    /// Bulk batches may be applied only while this is true; others are dropped (and sent again when
    /// they are needed). Ask before every batch, under the lock that serialises step().
    [[nodiscard]] bool accepts_blocks() const;
    [[nodiscard]] const Progress& progress() const;

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

[[nodiscard]] const char* to_string(TargetState state);

}  // namespace gantry::engine
