#include "host-daemon/supervisor/snapshots/snapshot_room.h"

#include <set>
#include <utility>

#include "host-daemon/supervisor/parts/part_fingerprints.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::supervisor {
namespace {

/// Blocks of one part that differ from each other, and from zeros.
class Different {
public:
    explicit Different(const snapshot::FingerprintKey& key) : key_(key) {}
    void add(const snapshot::Fingerprint& fingerprint) {
        if (fingerprint != key_.zero_block()) {
            seen_.emplace(fingerprint.low, fingerprint.high);
        }
    }
    [[nodiscard]] std::uint64_t bytes() const { return seen_.size() * engine::kBlockBytes; }

private:
    const snapshot::FingerprintKey& key_;
    std::set<std::pair<std::uint64_t, std::uint64_t>> seen_;
};

}  // namespace

Result<std::uint64_t> stored_bytes_now(Session& session, SourceRunner& driver) {
    const engine::Seed seed = snapshot::random_seed();
    const snapshot::FingerprintKey key({seed.low, seed.high});
    std::uint64_t bytes = 0;
    const auto looked = driver.run_with_workers([&]() -> Result<void> {
        if (session.is_moving(driver.status())) {
            return {};  // Whoever asked looks again before it goes on.
        }
        GANTRY_TRY(session.source().begin_precopy(seed));
        Result<void> outcome;
        for (const auto& worker : session.workers().all()) {
            const auto fingerprints = fingerprints_now(*worker);
            if (!fingerprints) {
                outcome = fingerprints.error();
                break;
            }
            Different blocks(key);
            for (const FingerprintedBlock& block : *fingerprints) {
                blocks.add(block.fingerprint);
            }
            bytes += blocks.bytes();
        }
        session.source().end_precopy();
        return outcome;
    });
    if (looked && !*looked) {
        return looked->error();
    }
    return bytes;
}

}  // namespace gantry::supervisor
