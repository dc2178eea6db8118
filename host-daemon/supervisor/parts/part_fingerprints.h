// Fingerprints of a part's blocks as its worker makes them: of all at once, or portion by portion
// while a frozen worker copies others to a file.
//
// Threads: one for each worker. Failure: of the call, or `worker.protocol`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "host-daemon/supervisor/workers/worker.h"
#include "migration/engine/state.h"

namespace gantry::supervisor {

struct FingerprintedBlock {
    engine::BlockAddress address;
    engine::Fingerprint fingerprint;
};

/// Whether addresses become larger, each than the one before.
template <typename List, typename Address>
bool is_ascending(const List& list, Address address_of) {
    return std::adjacent_find(list.begin(), list.end(), [&](const auto& one, const auto& next) {
               return !(address_of(one) < address_of(next));
           }) == list.end();
}

/// Of all blocks that the worker holds now, ascending.
Result<std::vector<FingerprintedBlock>> fingerprints_now(Worker& worker);

struct FirstFingerprints {
    std::vector<FingerprintedBlock> blocks;  ///< Ascending; all of the others come after these.
    std::size_t left_count = 0;              ///< The others.
    [[nodiscard]] std::size_t total() const { return blocks.size() + left_count; }
};
/// Of a frozen worker's first blocks, at most `count_max`. StoreBlocks goes on from there.
Result<FirstFingerprints> first_fingerprints(Worker& worker, std::size_t count_max);

/// What a reply's digest brings, ascending. `descriptor`: the reply's first one that is its.
Result<std::vector<FingerprintedBlock>> take_fingerprints(WorkerReply& reply,
                                                          const control::Digest& digest,
                                                          std::size_t descriptor);

}  // namespace gantry::supervisor
