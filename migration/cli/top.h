// What `gantry top` shows: the host's GPU memory, its VMs' programs with their rates, and moves.
// Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "proto/control/gantryd.pb.h"

namespace gantry::cli {

/// Two readings, `seconds` apart. A program that was not there before, or whose worker has changed
/// meanwhile, has no rates.
struct TopReadings {
    const control::ListSessionsReply& before;
    const control::ListSessionsReply& now;
    double seconds = 1.0;
};

/// 80 columns wide, but for names that are longer.
[[nodiscard]] std::string top_text(const TopReadings& readings);
[[nodiscard]] nlohmann::ordered_json top_json(const TopReadings& readings);

}  // namespace gantry::cli
