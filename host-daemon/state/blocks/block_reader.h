// BlockReader: fingerprints of a guest's blocks where they lie, and copies of them with the
// fingerprints of the copies.
//
// Three ways, chosen per block: in place by the CPU (device memory that this process can read), by
// a kernel on the device (gpu_fingerprints.h), or through a copy in page-locked memory (arrays,
// blocks that are not all of the guest's, and a device without the other two).
//
// Invariant: the fingerprint that comes with a copy is that of the copied bytes; those of
// for_each_fingerprint are of live memory and only as good as the memory is still.
// Threads: one caller at a time (the worker's control thread). Failure: reasons `state.*`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "host-daemon/state/blocks/fingerprint_by.h"
#include "host-daemon/state/blocks/gpu_fingerprints.h"
#include "host-daemon/state/blocks/memory_image.h"
#include "host-daemon/state/blocks/rate_limiter.h"

namespace gantry::state {

struct CopiedBlock {
    BlockAddress address;
    Fingerprint fingerprint;
};

/// Null: the CPU makes them.
Result<std::unique_ptr<GpuFingerprints>> make_gpu_fingerprints(const worker::Device& device,
                                                               FingerprintBy by);

/// The fingerprints of a range's blocks, to a digest.
void add_fingerprints(const BlockRange& range, std::span<const Fingerprint> fingerprints,
                      engine::BlockSetDigest* digest);

class BlockReader {
public:
    /// Before the guest's first module is loaded, see gpu_fingerprints.h. `made`: by
    /// make_gpu_fingerprints() before; null: is made now.
    BlockReader(worker::GuestProcess& process, MemoryImage& memory, FingerprintBy by,
                std::unique_ptr<GpuFingerprints> made = nullptr);

    /// Of the time, that for_each_fingerprint may keep the GPU at work; 0: all of it. (The CPU's
    /// work is not held back: the operating system shares it out.)
    void set_share(unsigned percent) { pace_.set_share(percent); }
    /// Since it was last asked.
    [[nodiscard]] std::uint64_t take_rested_us() { return pace_.take_rested_us(); }
    /// The fingerprints of all blocks of a range.
    using Visit = std::function<void(const BlockRange&, std::span<const Fingerprint>)>;
    /// Calls visit for every block there is but the `known` ones, neighbours together, ascending
    /// but for blocks that are read through a copy; vanished ones are left out.
    Result<void> for_each_fingerprint(const snapshot::FingerprintKey& key, const Visit& visit,
                                      std::vector<BlockRange> known = {});
    /// The same of these alone.
    Result<void> for_each_fingerprint_of(std::span<const BlockRange> ranges,
                                         const snapshot::FingerprintKey& key, const Visit& visit);

    /// Copies blocks to `out`, packed, in order; vanished ones are left out.
    Result<std::vector<CopiedBlock>> copy(const snapshot::FingerprintKey& key,
                                          std::span<const BlockAddress> blocks,
                                          std::span<std::byte> out);

    /// Of blocks that lie in the arena as a whole, in order.
    Result<std::vector<Fingerprint>> fingerprints_of(const snapshot::FingerprintKey& key,
                                                     std::span<const BlockRange> whole);

private:
    /// Of a range of at most kGpuLookBlocks, into seen_.
    Result<void> look(const snapshot::FingerprintKey& key, const BlockRange& range,
                      const Visit& visit);
    /// Those that lie in memory as a whole; the others are left alone.
    Result<void> look_at_whole(const snapshot::FingerprintKey& key, const BlockRange& range,
                               const Visit& visit);
    /// Those that are not in seen_ yet.
    Result<void> look_at_copies(const snapshot::FingerprintKey& key, const BlockRange& range,
                                const Visit& visit);
    /// False: the GPU is busy, and has not done all.
    Result<bool> look_by_gpu(const snapshot::FingerprintKey& key, const BlockRange& range,
                             std::span<const std::uint64_t> whole, const Visit& visit);
    /// Blocks that lie in `range`, ascending: visited, run by run, and noted in seen_.
    void show(const BlockRange& range, std::span<const std::uint64_t> blocks,
              std::span<const Fingerprint> fingerprints, const Visit& visit);
    /// Nullopt: the GPU is busy.
    Result<std::optional<std::vector<CopiedBlock>>> copy_by_gpu(
        const snapshot::FingerprintKey& key, std::span<const BlockAddress> blocks,
        std::span<std::byte> out);
    /// By the CPU where it can read device memory.
    void look_in_place(const snapshot::FingerprintKey& key,
                       std::span<const std::uint64_t> addresses, std::span<Fingerprint> out);
    Result<std::vector<CopiedBlock>> copy_in_place(const snapshot::FingerprintKey& key,
                                                   std::span<const BlockAddress> blocks,
                                                   std::span<std::byte> out);
    Result<std::vector<CopiedBlock>> copy_through_driver(const snapshot::FingerprintKey& key,
                                                         std::span<const BlockAddress> blocks,
                                                         std::span<std::byte> out);

    worker::GuestProcess& process_;
    MemoryImage& memory_;
    RateLimiter pace_;
    std::unique_ptr<GpuFingerprints> gpu_;  ///< Null: the CPU does it all.
    Result<void> usable_;                   ///< Why not: a GPU was asked for, and cannot.
    // Of the range in hand. Kept, since the system makes fresh pages no faster than a GPU sums
    // what they tell of.
    std::vector<char> seen_;  ///< By block: its fingerprint was shown.
    std::vector<std::uint64_t> addresses_;
    std::vector<Fingerprint> fingerprints_;
    RateLimiter::Duration worked_{};  ///< The device's part of it, without the visits.
};

}  // namespace gantry::state
