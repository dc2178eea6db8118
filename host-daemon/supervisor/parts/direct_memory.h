// DirectMemory: device memory of one worker that this process can map: the soft GPU's.
//
// A worker gives its pieces of device memory as descriptors (worker.proto: ExportMemory). Where one
// is a plain file that nobody can cut short (a memfd sealed against it) the piece is mapped here,
// and its blocks need no worker and no staging area to be read or written. Memory of a real GPU is
// no such file: then nothing is mapped, and all goes through the worker.
//
// What lies there stays the worker's: only while it is frozen, or has no guest yet, does it hold
// still. A worker that changes it meanwhile harms its own guest's state only.
// Threads: map() one; the rest any, nothing changes. Failure: a piece that cannot be mapped is left
// out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "host-daemon/supervisor/workers/worker.h"
#include "migration/engine/state.h"

namespace gantry::supervisor {

class DirectMemory {
public:
    enum class For { kReading, kWriting };

    static DirectMemory map(Worker& worker, For purpose);
    DirectMemory(DirectMemory&&) noexcept = default;
    DirectMemory& operator=(DirectMemory&&) = delete;
    ~DirectMemory();

    /// Where these device addresses are mapped; empty: not, or not in one piece.
    [[nodiscard]] std::span<std::byte> find(std::uint64_t address, std::uint64_t bytes) const;
    /// True when nothing has ever been put there, so that it reads as zeros. To touch it would
    /// allocate it.
    [[nodiscard]] bool is_hole(std::uint64_t address, std::uint64_t bytes) const;
    [[nodiscard]] bool empty() const { return pieces_.empty(); }
    [[nodiscard]] std::uint64_t bytes() const;
    /// For::kReading: take(block) for all that are not hole as a whole.
    template <typename Take>
    void for_each_block(Take take) const {
        for (const auto& [address, piece] : pieces_) {
            std::uint64_t next = 0;
            for (const auto& [begin, end] : piece.data) {
                next = std::max(next, begin / engine::kBlockBytes * engine::kBlockBytes);
                for (; next < end && next + engine::kBlockBytes <= piece.bytes;
                     next += engine::kBlockBytes) {
                    take(std::span<const std::byte, engine::kBlockBytes>(piece.base + next,
                                                                         engine::kBlockBytes));
                }
            }
        }
    }

private:
    struct Piece {
        std::byte* base = nullptr;
        std::uint64_t bytes = 0;
        std::map<std::uint64_t, std::uint64_t> data;  ///< First offset -> end, of what is not hole.
    };

    DirectMemory() = default;
    bool add(std::uint64_t address, std::uint64_t bytes, int file, For purpose);
    [[nodiscard]] std::map<std::uint64_t, Piece>::const_iterator piece_at(
        std::uint64_t address, std::uint64_t bytes) const;

    std::map<std::uint64_t, Piece> pieces_;  ///< By device address.
};

}  // namespace gantry::supervisor
