// Whether there is room for a snapshot, told by what its session's memory holds.
//
// What a snapshot leaves out (zeros, and what is in the file already) is seen only by looking at
// the bytes. This takes as long as a round of a move's precopy, so nobody asks before there was no
// room for all of the memory. The programs run meanwhile: what they change is not known.
#pragma once

#include <cstdint>

#include "host-daemon/supervisor/sessions/session.h"

namespace gantry::supervisor {

/// Bytes of blocks that a snapshot of the session would hold now. From any thread but the executor
/// of worker calls, on which it asks the workers.
Result<std::uint64_t> stored_bytes_now(Session& session, SourceRunner& driver);

}  // namespace gantry::supervisor
