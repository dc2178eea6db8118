// MemoryImage: a guest process's memory as 64 KiB blocks, read and written while kernels may run.
//
// Which blocks there are: every mapped extent of the arena, the blocks that module variables lie
// in, the ranges that the driver calls its own (extension), and arrays in linear form. Copies go
// through one page-locked buffer on a stream of their own, so that they wait for nobody's kernels.
//
// Invariant: a block's fingerprint is always that of bytes that were copied out, never of live
// memory; no extent is unmapped, no array and no module ended while a copy of it runs
// (DeviceMemory::hold_layout).
// Threads: one at a time (the worker's control thread). Failure: reasons `state.*`.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "host-daemon/execution/process/guest_process.h"
#include "host-daemon/state/blocks/block_range.h"
#include "migration/engine/state.h"
#include "proto/base/thread_pool.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::state {

using engine::BlockAddress;
using snapshot::Fingerprint;
using snapshot::kBlockBytes;

class MemoryImage {
public:
    explicit MemoryImage(worker::GuestProcess& process);
    ~MemoryImage();
    MemoryImage(const MemoryImage&) = delete;
    MemoryImage& operator=(const MemoryImage&) = delete;

    /// The arena's memory changes hands by itself: its blocks are none of this image's from here
    /// on, and writing one is refused.
    void set_arena_is_shared(bool is_shared) { arena_is_shared_ = is_shared; }
    [[nodiscard]] bool arena_is_shared() const { return arena_is_shared_; }

    /// All blocks there are now, ascending.
    [[nodiscard]] std::vector<BlockRange> ranges() const;
    [[nodiscard]] std::uint64_t block_count() const;
    [[nodiscard]] bool contains(BlockAddress block) const;

    /// Copies blocks of one range out; what has vanished meanwhile is reported as false in `valid`.
    /// `out` holds count * kBlockBytes.
    Result<bool> read(const BlockRange& range, std::span<std::byte> out);
    /// Writes one block; zero bytes: pass an empty span. False: no such block (yet).
    Result<bool> write(BlockAddress block, std::span<const std::byte> bytes);

    /// The page-locked buffer, of kBatchBlocks: bytes that are read into it are copied once only.
    [[nodiscard]] std::span<std::byte> buffer() const {
        return {buffer_, kBatchBlocks * kBlockBytes};
    }
    /// Memory that the driver can copy from and to directly (a staging area), from now on. False:
    /// it cannot, and everything goes through the buffer.
    bool add_staging(std::span<std::byte> area);
    void remove_staging(std::span<std::byte> area);

    /// Writes whole blocks of device memory without a gap; false: there is one, nothing done.
    /// Zeros: pass no bytes. Bytes in a staging area must stay until settle().
    Result<bool> write_run(BlockAddress first, std::uint64_t count,
                           std::span<const std::byte> bytes);

    /// Copies whole blocks of device memory from another device address (a window); done after
    /// settle().
    Result<void> pull(std::uint64_t first, std::uint64_t count, CUdeviceptr from);

    /// The driver copies to and from there without a detour.
    [[nodiscard]] bool is_direct(const std::byte* at, std::uint64_t bytes) const;
    [[nodiscard]] ThreadPool& threads() { return threads_; }
    /// What is queued to it waits for nobody's kernels.
    [[nodiscard]] CUstream stream() const { return stream_; }
    /// Waits for the writes that are still under way.
    Result<void> settle();

    /// Every byte of the block belongs to the guest (no gap between variables).
    [[nodiscard]] bool is_whole(BlockAddress block) const;
    /// All of them lie in the arena as a whole.
    [[nodiscard]] bool are_whole(std::span<const BlockAddress> blocks) const;
    /// Those blocks of a device range that lie in the arena as a whole, ascending, neighbours
    /// together. While the layout is held they stay, so they may be read without the driver's help.
    /// What lies elsewhere (module variables) goes when the driver is told so, whoever looks at it.
    [[nodiscard]] std::vector<BlockRange> whole_in(const BlockRange& range) const;

    /// Blocks copied in one go, and the size of the buffer.
    static constexpr std::uint64_t kBatchBlocks = 64;

private:
    Result<bool> read_device(std::uint64_t address, std::span<std::byte> out);
    Result<void> check_writable(std::uint64_t address) const;
    Result<bool> write_device(std::uint64_t address, std::span<const std::byte> bytes);
    Result<bool> read_array(const BlockRange& range, std::span<std::byte> out);
    Result<bool> write_array(BlockAddress block, std::span<const std::byte> bytes);
    /// Parts of [address, address + bytes) that belong to the guest, clipped.
    struct Piece {
        std::uint64_t address = 0;
        std::uint64_t bytes = 0;
        std::uint64_t lies_at = 0;  ///< OutsideRange.
    };
    [[nodiscard]] std::vector<Piece> pieces_of(std::uint64_t address, std::uint64_t bytes) const;
    /// As many as were asked for: there is no gap between them.
    [[nodiscard]] static std::uint64_t bytes_of(std::span<const Piece> pieces);
    /// `bytes`, which begin at `address`; none: zeros.
    Result<void> write_pieces(std::span<const Piece> pieces, std::uint64_t address,
                              std::span<const std::byte> bytes);
    CUresult copy_out(std::uint64_t address, std::byte* to, std::uint64_t bytes);
    CUresult copy_in(std::uint64_t address, const std::byte* from, std::uint64_t bytes);

    /// Device memory that this process can write itself. No bytes: zeros.
    void write_in_place(std::uint64_t address, const std::byte* from, std::uint64_t bytes);
    worker::GuestProcess& process_;
    std::vector<std::span<std::byte>> staging_;
    CUstream stream_ = nullptr;
    std::byte* buffer_ = nullptr;
    bool page_locked_ = false;
    ThreadPool threads_;
    bool writing_ = false;  ///< Copies to the device may be under way on the stream.
    bool arena_is_shared_ = false;
};

}  // namespace gantry::state
