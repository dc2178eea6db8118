// MirrorState: what a channel of a mirrored region needs on another host, beside ChannelState.
//
// A guest that reaches its host over TCP keeps a region of its own; what lies in this host's does
// not travel with the guest's memory. So the pinned pool goes along as it stands, with the records
// that have come and were not executed, and the position in the guest's stream from which the next
// host's end goes on (proto/wire/mirror/words.h). Threads: the control thread, while frozen.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "host-daemon/execution/ring/channel_memory.h"
#include "proto/base/result.h"

namespace gantry::worker {

struct MirrorState {
    std::uint64_t session[2] = {0, 0};
    std::uint64_t received = 0;
    std::uint64_t ring_position = 0;
    std::vector<std::byte> ring;  ///< From the next command to execute up to ring_position.
    std::uint64_t pinned_high_water = 0;
};

[[nodiscard]] bool is_mirrored(const ChannelMemory& memory);
/// The region's other user, so nothing has to be carried into it: it stayed where it is.
[[nodiscard]] bool is_region_of(const ChannelMemory& memory, const MirrorState& state);
/// While held, the guest is told nothing and may forget nothing.
void hold_mirror(ChannelMemory& memory, bool held);

/// nullopt when the region is not mirrored. `next`: the position of the next command to execute.
Result<std::optional<MirrorState>> save_mirror(const ChannelMemory& memory, std::uint64_t next);

struct PoolExtent {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};
/// Where the used part of the pool is not zero, in whole pages.
Result<std::vector<PoolExtent>> used_pool(const ChannelMemory& memory);

/// Into a region of zeros. `next` as saved.
Result<void> load_mirror(ChannelMemory& memory, const MirrorState& state, std::uint64_t next);

}  // namespace gantry::worker
