// Between lists of block addresses (engine) and runs of blocks (worker.proto). Internal.
#pragma once

#include <cstring>
#include <string_view>
#include <vector>

#include "migration/engine/state.h"
#include "proto/control/worker.pb.h"

namespace gantry::supervisor {

using RunList = google::protobuf::RepeatedPtrField<control::BlockRun>;

/// Joins neighbours; the order stays.
inline void append_runs(std::span<const engine::BlockAddress> blocks, RunList* runs) {
    for (const engine::BlockAddress& block : blocks) {
        if (!runs->empty()) {
            control::BlockRun& last = *runs->Mutable(runs->size() - 1);
            if (last.space() == static_cast<std::uint32_t>(block.space) &&
                last.first() + last.count() == block.index) {
                last.set_count(last.count() + 1);
                continue;
            }
        }
        control::BlockRun& run = *runs->Add();
        run.set_space(static_cast<std::uint32_t>(block.space));
        run.set_first(block.index);
        run.set_count(1);
    }
}

/// Refuses unknown spaces and more than `blocks_max` blocks.
inline Result<std::vector<engine::BlockAddress>> expand_runs(const RunList& runs,
                                                             std::uint64_t blocks_max) {
    std::vector<engine::BlockAddress> blocks;
    for (const control::BlockRun& run : runs) {
        const bool known =
            run.space() >= static_cast<std::uint32_t>(engine::MemorySpace::kDevice) &&
            run.space() <= static_cast<std::uint32_t>(engine::MemorySpace::kArray);
        if (!known || run.count() == 0 || run.count() > blocks_max - blocks.size() ||
            run.first() + run.count() < run.first()) {
            return Error{Code::kInvalidArgument, "worker.protocol",
                         "a list of blocks names space " + std::to_string(run.space()) + ", " +
                             std::to_string(run.count()) + " blocks"};
        }
        for (std::uint32_t i = 0; i < run.count(); ++i) {
            blocks.push_back({static_cast<engine::MemorySpace>(run.space()), run.first() + i});
        }
    }
    return blocks;
}

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
