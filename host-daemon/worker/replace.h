// Moves a guest from one worker process to another on this host, over the control protocol alone.
// The guest notices a pause and nothing else. On failure the old worker goes on.
//
// Two ways: the device memory is handed over (host-daemon/replacement; one device), or copied:
// precopy while kernels run, freeze, last blocks and final graph, digest check, take-over of the
// same shared memory.
#pragma once

#include <cstdint>
#include <string>

#include "host-daemon/worker/worker_link.h"

namespace gantry::worker {

struct ReplaceReport {
    std::uint32_t rounds = 0;
    std::uint64_t bytes = 0;         ///< Copied in all rounds.
    std::uint64_t final_bytes = 0;   ///< Copied while frozen.
    std::uint64_t pause_us = 0;      ///< From the freeze to the take-over.
    std::uint64_t total_us = 0;
    [[nodiscard]] std::string to_json() const;
};

Result<ReplaceReport> copy_to_worker(WorkerLink& old_worker, WorkerLink& fresh);

replacement::Outcome hand_to_worker(WorkerLink& old_worker, WorkerLink& fresh,
                                    const replacement::Options& options);

}  // namespace gantry::worker
