// MirrorWords: how far the host's end of a mirrored region has taken the guest's stream, for the
// worker that takes the channel over on another host (proto/decisions/0003-tcp-guests.md).
//
// They lie in the second half of the channel's GuestWords page, in the host's region only: the host
// end of the mirror (gantry-relay) writes that page there, no guest can. `session` 0: the region is
// not mirrored.
//
// RECEIVED AND RING_POSITION belong together: the guest's stream up to `received` lies in the
// region as pinned bytes, words and whole records below `ring_position`. What came behind may lie
// there too, and comes again. Publishing a pair is a sequence lock of one writer.
// HOLD. The worker raises it when it is frozen and lowers it when it serves (again). While it is
// up, the host end forwards nothing to the guest and acknowledges nothing: it reads `received`,
// then `hold`, and acknowledges what it read; the worker raises `hold`, then reads `received`. So
// the guest keeps everything that the next host has not got.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "proto/wire/region.h"

namespace gantry::wire {

struct MirrorWords {
    std::atomic<std::uint64_t> session[2];  ///< The link's name, which no other guest can guess.
    std::atomic<std::uint32_t> hold;
    std::uint32_t reserved;
    std::atomic<std::uint64_t> version;  ///< Odd while the pair is being written.
    std::atomic<std::uint64_t> received;
    std::atomic<std::uint64_t> ring_position;
};

inline constexpr std::uint64_t kMirrorWordsOffset = kPageBytes / 2;
static_assert(offsetof(GuestWords, pinned_high_water) + sizeof(std::uint64_t) <=
              kMirrorWordsOffset);
static_assert(kMirrorWordsOffset + sizeof(MirrorWords) <= kPageBytes);

/// Of a region with one channel that is laid out as this one is.
constexpr std::uint64_t single_region_bytes(const ChannelLayout& layout) {
    return 2 * kPageBytes + layout.end - layout.channel_offset;
}

inline MirrorWords& mirror_words(GuestWords& words) {
    return *reinterpret_cast<MirrorWords*>(reinterpret_cast<std::byte*>(&words) +
                                           kMirrorWordsOffset);
}

struct MirrorPosition {
    std::uint64_t received = 0;
    std::uint64_t ring_position = 0;  ///< 0: the guest has not claimed its channel yet.
};

inline void publish_position(MirrorWords& words, MirrorPosition position) {
    const std::uint64_t version = words.version.load(std::memory_order_relaxed);
    words.version.store(version + 1, std::memory_order_seq_cst);
    words.received.store(position.received, std::memory_order_seq_cst);
    words.ring_position.store(position.ring_position, std::memory_order_seq_cst);
    words.version.store(version + 2, std::memory_order_seq_cst);
}

/// nullopt: the writer stands still in the middle of a pair (it has died there).
inline std::optional<MirrorPosition> read_position(const MirrorWords& words) {
    constexpr int kAttempts = 100'000;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        const std::uint64_t version = words.version.load(std::memory_order_seq_cst);
        const MirrorPosition position{words.received.load(std::memory_order_seq_cst),
                                      words.ring_position.load(std::memory_order_seq_cst)};
        if (version % 2 == 0 && words.version.load(std::memory_order_seq_cst) == version) {
            return position;
        }
    }
    return std::nullopt;
}

}  // namespace gantry::wire
