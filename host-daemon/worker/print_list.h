// PrintList: blocks and their fingerprints on their way into a reply's Digest (worker.proto).
// Threads: one. Failure: of the blobs, told by put().
#pragma once

#include <vector>

#include "host-daemon/state/block_ranges.h"
#include "host-daemon/state/part_state.h"
#include "proto/control/channel.h"
#include "proto/control/worker.pb.h"

namespace gantry::worker {

class PrintList {
public:
    /// Adds to the list, which must stay.
    state::BlockReader::Visit visit() {
        return [this](const state::BlockRange& range, std::span<const state::Fingerprint> found) {
            state::append_range(range, seen_.mutable_runs());
            const Result<void> added = prints_.add(state::raw_prints(found));
            added_ = added_ ? added : added_;
        };
    }

    /// The last descriptors of the reply so far.
    Result<void> put(control::Digest* digest, std::vector<control::UniqueFd>* out) && {
        GANTRY_TRY(added_);
        if (prints_.size() == 0) {
            return {};
        }
        const std::string runs = seen_.SerializeAsString();
        GANTRY_ASSIGN(control::UniqueFd runs_blob, control::make_blob(runs));
        digest->set_runs_bytes(runs.size());
        digest->set_prints_bytes(prints_.size());
        out->push_back(std::move(runs_blob));
        GANTRY_ASSIGN(control::UniqueFd prints_blob, std::move(prints_).seal());
        out->push_back(std::move(prints_blob));
        return {};
    }

private:
    control::BlockRunList seen_;
    control::BlobWriter prints_;
    Result<void> added_;
};

/// The answer to a look at a portion.
inline Result<void> put_looked(const state::PartState::Looked& looked, PrintList prints,
                               control::Digest* digest, std::vector<control::UniqueFd>* out) {
    state::set_digest(looked.digest, digest);
    digest->set_left_count(looked.left_count);
    return std::move(prints).put(digest, out);
}

}  // namespace gantry::worker
