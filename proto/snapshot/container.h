// Snapshot container: streaming writer and reader of FORMAT.md.
//
// The reader treats the file as hostile: every length is checked against a limit before memory is
// taken for it, every checksum before content is handed out. It hands out sections as it goes; only
// a successful return means that the whole file was intact.
// One thread at a time per object. Errors carry the file's name and the offset.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "proto/base/result.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::snapshot {

class ObjectGraph;
class SnapshotHeader;
class SnapshotSummary;

inline constexpr std::uint32_t kContainerVersion = 2;

enum class Codec : std::uint32_t { kStored = 0, kLz4 = 1, kZstd = 2 };

struct BlockRef {
    std::uint64_t part = 0;
    std::uint32_t space = 0;
    std::uint64_t index = 0;
    friend constexpr bool operator==(const BlockRef&, const BlockRef&) = default;
};

struct BlockRefHash {
    std::size_t operator()(const BlockRef& ref) const {
        return ((ref.part * 0x9E3779B97F4A7C15ULL) ^ (ref.index * 0xBF58476D1CE4E5B9ULL)) +
               ref.space;
    }
};

/// A file that appears under its name whole or not at all. Not copyable. Until then it has no name,
/// so that it is gone with its owner, however that ends; where the file system needs one it has
/// another, and is removed unless commit succeeded.
class AtomicFile {
public:
    /// Refuses a path at which something other than a regular file is, or a link to such.
    static Result<AtomicFile> create(const std::string& path);
    AtomicFile(AtomicFile&& other) noexcept;
    AtomicFile& operator=(AtomicFile&&) = delete;
    ~AtomicFile();

    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    /// fsync, rename, fsync of the folder.
    Result<void> commit();

private:
    AtomicFile(std::string path, std::string temporary, int fd);
    Result<void> name();
    std::string path_;
    std::string temporary_;  ///< Empty: it has no name.
    int fd_ = -1;
};

class MemoryWriter;

/// Writes a snapshot to a file descriptor it does not own. Call order: construct, any add_*,
/// finish.
class SnapshotWriter {
public:
    /// name: of the file, for errors. The header's seed must be fresh and random.
    SnapshotWriter(int fd, std::string name, const SnapshotHeader& header, Codec codec);
    ~SnapshotWriter();

    Result<void> add_graph(std::uint64_t part, std::string_view graph);
    Result<void> add_image(std::span<const std::byte, 32> sha256, std::span<const std::byte> bytes);
    /// One block of memory; zero blocks and repeats cost an entry only.
    Result<void> add_block(const BlockRef& ref, BlockSpan bytes);
    /// All blocks of one part, `count` of them, stored as they are by others; the part has none
    /// otherwise. Nothing else is added until end_memory(), and the writer lives as long. The file
    /// must be seekable.
    Result<MemoryWriter*> begin_memory(std::uint64_t part, std::uint64_t count);
    Result<void> end_memory();
    /// Writes summary and end. A regular file that is longer is cut to what was written. The caller
    /// still has to commit its file.
    Result<void> finish();

    [[nodiscard]] std::uint64_t bytes_written() const;
    /// Of all blocks added so far for this part.
    [[nodiscard]] BlockSetDigest digest(std::uint64_t part) const;

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

enum class StoredForm : std::uint32_t { kBytes = 1, kZero = 2, kCopyOf = 3 };

struct StoredBlock {
    BlockRef ref;
    StoredForm form = StoredForm::kBytes;
    Fingerprint fingerprint;
    std::span<const std::byte> bytes;  ///< kBytes: 65536, valid during the call.
    BlockRef origin;                   ///< kCopyOf: a kBytes block handed out before.
    std::uint32_t stored_bytes = 0;    ///< As it lies in the file, for statistics.
};

/// A part's memory section: its table, read and verified, and where the contents are.
struct StoredMemory {
    std::uint64_t part = 0;
    std::span<const StoredBlock> blocks;  ///< Ascending; `bytes` are empty, see `offset`.
    /// Where the bytes of the first block of form kBytes begin; the others' follow in order.
    std::uint64_t offset = 0;
    int fd = -1;
    const std::string* name = nullptr;

    /// Without the first `count` blocks.
    [[nodiscard]] StoredMemory beyond(std::size_t count) const;
    /// Contents into memory, by any number of threads. What comes is not verified.
    Result<void> read(std::uint64_t at, std::span<std::byte> to) const;
    /// What to say of a block, stored at this offset, that does not have its fingerprint.
    [[nodiscard]] Error damaged(std::uint64_t at) const;
};

/// Receives a snapshot section by section. Returning an error ends the reading with it.
class SnapshotVisitor {
public:
    virtual ~SnapshotVisitor() = default;
    virtual void on_version(std::uint32_t version) { (void)version; }
    virtual Result<void> on_header(const SnapshotHeader& header) = 0;
    virtual Result<void> on_graph(std::uint64_t part, std::string_view graph) = 0;
    virtual Result<void> on_image(std::span<const std::byte, 32> sha256,
                                  std::span<const std::byte> bytes) = 0;
    /// Of a file that can be read at any offset, before on_memory(): the first blocks of a section
    /// whose table is still being read. What they say makes sense, but the table's checksum is
    /// still to come: what is done with them is for nothing where on_memory() does not follow. They
    /// are there during the call. Of a short table there is no such call.
    virtual Result<void> on_first_blocks(const StoredMemory& memory) {
        (void)memory;
        return {};
    }
    /// Of a file that can be read at any offset. True: the visitor has read the contents and holds
    /// them against their fingerprints itself; false: they come by on_blocks().
    virtual Result<bool> on_memory(const StoredMemory& memory) {
        (void)memory;
        return false;
    }
    virtual Result<void> on_blocks(std::span<const StoredBlock> blocks) = 0;
    virtual Result<void> on_end(const SnapshotSummary& summary) = 0;
};

/// Opens a regular file for reading, and waits for none that is something else. The caller closes.
Result<int> open_snapshot(const std::string& path);
/// Reads fd from its present position to its end. Verifies checksums, fingerprints and digests.
/// Returns the bytes read.
Result<std::uint64_t> read_snapshot(int fd, const std::string& name, SnapshotVisitor& visitor);
Result<std::uint64_t> read_snapshot(const std::string& path, SnapshotVisitor& visitor);

Seed random_seed();

}  // namespace gantry::snapshot
