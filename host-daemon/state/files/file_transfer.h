// transfer(): chunks of a snapshot's file to and from device memory, by several threads; which ways
// there are and when which is taken: file_blocks.h. Internal.
// Threads: one caller at a time, which waits. Failure: the first error; `state.file`, `snapshot.*`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "host-daemon/state/blocks/copy_slots.h"
#include "host-daemon/state/blocks/file_mapping.h"
#include "host-daemon/state/files/file_pieces.h"
#include "host-daemon/state/files/prepared_file.h"

namespace gantry::state {

/// What else is done while blocks are copied; each may be empty. The first failure is the copy's.
struct CopyHooks {
    /// Called once, by the caller's thread.
    std::function<Result<void>()> meanwhile;
    /// load(): chunks whose bytes all lie in device memory now, in order; by one other thread.
    std::function<Result<void>(std::span<const FileChunk>)> landed;
};

enum class Direction : std::uint8_t { kToFile, kFromFile };

struct Transferred {
    std::string how;               ///< For a log.
    std::unique_ptr<Mapping> map;  ///< Of the file; no use of it is left. Its end takes a while.
};

/// Ascending chunks. To a file: done when it returns. From a file: queued on the stream, and done
/// when the stream has come to rest.
/// `prepared`: settled, of this file; null: nothing is.
Result<Transferred> transfer(worker::GuestProcess& process, CUstream stream, CopySlots& slots,
                             int file, Direction direction, std::span<const FileChunk> chunks,
                             const PreparedFile* prepared, const CopyHooks& beside);

}  // namespace gantry::state
