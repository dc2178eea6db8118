// Options: what is asked of a replacement, and the steps at which the caller is told how far it is.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "host-daemon/replacement/report.h"

namespace gantry::replacement {

/// In order. At kReleased the old worker has let go.
enum class Step { kChecked, kPrepared, kFrozen, kFinal, kAttached, kReleased, kActivated };
const char* to_string(Step step);

struct Options {
    Way way = Way::kHandOver;
    std::uint64_t epoch = 0;  ///< What the guest is served as from now on.
    std::uint64_t freeze_deadline_us = 10'000'000;
    /// When it began: before the fresh worker was started.
    std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
    std::function<void(Step)> at_step = [](Step) {};
};

}  // namespace gantry::replacement
