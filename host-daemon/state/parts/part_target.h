// PartTarget: one guest process as the migration engine sees it at the target: it is prepared from
// an early graph, gets blocks as they come (those without memory yet are kept aside) and the final
// graph, until all that the last graph describes is there.
//
// Threads: the worker's control thread. Failure: a Result with reason `state.*`, `snapshot.*` or
// `module.*`.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host-daemon/execution/device/peer_window.h"
#include "host-daemon/execution/dispatch/channel_state.h"
#include "host-daemon/state/files/file_blocks.h"
#include "host-daemon/state/objects/object_graph_codec.h"
#include "host-daemon/state/parts/part_content.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::state {

struct Problem {
    bool refusal = true;
    std::string reason;
    std::string text;
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

class PartTarget {
public:
    explicit PartTarget(PartContent& content) : content_(content), process_(content.process) {}
    PartTarget(const PartTarget&) = delete;
    PartTarget& operator=(const PartTarget&) = delete;

    /// `more_follow`: load_blocks() comes next once more, of the same state.
    Result<FileOutcome> load_blocks(int file, std::span<const FileRun> runs,
                                    bool more_follow = false);
    /// prepare() comes, and load_blocks() soon: what it copies through is made meanwhile, and of
    /// the graph only memory is built at first, the rest beside the copies.
    void expect_file();
    [[nodiscard]] std::vector<Problem> check(const DecodedGraph& graph);
    /// Builds what can be built now. Names of images that are missing come back, and then nothing
    /// was built.
    /// `arena_is_shared`: the arena takes what Device::offer() brought.
    Result<std::vector<Sha256>> prepare(snapshot::Seed seed, std::string_view graph,
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
    Result<void> settle() { return content_.memory.settle(); }
    /// Copies blocks of the arena device to device from a window on another worker's, and takes
    /// the fingerprints of the copies. All is done when it returns.
    Result<Pulled> pull(const worker::PeerWindow& window, std::span<const BlockRange> blocks,
                        Fingerprints fingerprints, unsigned share_percent = 0);
    /// The bytes of a block that was applied before.
    Result<void> apply_copy(BlockAddress block, BlockAddress origin);
    Result<std::vector<Sha256>> apply_final(std::string_view graph);
    /// The same where the arena is shared: `handover.memory` unless it then holds exactly
    /// `expected`.
    Result<std::vector<Sha256>> apply_final(std::string_view graph,
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

private:
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
    [[nodiscard]] std::vector<Sha256> missing_images(const DecodedGraph& graph);
    Result<void> restore_private(const DecodedGraph& graph);

    PartContent& content_;
    worker::GuestProcess& process_;
    std::map<BlockAddress, std::vector<std::byte>> kept_blocks_;  ///< No memory yet.
    std::vector<worker::PinnedRange> pinned_;                     ///< Of the last graph.
    std::optional<worker::ChannelState> channel_;
    bool private_restored_ = false;
    bool new_memory_comes_ = false;
    std::map<std::uint64_t, std::string> built_graphs_;  ///< Descriptions, by handle.
    /// Those to be made with the region there.
    std::optional<snapshot::ObjectGraph> late_graphs_;
    /// What prepare() has left for load_blocks().
    std::optional<DecodedGraph> put_off_;
    bool is_loading_ = false;   ///< load_blocks() that no other follows is still to come.
    std::future<void> on_map_;  ///< A loaded file's mapping ends; nobody waits.
    bool expects_file_ = false;
};

}  // namespace gantry::state
