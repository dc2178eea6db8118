// Handlers of control commands, and which commands may wait.
//
// CUDA calls are served by functions named on_<symbol> (proto/cuda/gen/worker_dispatch.h); those
// with hand-written payloads are defined in the calls/*.cc files by theme.
#pragma once

#include <cstdint>
#include <span>

#include "host-daemon/execution/dispatch/call.h"

namespace gantry::worker {

using Handler = CUresult (*)(Call&);

/// Handler of a control command; null for CUDA calls, which generated dispatch serves.
Handler find_handler(std::uint16_t number);

/// Copies between the device and the bulk area (calls/bulk.cc).
CUresult write_from_bulk(Call& call);
CUresult read_to_bulk(Call& call);
CUresult look_at_bulk(Call& call);
/// Queues a copy of bytes that will not stay where they are.
CUresult write_staged(Call& call, std::uint64_t address, std::span<const std::byte> bytes,
                      CUstream stream);

/// Allocates; when the quota is used up by memory whose free is still pending, waits for the device
/// and tries again, off the consumer thread (then the call is deferred and the address 0).
CUresult allocate_memory(Call& call, std::uint64_t bytes, std::uint64_t* address);

/// Counts device memory that the driver takes for this command, see Call::charge(), before it is
/// asked. CUDA_ERROR_OUT_OF_MEMORY where the VM's quota has no room, when all that the guest has
/// freed is given back; a call that has to be deferred for that gets CUDA_ERROR_NOT_READY.
CUresult charge_memory(Call& call, std::uint64_t bytes);

/// Stream-ordered allocation and free on a stream that captures: memory nodes of its graph.
CUresult allocate_in_capture(Call& call, std::uint64_t bytes, std::uint64_t stream,
                             std::uint64_t* address);
CUresult free_in_capture(Call& call, std::uint64_t address, std::uint64_t stream);

/// True when asking look_at_wait() again soon makes sense; false: hand the call over at once.
bool is_pollable(const Call& call);
/// True when the call waits for no longer than the device is busy with what the guest gave it, as
/// far as one can tell: it may wait inside the driver while its thread is spared (call_waits.h).
bool may_wait_here(const Call& call);
/// Asks the driver without waiting: is it time to run the call? What only waits is marked as ended
/// when nothing is left of it but the answer.
bool look_at_wait(Call& call);

}  // namespace gantry::worker
