// Lists of blocks and fingerprints as worker.proto has them, for gantryd. Internal.
#pragma once

#include <cstring>
#include <string_view>
#include <vector>

#include "host-daemon/state/block_runs.h"
#include "migration/engine/state.h"

namespace gantry::supervisor {

using state::append_runs;
using state::expand_runs;

/// Fingerprints of `count` blocks as worker.proto has them.
inline Result<std::vector<engine::Fingerprint>> parse_prints(std::string_view raw,
                                                             std::size_t count) {
    constexpr std::size_t kPrintBytes = 16;
    if (raw.size() != count * kPrintBytes) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     std::to_string(count) + " blocks with " + std::to_string(raw.size()) +
                         " bytes of fingerprints"};
    }
    std::vector<engine::Fingerprint> prints(count);
    for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(&prints[i].low, raw.data() + i * kPrintBytes, 8);
        std::memcpy(&prints[i].high, raw.data() + i * kPrintBytes + 8, 8);
    }
    return prints;
}

}  // namespace gantry::supervisor
