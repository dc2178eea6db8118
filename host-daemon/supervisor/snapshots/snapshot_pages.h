// SnapshotPages: the pages of a snapshot's file, made while its session still runs.
//
// How many there will be is told by what the programs hold now, each part's memory after that of
// the part before. On tmpfs each worker maps and page-locks the pages of its part (worker.proto:
// PrepareFile), unless they are to be made when they are written; on a disk room is reserved. What
// turns out too little is made up for when the session is frozen, what is too much is cut off in
// the end: a wrong estimate costs time, and nothing else.
//
// A worker that cannot prepare, or dies, fails nothing here: what it would have done is then done
// in the pause, or fails there. A full disk is an error here already, once what is to be stored was
// looked at: where all memory has no room, that without zeros and repeats may have.
// Threads: one. Beside the session's executor: a move may begin meanwhile, workers may be replaced,
// programs start and end. Failure: `snapshot.disk_full`, or what `may_go_on` says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host-daemon/supervisor/sessions/session.h"
#include "proto/control/worker.pb.h"
#include "proto/snapshot/file_pages.h"

namespace gantry::supervisor {

/// What one part will take in the file.
struct PartEstimate {
    std::uint64_t block_count = 0;
    std::uint64_t stored_bytes = 0;  ///< Of blocks.
    std::uint64_t other_bytes = 0;   ///< Of images and the graph.
};

/// Where in the file each part will lie, from its images to the end of its memory: ascending, ends
/// at multiples of a large page. What lies beyond `end_max`, such a multiple too, is left out.
std::vector<snapshot::FileRange> lay_out(std::span<const PartEstimate> parts,
                                         std::uint64_t end_max);

class SnapshotPages {
public:
    /// Asked now and then: an error ends the preparing with it.
    using MayGoOn = std::function<Result<void>()>;

    /// On tmpfs. What ends with its snapshot has no pause that could be short.
    enum class Made : std::uint8_t { kBeforeFreeze, kWhenWritten };

    /// Of an empty file. `name`: for errors.
    static Result<SnapshotPages> prepare(Session& session, SourceRunner& driver, int file,
                                         const std::string& name, Made made,
                                         const MayGoOn& may_go_on);
    SnapshotPages(SnapshotPages&& other) noexcept = default;
    SnapshotPages& operator=(SnapshotPages&&) = delete;
    /// Returns when the workers have let the file go, or do not within reason.
    ~SnapshotPages();

    [[nodiscard]] const std::string& how() const { return how_; }  ///< For a log.
    /// The workers let the file go, and nobody waits for it.
    void leave();

private:
    SnapshotPages() = default;
    static Result<SnapshotPages> make(Session& session, int file, const std::string& name,
                                      Made made, const MayGoOn& may_go_on);
    void drop();
    void prepare_by(Session& session, const std::shared_ptr<Worker>& worker, int file,
                    const snapshot::FileRange& range);
    Result<void> await(Session& session, const std::shared_ptr<Worker>& worker, std::uint64_t bytes,
                       const MayGoOn& may_go_on);

    std::vector<std::shared_ptr<Worker>> preparing_;  ///< Those that were given the file.
    std::string how_;
};

}  // namespace gantry::supervisor
