// PartSource: one guest process as the migration engine sees it at the source: what it uses,
// fingerprints of what was last sent, copies of blocks, and its graphs.
//
// Threads: the worker's control thread. Failure: a Result with reason `state.*` or `snapshot.*`;
// nothing is ever destroyed by a failed call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host-daemon/state/blocks/fingerprint_table.h"
#include "host-daemon/state/files/file_blocks.h"
#include "host-daemon/state/parts/part_content.h"
#include "migration/engine/state.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::state {

struct ModuleFacts {
    std::string image_sha256;  ///< Hex.
    std::string name;
    std::vector<engine::CodeEntry> code;
    bool has_address_bound_globals = false;
};

struct PartFacts {
    std::uint64_t resident_bytes = 0;
    std::uint64_t beside_bytes = 0;  ///< Device memory of contexts and their limits.
    std::uint64_t pinned_bytes = 0;
    std::uint64_t object_count = 0;
    std::uint64_t image_bytes = 0;
    std::vector<ModuleFacts> modules;
    std::vector<engine::BlockingFeature> blocking;
    std::vector<engine::AttributeNeed> attributes;
};

class PartSource {
public:
    explicit PartSource(PartContent& content);
    PartSource(const PartSource&) = delete;
    PartSource& operator=(const PartSource&) = delete;

    [[nodiscard]] PartFacts describe();
    /// `arena_is_shared`: the arena's memory is handed over, only other blocks take part.
    void begin_precopy(snapshot::Seed seed, bool arena_is_shared = false);
    void end_precopy();
    /// `share_percent`: of the time, that the GPU may be kept at it; 0: all of it.
    Result<engine::ScanResult> scan(unsigned share_percent = 0);
    /// The same, with a look at the bytes even when nothing was sent yet; and the digest of all
    /// that was seen, which while frozen is what the memory holds.
    Result<engine::ScanResult> scan_all(engine::BlockSetDigest* digest, unsigned share_percent = 0);
    /// Copies blocks to `out`, packed, in order; vanished ones are left out.
    Result<std::vector<CopiedBlock>> read_blocks(std::span<const BlockAddress> blocks,
                                                 std::span<std::byte> out);
    void mark_unsent(std::span<const BlockAddress> blocks);
    /// Another worker has copied these, with these fingerprints of its copies.
    Result<void> note_sent(std::span<const BlockRange> ranges,
                           std::span<const Fingerprint> fingerprints);
    /// Over what was last sent. After a scan of frozen memory whose changes have all been read,
    /// that is what the memory holds, and no second look is needed.
    [[nodiscard]] engine::BlockSetDigest sent_digest() const;

    struct Looked {
        engine::BlockSetDigest digest;
        std::uint64_t left_count = 0;  ///< Blocks that are still to be looked at.
    };
    /// Frozen: the first `count` blocks by address, or all there are; `see` is told each's.
    Result<Looked> look_at_first(std::uint64_t count, const BlockReader::Visit& see);
    /// The same from where the last look ended.
    Result<Looked> look_on(std::uint64_t count, const BlockReader::Visit& see);

    /// Frozen: blocks into a snapshot's file, see FileBlocks. What was prepared of this file is
    /// used. `meanwhile`: called once, beside the copies or, where the CPU has to copy, after them;
    /// may be empty.
    Result<FileOutcome> store_blocks(int file, std::span<const FileRun> runs,
                                     const std::function<Result<void>()>& meanwhile = {});
    /// Gets a part of a file ready for that, see PreparedFile. One at a time: `worker.file_busy`
    /// while another one is there, or is still being let go.
    Result<void> prepare_file(control::UniqueFd file, snapshot::FileRange range);
    /// Null: there is none.
    [[nodiscard]] const PreparedFile* prepared_file();
    /// In the background.
    void drop_prepared_file();

    [[nodiscard]] Result<std::string> graph();
    [[nodiscard]] Result<std::string> final_graph();  ///< Only while frozen.

private:
    /// No graph is given out that would restore wrongly.
    Result<void> check_movable();
    /// Of a context that breaks meanwhile nothing is left to see.
    Result<void> look(engine::ScanResult* result, engine::BlockSetDigest* digest,
                      unsigned share_percent);
    Result<void> look_once(engine::ScanResult* result, engine::BlockSetDigest* digest,
                           unsigned share_percent);

    PartContent& content_;
    worker::Execution& execution_;
    worker::GuestProcess& process_;
    FingerprintTable sent_;
    std::unique_ptr<PreparedFile> prepared_;
    std::vector<BlockRange> unlooked_;  ///< What look_on() is still to look at.
};

}  // namespace gantry::state
