// A part's memory between its worker and a snapshot's file: the worker copies, whatever its CUDA
// driver is (proto/decisions/0004-snapshot-copies.md).
//
// To a file: the worker says the fingerprints of the blocks (a GPU makes 4 TB/s of them), gantryd
// gives each its place, the worker copies, portion by portion: while one is copied the worker makes
// the fingerprints of the one after the next. What gantryd then reads back is a sample; the
// worker's word is about its own guest's state only, and a restore holds all of it against the
// table.
// From a file: the worker copies; the digest that it then makes of its memory tells whether every
// byte was as the table says.
// Blocks that are not device memory as a whole (variables, arrays) go through the staging area:
// WorkersCopy writes them, part_loader.h loads them.
//
// Threads: one, which has others wait for the worker.
// Failure: the first error; nothing of a frozen worker has changed.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host-daemon/supervisor/parts/digest_report.h"
#include "host-daemon/supervisor/parts/part_fingerprints.h"
#include "host-daemon/supervisor/parts/worker_state.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/memory_writer.h"

namespace gantry::supervisor {

/// How long a worker may take over so many bytes of a file.
std::chrono::milliseconds patience_for(std::uint64_t bytes);

/// Blocks that a worker is to copy to a file, or from one.
struct FileLoad {
    control::FileRunList runs;
    std::size_t blocks = 0;  ///< That these are.
    int file = -1;
};

struct LoadedByWorker {
    std::vector<engine::BlockAddress> outside;  ///< Left alone; ascending.
    std::string how;
    std::vector<FingerprintedBlock> looked;  ///< Others, at which it has looked meanwhile.
};

/// The memory of a frozen part on its way into a file, portion by portion: the worker copies the
/// first blocks while the others are looked at and get their places, and reads those once more that
/// were copied before. It ends when the worker has answered; one that did not in time may still
/// write to the file, which is never committed then.
class WorkersCopy {
public:
    /// Blocks of which the fingerprints have to be there before the first is copied.
    static constexpr std::size_t first_count() { return kFirstPortion * (1 + kPortionGrowth); }
    /// `first`: first_count() of them, or all. The key stays as long.
    WorkersCopy(WorkersSource& source, const std::shared_ptr<Worker>& worker,
                const FirstFingerprints& first, const snapshot::FingerprintKey& key);
    ~WorkersCopy();
    WorkersCopy(const WorkersCopy&) = delete;
    WorkersCopy& operator=(const WorkersCopy&) = delete;

    /// Places all. What is left to the writer can be written then, its contents need not be there.
    Result<void> begin(snapshot::MemoryWriter& writer);
    /// All lies in the file. `differences`: found in a sample that is read back. What the worker
    /// holds then.
    Result<engine::BlockSetDigest> end(DigestReport* differences);
    [[nodiscard]] const std::string& how() const { return how_; }  ///< For a log.

private:
    /// Blocks of the first StoreBlocks, and at most twice as many of the last: the device idles
    /// while the first are looked at and get their places, and nothing is left to do while the last
    /// are copied.
    static constexpr std::size_t kFirstPortion = 4096;
    /// To place a block takes a small part of the time that it takes to copy one.
    static constexpr std::size_t kPortionGrowth = 2;
    /// Times the first portion: of more the worker would be looking, in the end, when all else is
    /// copied.
    static constexpr std::size_t kPortionMax = 32;

    struct Portion {
        std::size_t begin = 0;
        std::size_t count = 0;
        [[nodiscard]] std::size_t end() const { return begin + count; }
    };

    struct Copy {
        WorkerChannel::Sent sent;
        std::size_t blocks = 0;
    };

    void plan_portions();
    /// Gives it its places; what of it the worker is to store.
    Result<FileLoad> place(const Portion& portion, snapshot::MemoryWriter& writer);
    /// The worker takes these requests one after the other: what it looks at goes on from where
    /// the one sent before has ended.
    [[nodiscard]] Result<WorkerChannel::Sent> send(const FileLoad& portion,
                                                   std::size_t look_count) const;
    /// Waits for the first portion that is still under way.
    Result<void> end_first();
    Result<void> store_outside() const;
    Result<void> check_sample(DigestReport* differences) const;

    WorkersSource& source_;
    const std::shared_ptr<Worker> worker_;
    const std::size_t total_;
    const snapshot::FingerprintKey& key_;
    std::vector<FingerprintedBlock> blocks_;  ///< As many as have been looked at.
    std::vector<std::uint64_t> places_;       ///< Of each block.
    std::vector<Portion> portions_;
    std::string file_name_;
    int file_ = -1;
    std::string how_;
    std::vector<engine::BlockAddress> outside_;  ///< Left alone by the worker so far.
    std::deque<Copy> copies_;                    ///< Under way, as they were sent.
};

Result<FileLoad> load_of(const snapshot::StoredMemory& memory);
/// `more_follow`: of the same part, with which it comes next.
Result<LoadedByWorker> load_by_worker(Worker& worker, const FileLoad& load, bool more_follow);

/// Of all that the worker holds now.
Result<engine::BlockSetDigest> digest_now(Worker& worker);
/// The same, after the worker has copied blocks to a file or from one: it has read most of them
/// while others were on their way.
Result<engine::BlockSetDigest> digest_after_copies(Worker& worker);

}  // namespace gantry::supervisor
