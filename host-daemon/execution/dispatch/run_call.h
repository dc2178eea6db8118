// Runs a call by its handler: hand-written ones of control commands, generated dispatch for others.
//
// Threads: the loop's, and for calls that may wait the lane's. Cost: a look-up and an indirect
// call. A restore and a reset run recorded commands again with replay().
#pragma once

#include <cstdint>

#include "host-daemon/execution/dispatch/call.h"

namespace gantry::worker {

/// Runs the call and answers it, or posts it to its lane's executor where the handler deferred it.
void run_call(Call& call);

/// Runs one recorded command again. `wanted_native`: the value that the object made must get
/// (textures and surfaces); 0: any.
CUresult replay(GuestProcess& process, const RecordedCommand& command,
                Replay why = Replay::kRestore, std::uint64_t wanted_native = 0);

}  // namespace gantry::worker
