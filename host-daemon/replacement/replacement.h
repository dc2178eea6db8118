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

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
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

enum class Way : std::uint8_t {
    kHandOver,
    kPeer,  ///< Asked for: staged where the devices or the driver do not allow it.
    kStaged,
};
const char* to_string(Way way);

/// Of a copy: what differs from what was sent before, looked for and copied.
struct Round {
    std::uint64_t bytes = 0;
    std::uint64_t scan_us = 0;         ///< At the old worker.
    std::uint64_t copy_us = 0;         ///< Peer: device to device. Staged: all of it.
    std::uint64_t rest_us = 0;         ///< In both, so that the guest gets through.
    std::uint64_t fingerprint_us = 0;  ///< Peer: of the copies.
    std::uint64_t total_us = 0;
};

enum class Whom : std::uint8_t { kOld, kFresh, kNobody };

/// One request, or some of a kind in a row.
struct Span {
    Whom whom = Whom::kNobody;
    std::string what;
    std::uint64_t at_us = 0;  ///< Since the replacement began.
    std::uint64_t us = 0;
    std::uint64_t count = 0;
};

struct Report {
    Way way = Way::kHandOver;
    std::string staged_because;           ///< A peer copy was asked for, and cannot be.
    std::uint64_t pieces = 0;             ///< Of physical memory: handed over, or reached.
    std::uint64_t bytes_handed_over = 0;  ///< Theirs; a copy: 0.
    std::uint64_t bytes_copied = 0;       ///< In all rounds.
    std::uint64_t bytes_copied_frozen = 0;
    std::uint64_t bytes_left = 0;  ///< What the last look before the pause found, and left to it.
    std::vector<Round> rounds;     ///< Of a copy; the last is that of the pause.
    std::uint64_t drain_us = 0;    ///< Of the pause: until the device was idle.
    std::uint64_t pause_us = 0;    ///< From the freeze to the take-over.
    /// Where the pause went, in order. scan and build of a copy run side by side and are not in the
    /// sum; what both took is scan_and_build.
    std::vector<std::pair<const char*, std::uint64_t>> pause_steps;
    std::uint64_t total_us = 0;
    std::uint64_t begun_us = 0;  ///< CLOCK_MONOTONIC: where the spans begin.
    std::vector<Span> spans;
    [[nodiscard]] std::string to_json() const;
};

enum class Owner { kOld, kFresh, kNobody };

/// In order. At kReleased the old worker has let go.
enum class Step { kChecked, kPrepared, kFrozen, kFinal, kAttached, kReleased, kActivated };
inline constexpr Step kSteps[] = {Step::kChecked,  Step::kPrepared, Step::kFrozen,   Step::kFinal,
                                  Step::kAttached, Step::kReleased, Step::kActivated};
const char* to_string(Step step);

struct Options {
    Way way = Way::kHandOver;
    std::uint64_t epoch = 0;  ///< What the guest is served as from now on.
    std::uint64_t freeze_deadline_us = 10'000'000;
    /// Of a copy: what the pause may spend on copying rather than have another round.
    std::uint64_t pause_copy_us = 60'000;
    /// Of the time, percent, that looks at memory and copies from device to device may take while
    /// the guest is served; 0: all of it.
    unsigned scan_share = 50;
    unsigned copy_share = 50;
    /// When it began: before the fresh worker was started.
    std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
    /// Not 0: nothing is moved. What is done while the guest runs is done, then each part of it so
    /// many times again, with rests between, so that the report's spans show what each costs the
    /// guest; then all is taken back.
    unsigned rehearsals = 0;
    std::function<void(Step)> at_step = [](Step) {};
};

struct Outcome {
    Result<Report> report;
    Owner owner = Owner::kOld;  ///< kOld: it was thawed, or was never frozen.
};

/// Both started, with the same limits; the fresh one has no state. On failure the caller ends it.
Outcome replace(Endpoint& old_worker, Endpoint& fresh, const Options& options);

}  // namespace gantry::replacement
