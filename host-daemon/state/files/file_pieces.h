// What FileBlocks has to copy: pieces of device memory, each in one piece in the file too, in
// chunks of the file that one thread does at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "host-daemon/state/blocks/memory_image.h"

namespace gantry::state {

/// Blocks that a snapshot's file has, and how.
struct FileRun {
    enum class Form : std::uint8_t { kBytes, kZero, kCopy };
    BlockRange range;
    Form form = Form::kBytes;
    std::uint64_t offset = 0;  ///< kBytes: in the file, a multiple of 4096.
    std::uint64_t origin = 0;  ///< kCopy: first block of device memory that these are copies of.
};

struct FilePiece {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;
};

/// Neighbours in the file; at most a plan's chunk_bytes, and none crosses a multiple of it.
struct FileChunk {
    std::span<const FilePiece> pieces;
    [[nodiscard]] std::uint64_t begin() const { return pieces.front().offset; }
    [[nodiscard]] std::uint64_t end() const { return pieces.back().offset + pieces.back().bytes; }
};

struct FilePlan {
    /// Of a store and of a load (copy_slots.h).
    static constexpr std::uint64_t kStoreChunkBytes = 16U << 20;
    static constexpr std::uint64_t kLoadChunkBytes = 8U << 20;

    std::vector<FilePiece> pieces;
    std::vector<FileChunk> chunks;  ///< Of `pieces`.
    std::vector<FileRun> zeros;
    std::vector<FileRun> copies;
    std::vector<BlockRange> outside;
    std::uint64_t block_count = 0;

    /// `file_bytes`: the file's length. Refuses runs out of order or beyond it.
    static Result<FilePlan> make(const MemoryImage& memory, std::span<const FileRun> runs,
                                 std::uint64_t file_bytes, std::uint64_t chunk_bytes);
};

}  // namespace gantry::state
