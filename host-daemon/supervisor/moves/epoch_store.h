// The durable record of one host: which epoch of each session it owns or has granted away.
//
// Invariant: after save() has returned success the record survives a crash of this host; after it
// has returned an error with `kProvenUnwritten` the old record is still the one on disk. When
// neither can be proven, `kUnknown` is returned and the caller must end the process and read the
// disk at its next start (source_event::GrantWriteFailed needs proof).
// Layout: STATE_DIRECTORY/epochs/SESSION, a small text file whose last line is a checksum of the
// rest. Written as temporary file, fsync, rename, fsync of the folder.
// Threads: one caller at a time per session. Cost: two fsyncs.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "migration/engine/machine.h"
#include "proto/base/result.h"

namespace gantry::supervisor {

/// System calls that save() makes, in order, and remove() after its own; the hook of the tests'
/// fail-the-nth loop.
enum class StoreStep { kOpen, kWrite, kSyncFile, kRename, kSyncFolder, kSyncRemoval };

enum class SaveFailure { kNone, kProvenUnwritten, kUnknown };

struct SaveOutcome {
    SaveFailure failure = SaveFailure::kNone;
    Error error;
    [[nodiscard]] bool ok() const { return failure == SaveFailure::kNone; }
};

/// What the runners of a move need of it; tests/sim has another.
class RecordStore {
public:
    virtual ~RecordStore() = default;
    virtual Result<std::optional<engine::DurableRecord>> load(
        const std::string& session_id) const = 0;
    virtual SaveOutcome save(const std::string& session_id,
                             const engine::DurableRecord& record) = 0;
    virtual Result<void> remove(const std::string& session_id) = 0;
};

class EpochStore final : public RecordStore {
public:
    /// Makes the folder when needed, so that a loss of power does not undo it; refuses one that
    /// cannot be written.
    static Result<EpochStore> open(const std::string& state_directory);

    /// nullopt: this host never had the session. kDataLoss (`epoch.corrupt`) for a damaged file.
    Result<std::optional<engine::DurableRecord>> load(const std::string& session_id) const override;
    SaveOutcome save(const std::string& session_id, const engine::DurableRecord& record) override;
    /// Forgets a session that has ended. Idempotent. An error (`epoch.write`): a loss of power may
    /// bring the record back.
    Result<void> remove(const std::string& session_id) override;
    Result<std::vector<std::string>> sessions() const;

    /// Test hook: return a nonzero errno to make that step fail.
    void set_fault(std::function<int(StoreStep)> fault) { fault_ = std::move(fault); }

private:
    explicit EpochStore(std::string folder) : folder_(std::move(folder)) {}
    int step(StoreStep which, const std::function<int()>& action) const;

    std::string folder_;
    std::function<int(StoreStep)> fault_;
};

/// Where a session that begins anew (its VM was started again) starts to count: above what any host
/// has owned of its earlier lives. `known`: this host's record; other hosts' are not at hand, but
/// an epoch for each second is more than moves can use up.
Epoch first_epoch(const std::optional<engine::DurableRecord>& known, std::chrono::sys_seconds now);

/// True for ids that may be file names: letters, digits, '-', '_', '.', 1 to 64, not starting with
/// '.'.
bool is_session_id(const std::string& text);

}  // namespace gantry::supervisor
