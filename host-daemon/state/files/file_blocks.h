// FileBlocks: a guest's blocks between device memory and the pages of a snapshot file, by several
// threads.
//
// What was page-locked before (prepared_file.h) the device writes itself. All else goes through
// slots (copy_slots.h). A page of the file that is not there yet is allocated by the thread that
// takes it, before anything is written there: a full disk is an error and no signal.
//
// Nobody takes memory away meanwhile: the guest is frozen, or not served yet. What is done beside
// the copies may so take the lock for it (DeviceMemory::hold_layout).
// Only blocks that lie in the arena as a whole; the others are named, and left alone. Copies go
// through the image's one stream, so they wait for nobody's kernels and no stream is made.
// Threads: one caller at a time, which waits. Failure: the first error; `state.*`, `snapshot.*`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host-daemon/state/blocks/copy_slots.h"
#include "host-daemon/state/blocks/file_mapping.h"
#include "host-daemon/state/blocks/memory_image.h"
#include "host-daemon/state/files/file_pieces.h"
#include "host-daemon/state/files/file_transfer.h"
#include "host-daemon/state/files/prepared_file.h"

namespace gantry::state {

struct FileOutcome {
    std::vector<BlockRange> outside;  ///< Left alone, in the order of the runs.
    std::uint64_t block_count = 0;    ///< Done.
    std::string how;                  ///< For a log.
    std::unique_ptr<Mapping> map;     ///< Of a file that was loaded: its end takes milliseconds.
};

class FileBlocks {
public:
    FileBlocks(worker::GuestProcess& process, MemoryImage& memory, CopySlots& slots)
        : process_(process), memory_(memory), slots_(slots) {}

    /// Slots that were made stay, for what is still to come, until their owner gives them back.
    /// Writes blocks of form kBytes to a file that is long enough, at ascending offsets.
    /// `prepared`: settled, of this file; null: nothing is.
    /// `beside`: only where no CPU has to copy.
    Result<FileOutcome> store(int file, std::span<const FileRun> runs, const PreparedFile* prepared,
                              const CopyHooks& beside = {});
    /// Bytes (at ascending offsets) and zeros, then copies. All is done when it returns.
    Result<FileOutcome> load(int file, std::span<const FileRun> runs, const CopyHooks& beside = {});

private:
    worker::GuestProcess& process_;
    MemoryImage& memory_;
    CopySlots& slots_;
};

}  // namespace gantry::state
