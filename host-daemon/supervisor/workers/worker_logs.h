// What workers' logs may take of the run directory: those of the living and of the dead.
//
// A worker appends to a file of its own, and may be its tenant's by now; a log stays when its
// worker did not end in order, to tell why. So a file above kLogBytesMax loses all but its last
// kLogBytesKept, and of the dead the newest kDeadLogsKept are kept. A worker lives while its
// control socket is there. Threads: one at a time. Cost: a look at each file of the folder.
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace gantry::supervisor {

inline constexpr std::uint64_t kLogBytesMax = 1 << 20;
inline constexpr std::uint64_t kLogBytesKept = 1 << 18;
inline constexpr std::size_t kDeadLogsKept = 16;

/// `folder`: the run directory's workers/.
void bound_worker_logs(const std::string& folder);
/// At the start, when the living are known: sockets of others, at which nobody listens, are
/// removed, so that their logs are of the dead.
void forget_dead_workers(const std::string& folder, const std::set<std::string>& live_sockets);

}  // namespace gantry::supervisor
