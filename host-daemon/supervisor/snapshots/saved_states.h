// SavedStates: the states of GPUs that belong to VMs' memory in files of libvirt's.
//
// One folder a VM, of which libvirt knows nothing: the session's snapshot, the image of its region
// and a record. The newest state of a VM is kept, for one restore. What became of the others is
// kept by their marks, so that a guest that comes with one of them is told why it has lost its
// state.
//
//     STATE_DIRECTORY/saved/UUID/record.json   marks and fates; written last, whole or not at all
//     STATE_DIRECTORY/saved/UUID/MARK.gsnap, MARK.region
//
// Threads: any; one call at a time. Failure: `save.*`, `snapshot.*`. A folder in which files lie
// without a record is as good as empty.
#pragma once

#include <cstdint>
#include <string>

#include "host-daemon/supervisor/sessions/region_image.h"
#include "proto/base/ids.h"
#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/wire/save_mark.h"

namespace gantry::supervisor {

struct SavedState {
    wire::SaveMark mark;
    snapshot::Seed seed;  ///< The snapshot's.
    Epoch epoch;          ///< The session's when it was saved.
    std::uint32_t channel_count = 0;
    RegionSums region;
};

/// What became of a state that is not to be had (any more).
enum class SavedFate : std::uint8_t {
    kUsed,   ///< A guest went on with it.
    kOlder,  ///< The VM was saved again.
    kUnwritten,
};

class SavedStates {
public:
    static constexpr std::size_t kFatesMax = 64;  ///< A VM; the newest.

    struct Paths {
        std::string session;
        std::string region;
    };

    explicit SavedStates(std::string folder) : folder_(std::move(folder)) {}

    /// Where the state with that mark is to be written; makes the VM's folder.
    Result<Paths> begin(const std::string& vm, const wire::SaveMark& mark);
    [[nodiscard]] Paths paths(const std::string& vm, const wire::SaveMark& mark) const;
    /// Its files lie whole. From now on it is the VM's newest, and the one before is removed.
    Result<void> keep(const std::string& vm, const SavedState& state);
    /// The one that the VM's memory belongs to; else why there is none: `save.unknown`,
    /// `save.used`, `save.older`, `save.unwritten`.
    [[nodiscard]] Result<SavedState> find(const std::string& vm, const wire::SaveMark& mark) const;
    /// Removes a state, if it is there, and remembers why.
    Result<void> retire(const std::string& vm, const wire::SaveMark& mark, SavedFate fate);

private:
    struct Record;
    [[nodiscard]] Result<Record> load(const std::string& vm) const GANTRY_REQUIRES(mutex_);
    Result<void> store(const std::string& vm, const Record& record) GANTRY_REQUIRES(mutex_);
    void remove_files(const std::string& vm, const wire::SaveMark& mark) GANTRY_REQUIRES(mutex_);

    const std::string folder_;
    mutable Mutex mutex_;
};

}  // namespace gantry::supervisor
