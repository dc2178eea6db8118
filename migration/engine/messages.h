// Control messages between the two engines. Plain structs; proto/control maps them to gRPC.
//
// Every message names the migration attempt and may be lost, repeated, delayed or overtaken: both
// machines are idempotent and repeat what was not answered. Bulk data (rounds of blocks) travels
// beside these on streams of its own, see round.h. Sequence diagram, state diagrams and the version
// rule: README.md here.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "migration/engine/needs.h"
#include "migration/engine/preflight.h"
#include "migration/engine/state.h"
#include "proto/base/ticket.h"

namespace gantry::engine {

/// Raised when a message changes its meaning; new fields alone do not raise it. See README.md.
inline constexpr std::uint32_t kEngineProtocolVersion = 3;

/// MsgAbort reason: the sender knows no such migration. Drivers answer messages for a migration
/// that no machine of theirs knows with it, but never answer MsgAbort, MsgRefused, MsgGrantRefused,
/// MsgGrant or MsgReleased so (two such drivers would talk for ever).
inline constexpr std::string_view kUnknownMigration = "migration.unknown";

/// Why the target believes that its guest runs, or will never run at the source again. Wire values.
enum class ArrivalEvidence : std::uint32_t {
    kGuestResumed = 1,   ///< RESUMED_MIGRATED, RESUMED_POSTCOPY or RESUMED_UNPAUSED at the target.
    kGuestCalled = 2,    ///< A request of the guest reached the target (covers lost events).
    kPausedArrival = 3,  ///< SUSPENDED_PAUSED after completion: granted only if gone at the
                         ///< source.
};

// ---- target -> source ----

struct MsgPrepare {  ///< Asks for the session. Repeated until MsgOffer or MsgRefused.
    std::uint32_t protocol_version = kEngineProtocolVersion;
    std::string session_id;
    TargetCapabilities capabilities;
    Ticket ticket = {};  ///< Out of the VM's XML as libvirt's migration brought it.
};
struct MsgReady {};  ///< Reservation stands: start sending. Repeated until the first round.
struct MsgRoundAck {
    std::uint64_t round = 0;  ///< Everything of this round was applied.
};
struct MsgRoundLost {
    std::uint64_t round = 0;  ///< Cannot be completed (a stream broke): send it again.
    std::string detail;
};
struct MsgFreezeRequest {  ///< The guest is here (or its pause is) and the final state is not.
    ArrivalEvidence evidence = ArrivalEvidence::kGuestResumed;
    Ticket ticket = {};
};
struct MsgVerified {
    FreezeToken token;
};
struct MsgVerifyFailed {
    FreezeToken token;
    std::string detail;
};
struct MsgGrantRequest {
    FreezeToken token;
    Epoch epoch;  ///< The source's plus one; 0 after a restart that forgot it: the next one.
    ArrivalEvidence evidence = ArrivalEvidence::kGuestResumed;
    Ticket ticket = {};
};
struct MsgActivated {
    Epoch epoch;
};
struct MsgGrantReturned {  ///< Nothing was ever served under the grant of this migration, if there
                           ///< was one, and nothing ever will: what it was for is forgotten here.
                           ///< Repeated until the source says MsgGrantRefused, final.
    Epoch epoch;           ///< That was granted; 0: not known (any more).
};

// ---- source -> target ----

struct MsgOffer {
    std::uint32_t protocol_version = kEngineProtocolVersion;
    Epoch epoch;  ///< What the source owns now.
    Seed seed;    ///< Of this migration's fingerprints.
    SessionNeeds needs;
    std::vector<Finding> warnings;
};
struct MsgRefused {
    std::vector<Finding> findings;
};
struct MsgRoundEnd {
    std::uint64_t round = 0;
    std::uint64_t batch_count = 0;  ///< On all streams together.
};
struct MsgConverged {  ///< What is left fits the downtime target, or will not get better.
    std::chrono::microseconds downtime_estimate{};
    std::uint64_t remaining_bytes = 0;
};
struct MsgComplete {  ///< Frozen, and every block was sent in rounds up to this one.
    FreezeToken token;
    std::uint64_t round = 0;
    std::vector<FinalPart> parts;
};
struct MsgThawed {  ///< The guest runs at the source again; the token's state is void. Precopy goes
                    ///< on.
    FreezeToken token;
};
struct MsgGrant {
    FreezeToken token;
    Epoch epoch;
};
struct MsgGrantRefused {
    std::string reason;  ///< Stable id, see grant_refusal in source_machine.h.
    std::string text;
    bool is_final = false;  ///< True: this migration will never get the grant; discard.
};
struct MsgReleased {  ///< Answer to MsgActivated: the source has let go, the target may stop
                      ///< repeating.
    Epoch epoch;
};

// ---- both ways ----

struct MsgAbort {
    std::string reason;  ///< Stable id.
    std::string text;
};
struct MsgAlive {  ///< Heartbeat: renews the target's reservation and the source's patience.
    std::optional<std::uint64_t> remaining_bytes;  ///< Of the source: Progress::bytes_remaining.
};

using MessageBody =
    std::variant<MsgPrepare, MsgReady, MsgRoundAck, MsgRoundLost, MsgFreezeRequest, MsgVerified,
                 MsgVerifyFailed, MsgGrantRequest, MsgActivated, MsgGrantReturned, MsgOffer,
                 MsgRefused, MsgRoundEnd, MsgConverged, MsgComplete, MsgThawed, MsgGrant,
                 MsgGrantRefused, MsgReleased, MsgAbort, MsgAlive>;

/// By which the records of both hosts are laid beside each other. No machine looks at it.
struct MessageTime {
    std::uint64_t sent_us = 0;  ///< By the sender's monotonic clock; 0: not told.
    /// The least so far of (the sender's clock at a receipt) - (sent_us of what it received).
    std::optional<std::int64_t> least_us;
};

struct Message {
    MigrationId migration;
    MessageBody body;
    MessageTime time = {};
};

/// "MsgPrepare" and so on, for logs.
[[nodiscard]] const char* message_name(const Message& message);

}  // namespace gantry::engine
