// FingerprintList: blocks and their fingerprints on their way into a reply's Digest (worker.proto).
// Threads: one. Failure: of the blobs, told by put().
#pragma once

#include <vector>

#include "host-daemon/state/blocks/block_ranges.h"
#include "host-daemon/state/parts/part.h"
#include "proto/control/channel.h"
#include "proto/control/worker.pb.h"

namespace gantry::worker {

class FingerprintList {
public:
    /// Adds to the list, which must stay.
    state::BlockReader::Visit visit() {
        return [this](const state::BlockRange& range, std::span<const state::Fingerprint> found) {
            state::append_range(range, seen_.mutable_runs());
            const Result<void> added = fingerprints_.add(state::raw_fingerprints(found));
            added_ = added_ ? added : added_;
        };
    }

    /// The last descriptors of the reply so far.
    Result<void> put(control::Digest* digest, std::vector<control::UniqueFd>* out) && {
        GANTRY_TRY(added_);
        if (fingerprints_.size() == 0) {
            return {};
        }
        const std::string runs = seen_.SerializeAsString();
        GANTRY_ASSIGN(control::UniqueFd runs_blob, control::make_blob(runs));
        digest->set_runs_bytes(runs.size());
        digest->set_fingerprint_bytes(fingerprints_.size());
        out->push_back(std::move(runs_blob));
        GANTRY_ASSIGN(control::UniqueFd fingerprint_blob, std::move(fingerprints_).seal());
        out->push_back(std::move(fingerprint_blob));
        return {};
    }

private:
    control::BlockRunList seen_;
    control::BlobWriter fingerprints_;
    Result<void> added_;
};

/// The answer to a look at a portion.
inline Result<void> put_looked(const state::PartSource::Looked& looked,
                               FingerprintList fingerprints, control::Digest* digest,
                               std::vector<control::UniqueFd>* out) {
    state::set_digest(looked.digest, digest);
    digest->set_left_count(looked.left_count);
    return std::move(fingerprints).put(digest, out);
}

}  // namespace gantry::worker
