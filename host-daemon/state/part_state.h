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
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "host-daemon/state/block_reader.h"
#include "host-daemon/state/graph_codec.h"
#include "host-daemon/state/memory_image.h"
#include "host-daemon/state/print_table.h"
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

struct PartFacts {
    std::uint64_t resident_bytes = 0;
    std::uint64_t pinned_bytes = 0;
    std::uint64_t object_count = 0;
    std::vector<ModuleFacts> modules;
    std::vector<engine::BlockingFeature> blocking;
};

class PartState {
public:
    PartState(worker::GuestProcess& process, std::uint64_t part_id,
              PrintBy by = PrintBy::kAuto);

    // ---- source
    [[nodiscard]] PartFacts describe();
    /// `arena_is_shared`: the arena's memory is handed over, only other blocks take part.
    void begin_precopy(snapshot::Seed seed, bool arena_is_shared = false);
    void end_precopy();
    [[nodiscard]] bool precopying() const { return key_ != nullptr; }
    [[nodiscard]] bool arena_is_shared() const { return memory_.arena_is_shared(); }
    Result<engine::ScanResult> scan();
    /// Copies blocks to `out`, packed, in order; vanished ones are left out.
    Result<std::vector<CopiedBlock>> read_blocks(std::span<const BlockAddress> blocks,
                                                 std::span<std::byte> out);
    void mark_unsent(std::span<const BlockAddress> blocks);
    [[nodiscard]] Result<std::string> graph();
    [[nodiscard]] Result<std::string> final_graph();  ///< Only while frozen.

    // ---- target
    [[nodiscard]] std::vector<Problem> check(const DecodedGraph& graph);
    /// Builds what can be built now. Names of images that are missing come back, and then nothing
    /// was built.
    /// `arena_is_shared`: the arena takes what Device::offer() brought.
    Result<std::vector<worker::Sha256>> prepare(snapshot::Seed seed, std::string_view graph,
                                                bool arena_is_shared = false);
    /// Empty bytes: a block of zeros.
    Result<void> apply_block(BlockAddress block, std::span<const std::byte> bytes);
    /// Neighbours, packed: those that lie in memory as a whole are copied in one go, which may
    /// still go on when this returns: `bytes` must stay until settle().
    Result<void> apply_run(BlockAddress first, std::uint64_t count,
                           std::span<const std::byte> bytes);
    /// Waits until all blocks that were applied lie in memory.
    Result<void> settle() { return memory_.settle(); }
    /// The bytes of a block that was applied before.
    Result<void> apply_copy(BlockAddress block, BlockAddress origin);
    Result<std::vector<worker::Sha256>> apply_final(std::string_view graph);
    /// The same where the arena is shared: `handover.memory` unless it then holds exactly
    /// `expected`.
    Result<std::vector<worker::Sha256>> apply_final(std::string_view graph,
                                                    const worker::MemorySum& expected);
    [[nodiscard]] const std::optional<worker::ChannelState>& channel_state() const {
        return channel_;
    }
    /// Page-locks the pinned ranges; once the region is mapped, before the guest is served.
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
    /// Bytes of images by name: what get_images and an images blob carry. While frozen, also of
    /// those that are on their way from the guest.
    void keep_image(std::vector<std::byte> bytes);
    [[nodiscard]] std::vector<worker::ImagePtr> images();

private:
    /// No graph is given out that would restore wrongly.
    Result<void> check_movable();
    Result<void> build(DecodedGraph& graph, bool is_final);
    Result<void> build_memory(const DecodedGraph& graph);
    Result<void> build_pools(const snapshot::ObjectGraph& graph);
    Result<void> build_links(const snapshot::ObjectGraph& graph);
    /// Graphs and execs, apart from those there are already with the same description. `late`:
    /// those that name pinned memory, which is there only once the guest's region is mapped.
    Result<void> build_graphs(const snapshot::ObjectGraph& graph, bool late);
    void drop_graph(std::uint64_t handle);
    Result<void> build_object(const DecodedGraph& graph, const worker::Object& object);
    Result<void> load_module(const DecodedGraph& graph, const worker::Object& object);
    Result<void> check_variables(const DecodedGraph& graph);
    Result<void> flush_kept_blocks();
    [[nodiscard]] std::vector<worker::Sha256> missing_images(const DecodedGraph& graph);
    Result<void> restore_private(const DecodedGraph& graph);

    worker::GuestProcess& process_;
    std::uint64_t part_id_;
    MemoryImage memory_;
    BlockReader reader_;
    std::unique_ptr<snapshot::FingerprintKey> key_;
    std::optional<snapshot::Seed> seed_;
    PrintTable sent_;
    std::map<BlockAddress, std::vector<std::byte>> kept_blocks_;  ///< Target: no memory yet.
    std::vector<worker::ImagePtr> kept_images_;
    std::vector<worker::PinnedRange> pinned_;
    std::optional<worker::ChannelState> channel_;
    bool private_restored_ = false;
    std::map<std::uint64_t, std::string> built_graphs_;  ///< Target: descriptions, by handle.
    /// Those to be made with the region there.
    std::optional<snapshot::ObjectGraph> late_graphs_;
};

}  // namespace gantry::state
