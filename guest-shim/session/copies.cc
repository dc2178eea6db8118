#include "guest-shim/session/copy.h"
#include "proto/cuda/handle_bits.h"

namespace gantry::session {
namespace {

constexpr std::uint64_t kThreadBytes = 512ull << 10;  // A thread for less costs what it brings.
constexpr std::uint64_t kSharedBytes = 256ull << 10;  // But one that is awake.
constexpr std::uint64_t kLongBytes = 1ull << 20;      // Less is copied before a helper is awake.
constexpr std::uint64_t kLeastSliceBytes = 64ull << 10;
constexpr std::uint64_t kFewSlicesBytes = 512ull << 10;  // A slice costs the worker 4 us.

}  // namespace

void Copy::begin(const Thread& self) noexcept {
    const wire::HostWords& words = *g_connection.host;
    lane = self.lane;
    context = self.current;
    is_shared = !g_connection.environment.synchronous &&
                words.shares_bulk.load(std::memory_order_relaxed) != 0 &&
                (self.current == 0 || self.current == cuda::primary_context_handle(0));
    announce = words.announce.load(std::memory_order_acquire);
    epoch = words.epoch.load(std::memory_order_acquire);
}

bool Copy::is_unannounced() const noexcept {
    const wire::HostWords& words = *g_connection.host;
    return (announce & 1) == 0 && words.announce.load(std::memory_order_acquire) == announce &&
           words.epoch.load(std::memory_order_acquire) == epoch;
}

bool Copy::claim(std::uint64_t* offset, std::uint64_t* count) noexcept {
    if (result.load(std::memory_order_relaxed) != 0) {
        return false;
    }
    *offset = next.fetch_add(slice, std::memory_order_relaxed);
    if (*offset >= bytes) {
        return false;
    }
    const std::uint64_t left = bytes - *offset;
    *count = left < slice ? left : slice;
    return true;
}

void Copy::note_result(CUresult outcome) noexcept {
    std::uint32_t none = 0;
    if (outcome != CUDA_SUCCESS) {
        result.compare_exchange_strong(none, static_cast<std::uint32_t>(outcome));
    }
}

void Copy::note_end(std::uint64_t position) noexcept {
    std::uint64_t seen = end.load(std::memory_order_relaxed);
    while (seen < position && !end.compare_exchange_weak(seen, position)) {
    }
}

CUresult Copy::post(wire::ControlOp op, const void* args, std::uint32_t args_bytes,
                    const void* trailing, std::uint64_t trailing_bytes,
                    std::uint64_t* position) noexcept {
    std::uint64_t behind = 0;
    const CUresult outcome = post_on(lane, context, op, args, args_bytes, trailing,
                                     static_cast<std::uint32_t>(trailing_bytes), position, &behind);
    if (outcome == CUDA_SUCCESS) {
        note_end(behind);
    }
    return outcome;
}

std::uint64_t slice_for(std::uint64_t bytes, std::uint64_t most) noexcept {
    const std::uint64_t slices = bytes < kFewSlicesBytes ? 2 : 4;
    const std::uint64_t slice = wire::align_up(bytes / slices, kLeastSliceBytes);
    const std::uint64_t least = slice < kLeastSliceBytes ? kLeastSliceBytes : slice;
    return least < most ? least : most;
}

/// One thread copies 5 to 13 GB/s, a link carries 50.
Help help_for(std::uint64_t bytes, unsigned most_threads) noexcept {
    const unsigned half = g_connection.cpus / 2;
    const unsigned most = half < most_threads ? half : most_threads;
    const std::uint64_t least = bytes < kSharedBytes ? 1 : 2;
    const std::uint64_t worth = bytes / kThreadBytes > least ? bytes / kThreadBytes : least;
    const unsigned threads = worth < most ? static_cast<unsigned>(worth) : most;
    return Help{threads > 1 ? threads - 1 : 0, bytes >= kLongBytes};
}

}  // namespace gantry::session
