// Reads and writes at an offset of a file, as much as was asked for.
//
// Threads: any. Failure: `snapshot.io`, `snapshot.disk_full`, `snapshot.truncated`; never a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "proto/base/result.h"

namespace gantry::snapshot {

/// Writes all of `bytes` at `offset`, whatever the descriptor's own position is. `name`: of the
/// file, for errors, as below.
Result<void> write_at(int fd, const std::string& name, std::uint64_t offset,
                      std::span<const std::byte> bytes);

/// As much as `to` holds; a file that ends before is `snapshot.truncated`.
Result<void> read_at(int fd, const std::string& name, std::uint64_t offset,
                     std::span<std::byte> to);

}  // namespace gantry::snapshot
