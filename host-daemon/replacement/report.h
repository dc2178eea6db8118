// Report: what a replacement did, in which way, and how long each part of it took.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/result.h"

namespace gantry::replacement {

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

/// Which worker was asked.
enum class Whom : std::uint8_t { kOld, kFresh };
const char* to_string(Whom whom);

/// One request, or some of a kind in a row.
struct Span {
    Whom whom = Whom::kOld;
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
};

/// Who serves the guest.
enum class Owner { kOld, kFresh, kNobody };

struct Outcome {
    Result<Report> report;
    Owner owner = Owner::kOld;  ///< kOld: it was thawed, or was never frozen.
};

}  // namespace gantry::replacement
