// Replacement: a guest process goes from one worker to another of the same device of this host,
// and the device memory changes hands without a copy (proto/decisions/0002-worker-replacement.md).
//
// The fresh worker makes its context, takes the physical memory over, loads modules and builds the
// objects while the old one serves. Then the old one is frozen; what has changed since follows: new
// pieces of memory, module variables and arrays (which the driver owns; these are copied), the
// final object graph. Last the guest's region changes hands.
//
// Invariant: the old worker serves, or can be thawed, until its Release has been sent; from then on
// only the fresh one may serve. Who does at the end is told by Outcome::owner, also on failure.
// Threads: the caller's; calls block. Failure: reasons `handover.*`, and whatever a worker
// answered.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "proto/base/result.h"
#include "proto/control/unique_fd.h"
#include "proto/control/worker.pb.h"

namespace gantry::replacement {

struct Answer {
    control::FromWorker message;
    std::vector<control::UniqueFd> descriptors;
};

/// A started worker. A reply's error status is the call's error.
class Endpoint {
public:
    virtual ~Endpoint() = default;
    virtual Result<Answer> call(control::ToWorker request, std::span<const int> descriptors) = 0;
    /// Makes sure that its process has ended and can write to no memory any more.
    virtual void kill() = 0;
};

struct Report {
    std::uint64_t pieces = 0;             ///< Of physical memory that changed hands.
    std::uint64_t bytes_handed_over = 0;  ///< Theirs.
    std::uint64_t bytes_copied = 0;       ///< In all rounds: module variables and arrays.
    std::uint64_t bytes_copied_frozen = 0;
    std::uint64_t drain_us = 0;  ///< Of the pause: until the device was idle.
    std::uint64_t pause_us = 0;  ///< From the freeze to the take-over.
    std::uint64_t total_us = 0;
    [[nodiscard]] std::string to_json() const;
};

enum class Owner { kOld, kFresh, kNobody };

/// In order. At kReleased the old worker has let go.
enum class Step { kChecked, kPrepared, kFrozen, kFinal, kAttached, kReleased, kActivated };
const char* to_string(Step step);

struct Options {
    std::uint64_t epoch = 0;  ///< What the guest is served as from now on.
    std::uint64_t freeze_deadline_us = 10'000'000;
    std::function<void(Step)> at_step = [](Step) {};
};

struct Outcome {
    Result<Report> report;
    Owner owner = Owner::kOld;  ///< kOld: it was thawed, or was never frozen.
};

/// Both started, with the same limits; the fresh one has no state. On failure the caller ends it.
Outcome replace(Endpoint& old_worker, Endpoint& fresh, const Options& options);

}  // namespace gantry::replacement
