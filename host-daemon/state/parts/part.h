// Part: one guest process as the migration engine sees it, in its two roles. A worker that has
// taken a process over as the target may become its source.
//
// The worker's control service turns gantryd's messages into these calls; tests call them directly.
// Threads: the worker's control thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "host-daemon/state/parts/part_content.h"
#include "host-daemon/state/parts/part_source.h"
#include "host-daemon/state/parts/part_target.h"

namespace gantry::state {

struct Part {
    /// `fingerprints` and `slot_pages`: see PartContent.
    Part(worker::Execution& execution, std::uint64_t part_id,
         FingerprintBy by = FingerprintBy::kAuto,
         std::unique_ptr<GpuFingerprints> fingerprints = nullptr,
         std::unique_ptr<Mapping> slot_pages = nullptr)
        : content(execution, part_id, by, std::move(fingerprints), std::move(slot_pages)),
          source(content),
          target(content) {}

    PartContent content;
    PartSource source;
    PartTarget target;
};

}  // namespace gantry::state
