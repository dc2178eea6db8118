// Lists of blocks and fingerprints as worker.proto has them, for gantryd. Internal.
#pragma once

#include <cstring>
#include <string_view>
#include <vector>

#include "host-daemon/state/blocks/block_runs.h"
#include "host-daemon/supervisor/workers/worker_channel.h"
#include "migration/engine/state.h"

namespace gantry::supervisor {

using state::append_runs;
using state::count_runs;
using state::expand_runs;

/// Of a fingerprint as worker.proto has it.
inline constexpr std::size_t kFingerprintBytes = 16;

inline engine::Fingerprint fingerprint_at(const void* raw, std::size_t index) {
    engine::Fingerprint fingerprint;
    const char* at = static_cast<const char*>(raw) + index * kFingerprintBytes;
    std::memcpy(&fingerprint.low, at, 8);
    std::memcpy(&fingerprint.high, at + 8, 8);
    return fingerprint;
}

inline Result<void> check_fingerprints(std::size_t bytes, std::size_t count) {
    if (bytes != count * kFingerprintBytes) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     std::to_string(count) + " blocks with " + std::to_string(bytes) +
                         " bytes of fingerprints"};
    }
    return {};
}

/// Fingerprints of `count` blocks.
inline Result<std::vector<engine::Fingerprint>> parse_fingerprints(std::string_view raw,
                                                                   std::size_t count) {
    GANTRY_TRY(check_fingerprints(raw.size(), count));
    std::vector<engine::Fingerprint> fingerprints;
    fingerprints.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
        fingerprints.push_back(fingerprint_at(raw.data(), i));
    }
    return fingerprints;
}

/// Far more than the runs of a part whose memory is in a million pieces.
inline constexpr std::uint64_t kRunListBytesMax = 32U << 20;

/// The list of blocks in a reply's blob; a worker may say anything.
inline Result<control::BlockRunList> take_runs(WorkerReply& reply, std::size_t index,
                                               std::uint64_t bytes) {
    control::BlockRunList list;
    GANTRY_TRY(control::parse_blob(reply.descriptors, index, bytes, &list, kRunListBytesMax));
    return list;
}

}  // namespace gantry::supervisor
