// PartState: one guest process as the migration engine sees it, at the source and at the target.
//
// Source: describe, fingerprints of what was last sent, copies of blocks, graphs, freeze. Target:
// prepare from an early graph, blocks as they come (those without memory yet are kept aside), the
// final graph, the digest computed from memory. The worker's control service turns gantryd's
// messages into these calls; tests call them directly.
//
// Threads: the worker's control thread. Failure: a Result with reason `state.*`, `snapshot.*` or
// `module.*`; at the source nothing is ever destroyed by a failed call.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "host-daemon/execution/device/peer_window.h"
#include "host-daemon/execution/dispatch/execution.h"
#include "host-daemon/state/blocks/block_reader.h"
#include "host-daemon/state/blocks/copied_blocks.h"
#include "host-daemon/state/blocks/copy_slots.h"
#include "host-daemon/state/blocks/fingerprint_table.h"
#include "host-daemon/state/blocks/memory_image.h"
#include "host-daemon/state/files/file_blocks.h"
#include "host-daemon/state/objects/object_graph_codec.h"
#include "migration/engine/state.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::state {

struct Problem {
    bool refusal = true;
    std::string reason;
    std::string text;
};

struct ModuleFacts {
    std::string image_sha256;  ///< Hex.
    std::string name;
    std::vector<engine::CodeEntry> code;
    bool has_address_bound_globals = false;
};

/// What pull() did with the blocks that it was asked for.
struct Pulled {
    std::vector<BlockRange> copied;  ///< Ascending; short gaps between wanted blocks go along.
    std::vector<Fingerprint> fingerprints;  ///< Of the copies, in order; kNone: empty.
    std::vector<BlockRange> outside;        ///< Of no arena memory: not copied.
    std::vector<BlockRange> absent;         ///< There is no memory for them here or there.
    std::uint64_t copy_us = 0;              ///< Without the rests.
    std::uint64_t rest_us = 0;
    std::uint64_t fingerprint_us = 0;
};

enum class Fingerprints : std::uint8_t { kNone, kOfCopies };

struct PartFacts {
    std::uint64_t resident_bytes = 0;
    std::uint64_t pinned_bytes = 0;
    std::uint64_t object_count = 0;
    std::uint64_t image_bytes = 0;
    std::vector<ModuleFacts> modules;
    std::vector<engine::BlockingFeature> blocking;
    std::vector<engine::AttributeNeed> attributes;
};

class PartState {
public:
    /// `fingerprints`: made before (make_gpu_fingerprints); null: now. `slot_pages`: CopySlots.
    PartState(worker::Execution& execution, std::uint64_t part_id,
              FingerprintBy by = FingerprintBy::kAuto,
              std::unique_ptr<GpuFingerprints> fingerprints = nullptr,
              std::unique_ptr<Mapping> slot_pages = nullptr);

    // ---- source
    [[nodiscard]] PartFacts describe();
    /// `arena_is_shared`: the arena's memory is handed over, only other blocks take part.
    void begin_precopy(snapshot::Seed seed, bool arena_is_shared = false);
    void end_precopy();
    [[nodiscard]] bool arena_is_shared() const { return memory_.arena_is_shared(); }
    /// `share_percent`: of the time, that the GPU may be kept at it; 0: all of it.
    Result<engine::ScanResult> scan(unsigned share_percent = 0);
    /// The same, with a look at the bytes even when nothing was sent yet; and the digest of all
    /// that was seen, which while frozen is what the memory holds.
    Result<engine::ScanResult> scan_all(engine::BlockSetDigest* digest, unsigned share_percent = 0);
    /// Copies blocks to `out`, packed, in order; vanished ones are left out.
    Result<std::vector<CopiedBlock>> read_blocks(std::span<const BlockAddress> blocks,
                                                 std::span<std::byte> out);
    /// Frozen: blocks into a snapshot's file, and blocks from one, see FileBlocks.
    /// What was prepared of this file is used. `meanwhile`: called once, beside the copies or,
    /// where the CPU has to copy, after them; may be empty.
    Result<FileOutcome> store_blocks(int file, std::span<const FileRun> runs,
                                     const std::function<Result<void>()>& meanwhile = {});
    /// Gets a part of a file ready for that, see PreparedFile. One at a time: `worker.file_busy`
    /// while another one is there, or is still being let go.
    Result<void> prepare_file(control::UniqueFd file, snapshot::FileRange range);
    /// Null: there is none.
    [[nodiscard]] const PreparedFile* prepared_file();
    /// In the background.
    void drop_prepared_file();
    /// `more_follow`: load_blocks() comes next once more, of the same state.
    Result<FileOutcome> load_blocks(int file, std::span<const FileRun> runs,
                                    bool more_follow = false);
    /// prepare() comes, and load_blocks() soon: what it copies through is made meanwhile, and of
    /// the graph only memory is built at first, the rest beside the copies.
    void expect_file();
    /// The snapshot is over, or all was loaded: what they copied through is given back, if it is
    /// not yet. Before the guest is served: a driver may wait for the device for it.
    void end_files();
    void mark_unsent(std::span<const BlockAddress> blocks);
    /// Another worker has copied these, with these fingerprints of its copies.
    Result<void> note_sent(std::span<const BlockRange> ranges,
                           std::span<const Fingerprint> fingerprints);
    [[nodiscard]] Result<std::string> graph();
    [[nodiscard]] Result<std::string> final_graph();  ///< Only while frozen.

    // ---- target
    [[nodiscard]] std::vector<Problem> check(const DecodedGraph& graph);
    /// Builds what can be built now. Names of images that are missing come back, and then nothing
    /// was built.
    /// `arena_is_shared`: the arena takes what Device::offer() brought.
    Result<std::vector<worker::Sha256>> prepare(snapshot::Seed seed, std::string_view graph,
                                                bool arena_is_shared = false);
    /// Until it is said again. A graph may take memory away here and put other memory at its
    /// address, as the source did since its last graph: then what lay there is kept, since the
    /// source may count it as sent, unless the blocks of new memory come again anyhow.
    void set_new_memory_comes(bool comes) { new_memory_comes_ = comes; }
    /// Empty bytes: a block of zeros.
    Result<void> apply_block(BlockAddress block, std::span<const std::byte> bytes);
    /// Neighbours, packed: those that lie in memory as a whole are copied in one go, which may
    /// still go on when this returns: `bytes` must stay until settle().
    Result<void> apply_run(BlockAddress first, std::uint64_t count,
                           std::span<const std::byte> bytes);
    /// Waits until all blocks that were applied lie in memory.
    Result<void> settle() { return memory_.settle(); }
    /// Copies blocks of the arena device to device from a window on another worker's, and takes
    /// the fingerprints of the copies. All is done when it returns.
    Result<Pulled> pull(const worker::PeerWindow& window, std::span<const BlockRange> blocks,
                        Fingerprints fingerprints, unsigned share_percent = 0);
    /// The bytes of a block that was applied before.
    Result<void> apply_copy(BlockAddress block, BlockAddress origin);
    Result<std::vector<worker::Sha256>> apply_final(std::string_view graph);
    /// The same where the arena is shared: `handover.memory` unless it then holds exactly
    /// `expected`.
    Result<std::vector<worker::Sha256>> apply_final(std::string_view graph,
                                                    const worker::MemorySum& expected);
    /// After apply_final(), where both workers have the same region: the guest may have written to
    /// it since.
    void forget_pinned_writes() { channel_->pinned.clear(); }
    [[nodiscard]] const std::optional<worker::ChannelState>& channel_state() const {
        return channel_;
    }
    /// Page-locks the pinned ranges of the last graph, and those alone, and makes the graphs that
    /// name them; once the region is mapped, before the guest is served. After each further graph
    /// again.
    Result<void> register_pinned();

    /// Over what was last sent. After a scan of frozen memory whose changes have all been read,
    /// that is what the memory holds, and no second look is needed.
    [[nodiscard]] engine::BlockSetDigest sent_digest() const;

    // ---- both
    /// A staging area through which blocks pass, see MemoryImage.
    bool add_staging(std::span<std::byte> area) { return memory_.add_staging(area); }
    void remove_staging(std::span<std::byte> area) { memory_.remove_staging(area); }
    /// Over all blocks, computed from memory now. Needs a seed (begin_precopy or prepare).
    Result<engine::BlockSetDigest> digest();
    /// The same. `see`: is told each block's.
    Result<engine::BlockSetDigest> digest(const BlockReader::Visit& see);
    struct Looked {
        engine::BlockSetDigest digest;
        std::uint64_t left_count = 0;  ///< Blocks that are still to be looked at.
    };
    /// Frozen: the first `count` blocks by address, or all there are; `see` is told each's.
    Result<Looked> look_at_first(std::uint64_t count, const BlockReader::Visit& see);
    /// The same from where the last look ended.
    Result<Looked> look_on(std::uint64_t count, const BlockReader::Visit& see);
    /// Over all blocks, after store_blocks() (frozen) or load_blocks(): what of them was read while
    /// others were on their way, after it was copied itself, is not read again but for a sample.
    Result<engine::BlockSetDigest> digest_after_copies();
    /// Bytes of images by name: what get_images and an images blob carry. While frozen, also of
    /// those that are on their way from the guest.
    void keep_image(std::vector<std::byte> bytes);
    [[nodiscard]] std::vector<worker::ImagePtr> images();

private:
    /// key_, by the seed.
    Result<void> need_key();
    /// Over all blocks but `known`, which are not read. `see`: may be empty.
    Result<engine::BlockSetDigest> digest_without(std::vector<BlockRange> known,
                                                  const BlockReader::Visit& see);
    void wait_for_slots();
    /// No graph is given out that would restore wrongly.
    Result<void> check_movable();
    /// Of a context that breaks meanwhile nothing is left to see.
    Result<void> look(engine::ScanResult* result, engine::BlockSetDigest* digest,
                      unsigned share_percent);
    Result<void> look_once(engine::ScanResult* result, engine::BlockSetDigest* digest,
                           unsigned share_percent);
    /// Device to device, portion by portion.
    Result<void> pull_ranges(const worker::PeerWindow& window, std::span<const BlockRange> ranges,
                             RateLimiter& pace);
    /// Ranges of blocks that both the arena and the window have memory for, ascending.
    [[nodiscard]] std::vector<BlockRange> shared_ranges(const worker::PeerWindow& window) const;
    Result<void> build(DecodedGraph& graph, bool is_final);
    Result<void> build_memory(const DecodedGraph& graph);
    /// All but memory.
    Result<void> build_objects(DecodedGraph& graph, bool is_final);
    /// Blocks whose memory goes with this graph and whose address has other memory then.
    Result<void> keep_moved_blocks(const DecodedGraph& graph);
    Result<void> build_pools(const snapshot::ObjectGraph& graph);
    Result<void> build_links(const snapshot::ObjectGraph& graph);
    /// Graphs and execs, apart from those there are already with the same description. `late`:
    /// those that name pinned memory, which is there only once the guest's region is mapped.
    Result<void> build_graphs(const snapshot::ObjectGraph& graph, bool late);
    void drop_graph(std::uint64_t handle);
    Result<void> build_object(const DecodedGraph& graph, const worker::Object& object);
    /// The module was made before the guest asked for its variables: a driver that can place them
    /// has them elsewhere, or nowhere yet.
    bool lies_elsewhere(const DecodedGraph& graph, const worker::Object& object);
    bool has_image(const DecodedGraph& graph, const worker::Object& object);
    Result<void> load_module(const DecodedGraph& graph, const worker::Object& object);
    /// What the program may have stored of an image means the same here: the addresses of its
    /// functions, and of its variables, which are put where they were.
    Result<void> check_functions(const DecodedGraph& graph, const worker::LoadedImage& loaded);
    Result<void> place_variables(const worker::LoadedImage& wanted);
    Result<void> check_variables(const DecodedGraph& graph);
    Result<void> check_private(const DecodedGraph& graph) const;
    Result<void> flush_kept_blocks();
    [[nodiscard]] std::vector<worker::Sha256> missing_images(const DecodedGraph& graph);
    Result<void> restore_private(const DecodedGraph& graph);

    worker::Execution& execution_;
    worker::GuestProcess& process_;
    std::uint64_t part_id_;
    MemoryImage memory_;
    BlockReader reader_;
    std::unique_ptr<snapshot::FingerprintKey> key_;
    std::optional<snapshot::Seed> seed_;
    FingerprintTable sent_;
    std::map<BlockAddress, std::vector<std::byte>> kept_blocks_;  ///< Target: no memory yet.
    std::vector<worker::ImagePtr> kept_images_;
    std::vector<worker::PinnedRange> pinned_;  ///< Target: of the last graph.
    std::optional<worker::ChannelState> channel_;
    bool private_restored_ = false;
    bool new_memory_comes_ = false;
    std::map<std::uint64_t, std::string> built_graphs_;  ///< Target: descriptions, by handle.
    /// Those to be made with the region there.
    std::optional<snapshot::ObjectGraph> late_graphs_;
    std::unique_ptr<PreparedFile> prepared_;
    std::vector<BlockRange> unlooked_;  ///< What look_on() is still to look at.
    CopiedBlocks copied_;  ///< By store_blocks() since the last thaw, or by load_blocks().
    /// What prepare() has left for load_blocks().
    std::optional<DecodedGraph> put_off_;
    bool is_loading_ = false;  ///< load_blocks() that no other follows is still to come.
    CopySlots slots_;
    std::future<void> on_slots_;  ///< They are made, or given back: nobody else may touch them.
    std::future<void> on_map_;    ///< A loaded file's mapping ends; nobody waits.
    bool expects_file_ = false;
};

}  // namespace gantry::state
