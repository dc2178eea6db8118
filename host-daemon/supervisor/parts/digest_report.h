// DigestReport: what to say when the memory of a part is not what a snapshot file says: how many
// blocks differ, the first of them by address, and on which side it looks wrong.
//
// Made after a digest was found to differ, never before: it takes a second look at all memory, and
// reads the file's table again. Threads: one. Failure: what could not be found out is said so.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host-daemon/supervisor/workers/worker.h"
#include "migration/engine/state.h"

namespace gantry::supervisor {

/// "device memory at 0x300000010000", and what else there is.
std::string name_of(const engine::BlockAddress& block);

struct FileDifference {
    std::string text;
    /// The file itself is damaged there: a block that is not what its table says.
    std::optional<std::uint64_t> damaged_at;
};

/// Of a restore: the worker's memory beside the part's table in the file.
FileDifference memory_beside_file(Worker& worker, const std::string& path, engine::Seed seed);

/// Of a snapshot: what the worker and gantryd made of the same bytes.
class DigestReport {
public:
    void add(const engine::BlockAddress& block, const engine::Fingerprint& of_worker,
             const engine::Fingerprint& of_gantryd);
    [[nodiscard]] bool empty() const { return blocks_.empty(); }
    /// Looks at the worker's memory once more, to see which of the two is right.
    [[nodiscard]] std::string text(Worker& worker) const;

private:
    struct Differs {
        engine::BlockAddress block;
        engine::Fingerprint of_worker;
        engine::Fingerprint of_gantryd;
    };
    std::vector<Differs> blocks_;
};

}  // namespace gantry::supervisor
