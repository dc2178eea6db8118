// Replacement: a guest process goes from one worker to another of this host
// (proto/decisions/0002-worker-replacement.md).
//
// Its device memory changes hands without a copy where both have the same device; else the fresh
// worker copies it, from device to device where its driver can reach the old one's memory (peer),
// or by way of the host's memory (staged).
//
// The fresh worker makes its context, takes the memory over or copies it, loads modules and builds
// the objects while the old one serves. Then the old one is frozen; what has changed since follows,
// and the final object graph. Last the guest's region changes hands.
//
// Invariant: the old worker serves, or can be thawed, until its Release has been sent; from then on
// only the fresh one may serve. Who does at the end is told by Outcome::owner, also on failure.
// Threads: the caller's; calls block. A copy calls both endpoints at the same time, each from one
// thread. Failure: reasons `handover.*`, `snapshot.digest`, and whatever a worker answered.
#pragma once

#include "host-daemon/replacement/exchange.h"
#include "host-daemon/replacement/options.h"

namespace gantry::replacement {

/// Both started, with the same limits; the fresh one has no state. On failure the caller ends it.
Outcome replace(Endpoint& old_worker, Endpoint& fresh, const Options& options);

}  // namespace gantry::replacement
