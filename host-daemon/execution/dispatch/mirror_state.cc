#include "host-daemon/execution/dispatch/mirror_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "host-daemon/execution/memory/pinned_writes.h"
#include "proto/wire/mirror/words.h"

namespace gantry::worker {
namespace {

bool is_zero(std::span<const std::byte> bytes) {
    return std::all_of(bytes.begin(), bytes.end(),
                       [](std::byte one) { return one == std::byte{}; });
}

/// Between the ring and a buffer, around the ring's end.
template <typename Copy>
void for_ring_pieces(const wire::ChannelLayout& layout, std::uint64_t from, std::uint64_t bytes,
                     Copy copy) {
    for (std::uint64_t done = 0; done < bytes;) {
        const std::uint64_t at = (from + done) & (layout.ring_bytes - 1);
        const std::uint64_t take = std::min(bytes - done, layout.ring_bytes - at);
        copy(at, done, take);
        done += take;
    }
}

}  // namespace

bool is_mirrored(const ChannelMemory& memory) {
    const wire::MirrorWords& words = wire::mirror_words(memory.guest_words());
    return words.session[0].load() != 0 || words.session[1].load() != 0;
}

bool is_region_of(const ChannelMemory& memory, const MirrorState& state) {
    const wire::MirrorWords& words = wire::mirror_words(memory.guest_words());
    return words.session[0].load() == state.session[0] &&
           words.session[1].load() == state.session[1];
}

void hold_mirror(ChannelMemory& memory, bool held) {
    if (is_mirrored(memory)) {
        wire::mirror_words(memory.guest_words())
            .hold.store(held ? 1 : 0, std::memory_order_seq_cst);
    }
}

Result<std::optional<MirrorState>> save_mirror(const ChannelMemory& memory, std::uint64_t next) {
    std::optional<MirrorState> saved;
    if (!is_mirrored(memory)) {
        return saved;
    }
    const wire::MirrorWords& words = wire::mirror_words(memory.guest_words());
    const auto position = wire::read_position(words);
    if (!position) {
        return Error{Code::kUnavailable, "mirror.torn",
                     "gantry-relay stopped in the middle of a guest's frame"};
    }
    MirrorState& state = saved.emplace();
    state.session[0] = words.session[0].load();
    state.session[1] = words.session[1].load();
    state.received = position->received;
    state.ring_position = position->ring_position;
    state.pinned_high_water = memory.guest_words().pinned_high_water.load();
    if (state.ring_position > next) {
        const std::uint64_t bytes = state.ring_position - next;
        if (bytes > memory.layout().ring_bytes) {
            return Error{Code::kInvalidArgument, "mirror.ring",
                         fmt::format("{} bytes of commands wait in a ring of {}", bytes,
                                     memory.layout().ring_bytes)};
        }
        state.ring.resize(bytes);
        for_ring_pieces(memory.layout(), next, bytes,
                        [&](std::uint64_t at, std::uint64_t done, std::uint64_t take) {
                            std::memcpy(state.ring.data() + done, memory.ring() + at, take);
                        });
    }
    return saved;
}

Result<std::vector<PoolExtent>> used_pool(const ChannelMemory& memory) {
    std::vector<PoolExtent> extents;
    std::uint64_t total = 0;
    const std::uint64_t used =
        std::min(memory.guest_words().pinned_high_water.load(), memory.layout().pinned_bytes);
    for (std::uint64_t at = 0; at < used; at += wire::kPageBytes) {
        const std::uint64_t bytes = std::min<std::uint64_t>(wire::kPageBytes, used - at);
        if (is_zero(memory.pinned().subspan(at, bytes))) {
            continue;
        }
        total += bytes;
        if (!extents.empty() && extents.back().offset + extents.back().bytes == at) {
            extents.back().bytes += bytes;
        } else {
            extents.push_back({at, bytes});
        }
    }
    if (total > PinnedWrites::kCarriedBytesMax ||
        extents.size() > PinnedWrites::kCarriedRangesMax) {
        return Error{Code::kResourceExhausted, "mirror.pinned",
                     fmt::format("{} MiB of page-locked memory are in use; with a guest that "
                                 "reaches its GPU over TCP at most {} MiB can move",
                                 total >> 20, PinnedWrites::kCarriedBytesMax >> 20)};
    }
    return extents;
}

Result<void> load_mirror(ChannelMemory& memory, const MirrorState& state, std::uint64_t next) {
    const wire::ChannelLayout& layout = memory.layout();
    if (state.ring.size() > layout.ring_bytes) {
        return Error{Code::kInvalidArgument, "mirror.ring",
                     fmt::format("{} bytes of commands do not fit a ring of {}", state.ring.size(),
                                 layout.ring_bytes)};
    }
    for_ring_pieces(layout, next, state.ring.size(),
                    [&](std::uint64_t at, std::uint64_t done, std::uint64_t take) {
                        std::memcpy(memory.writable_ring() + at, state.ring.data() + done, take);
                    });
    wire::GuestDirectory& directory = memory.guest_directory();
    directory.wire_version = wire::kWireVersion;
    directory.region_bytes = memory.where().region_bytes;
    directory.channel_count = memory.where().channel_count;
    directory.magic.store(wire::kRegionMagic, std::memory_order_release);
    wire::ChannelClaim& claim = directory.claims[memory.where().channel_index];
    claim.generation = next >> wire::kGenerationShift;
    claim.state.store(wire::ClaimState::kOpen, std::memory_order_release);
    memory.guest_words().pinned_high_water.store(state.pinned_high_water);
    wire::MirrorWords& words = wire::mirror_words(memory.guest_words());
    wire::publish_position(words, {state.received, state.ring_position});
    words.session[0].store(state.session[0]);
    words.session[1].store(state.session[1]);
    return {};
}

}  // namespace gantry::worker
