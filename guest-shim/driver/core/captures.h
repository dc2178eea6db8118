// What any call asks about stream captures. As long as none is open that costs one load.
//
// The rules of who may call what meanwhile are kept here, because the host's threads serve all of
// the program's: the worker captures in relaxed mode. While a capture is open, a call that queues
// something waits until the host has done so and returns its result: what native answers at once
// (a legacy stream beside a captured one, a dependency across the capture's border) depends on all
// that was queued before.
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/cuda/abi.h"
#include "proto/cuda/gen/opcodes.h"

namespace gantry::shim {

extern std::atomic<int> g_captures;  ///< Begun and not ended.

/// True while a stream of this process is being captured.
inline bool captures_open() noexcept {
    return __builtin_expect(g_captures.load(std::memory_order_acquire) != 0, 0);
}

/// For calls that are potentially unsafe (those that allocate and free memory at once, wait, or ask
/// whether a wait is over): 900 where an open capture's mode and the thread's forbid
/// them, and these captures are invalid then.
CUresult refuse_in_capture() noexcept;

/// For waiting for the current context: 900 while any stream of it is captured, whatever the modes,
/// and these captures are invalid then.
CUresult refuse_context_in_capture() noexcept;

/// The stream goes: a capture that began on it is over.
void abandon_capture(std::uint64_t stream) noexcept;

/// The result of a call while captures are open: that of the host's if it queued something.
CUresult settled_in_capture(cuda::Op op, CUresult result) noexcept;

}  // namespace gantry::shim
