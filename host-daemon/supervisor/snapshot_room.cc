#include "host-daemon/supervisor/snapshot_room.h"

#include <functional>
#include <set>
#include <utility>

#include "host-daemon/supervisor/direct_memory.h"
#include "host-daemon/supervisor/part_prints.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::supervisor {
namespace {

/// Blocks of one part that differ from each other, and from zeros.
class Different {
public:
    explicit Different(const snapshot::FingerprintKey& key) : key_(key) {}
    void add(const snapshot::Fingerprint& print) {
        if (print != key_.zero_block()) {
            seen_.emplace(print.low, print.high);
        }
    }
    [[nodiscard]] std::uint64_t bytes() const { return seen_.size() * engine::kBlockBytes; }

private:
    const snapshot::FingerprintKey& key_;
    std::set<std::pair<std::uint64_t, std::uint64_t>> seen_;
};

}  // namespace

Result<std::uint64_t> stored_bytes_now(Session& session, SourceDriver& driver) {
    const engine::Seed seed = random_seed();
    const snapshot::FingerprintKey key({seed.low, seed.high});
    std::uint64_t bytes = 0;
    std::vector<std::shared_ptr<Worker>> others;
    for (const auto& worker : session.workers().all()) {
        const DirectMemory direct = DirectMemory::map(*worker, DirectMemory::For::kReading);
        if (direct.empty()) {
            others.push_back(worker);
            continue;
        }
        Different blocks(key);
        direct.for_each_block(
            [&](snapshot::BlockSpan block) { blocks.add(snapshot::fingerprint(key, block)); });
        bytes += blocks.bytes();
    }
    if (others.empty()) {
        return bytes;
    }
    const auto looked = driver.run_with_workers([&]() -> Result<void> {
        if (session.is_moving(driver.status())) {
            return {};  // Whoever asked looks again before it goes on.
        }
        GANTRY_TRY(session.source().begin_precopy(seed));
        Result<void> outcome;
        for (const auto& worker : others) {
            const auto prints = prints_now(*worker);
            if (!prints) {
                outcome = prints.error();
                break;
            }
            Different blocks(key);
            for (const PrintedBlock& block : *prints) {
                blocks.add(block.print);
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
