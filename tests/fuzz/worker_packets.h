// A worker that its tenant has taken over, against the registry of a gantryd: one run by the
// choices that `input` makes.
//
// The registry adopts it, as after a restart, and then does what moves, operators and peers have it
// do. The worker answers each request with what the input says: the right kind of reply with any
// numbers, strings and blobs in it, another kind, an error, bytes that are none, events that nobody
// expects. When the input is used up it closes its connection. gantryd must be there afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gantry::supervisor {

struct HostileRun {
    int requests = 0;     ///< That the worker was asked.
    int replies_fit = 0;  ///< It answered them with the right kind and no error.
};
HostileRun run_hostile_worker(std::span<const std::uint8_t> input);

}  // namespace gantry::supervisor
