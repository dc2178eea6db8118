// Whose a channel is. Processes that share a region may be in different PID namespaces (containers
// in a VM), where the number of one means nothing, or somebody else, in another; and numbers are
// given again.
#pragma once

#include <cstdint>

#include "proto/wire/region.h"

namespace gantry::session {

enum class ClaimantState {
    kAlive,
    kGone,     ///< It has died.
    kUnknown,  ///< A process of another container, or none has said its number yet.
};

/// The process that claimed a channel, as the calling process sees it.
struct Claimant {
    ClaimantState state;
    std::uint32_t pid;  ///< As the caller has it, which is not what it calls itself in a container.
};

/// Writes into a claim that is the calling process's who that is. What cannot be asked stays 0.
void sign_claim(wire::ClaimantId* id) noexcept;

/// A process of another namespace is found by one that can look into that: its number there is in
/// /proc/PID/status (NSpid), and /proc/PID/ns/pid shows to its user and root which namespace that
/// is. That it is gone can only be told in the first namespace. Another process of that number
/// (another start time), and one that has died but was not waited for, count as gone. Costs some
/// files of /proc; three for each process of the system where the claim is of another namespace.
Claimant find_claimant(const wire::GuestDirectory& directory, std::uint32_t channel) noexcept;

}  // namespace gantry::session
