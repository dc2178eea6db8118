// FileBlocks: a guest's blocks between device memory and the pages of a snapshot file, by several
// threads, each of which takes the next 32 MiB of the file.
//
// What was page-locked before (prepared_file.h) the device writes itself. Elsewhere there are two
// ways. Registered: the file's own pages are page-locked while the device copies others, and no CPU
// touches a byte; those that were read are let go later (locked_pages.h). Staged: through
// page-locked memory of this process, two slots a thread, one of which the device fills or empties
// while the CPU copies the other, past its caches. Which one is faster a load from tmpfs finds out
// with its first piece (proto/decisions/0004-snapshot-copies.md); all else, and what cannot be
// registered, is staged. A page of the file that is not there yet is allocated by the thread that
// takes it, before anything is written there: a full disk is an error and no signal.
//
// Only blocks that lie in the arena as a whole; the others are named, and left alone. Copies go
// through the image's one stream, so they wait for nobody's kernels and no stream is made.
// Threads: one caller at a time, which waits. Failure: the first error; `state.*`, `snapshot.*`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host-daemon/state/locked_pages.h"
#include "host-daemon/state/memory_image.h"
#include "host-daemon/state/prepared_file.h"

namespace gantry::state {

enum class FileWay : std::uint8_t { kAuto, kRegistered, kStaged };

struct FileRun {
    enum class Form : std::uint8_t { kBytes, kZero, kCopy };
    BlockRange range;
    Form form = Form::kBytes;
    std::uint64_t offset = 0;     ///< kBytes: in the file, a multiple of 4096.
    std::uint64_t origin = 0;     ///< kCopy: first block of device memory that these are copies of.
};

struct FileOutcome {
    std::vector<BlockRange> outside;  ///< Left alone, in the order of the runs.
    std::uint64_t block_count = 0;    ///< Done.
    std::string how;                  ///< For a log.
    std::unique_ptr<LeavingPages> leaving;  ///< Of the file, still page-locked. Null: none.
};

class FileBlocks {
public:
    FileBlocks(worker::GuestProcess& process, MemoryImage& memory)
        : process_(process), memory_(memory) {}

    /// Writes blocks of form kBytes to a file that is long enough, at ascending offsets.
    /// `prepared`: settled, of this file; null: nothing is.
    Result<FileOutcome> store(int file, std::span<const FileRun> runs, FileWay way,
                              const PreparedFile* prepared);
    /// Bytes (at ascending offsets) and zeros, then copies. All is done when it returns.
    Result<FileOutcome> load(int file, std::span<const FileRun> runs, FileWay way);

private:
    worker::GuestProcess& process_;
    MemoryImage& memory_;
};

}  // namespace gantry::state
