// StateSource and StateSink: what the engine's driver needs of a session's state at its two ends.
//
// Implemented by host-daemon/state over the workers; no CUDA, no sockets and no clocks here. The
// state machines (source_machine.h, target_machine.h) decide, and the driver in gantryd carries
// out: it turns an Action into calls on these interfaces and their outcome into an Event.
//
// A session is a set of parts, one per guest process. Its state is, per part, an object graph
// (proto/snapshot/object_graph.proto, serialised) and memory as 64 KiB blocks in address spaces.
//
// Threads: control calls (everything but read_blocks and apply_batch) come from one thread at a
// time. read_blocks and apply_batch may be called from several threads at once, never with the
// same block in two of them. All calls may block, up to the deadline where one is given.
// Failure: a Result error; the state at the source is never destroyed by a failed call.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "migration/engine/needs.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::engine {

using snapshot::BlockSetDigest;
using snapshot::Fingerprint;
using snapshot::kBlockBytes;
using snapshot::Seed;

/// Address spaces of a part's memory. Values are on the wire and in files: append only; 3 and 4
/// were ones that nothing was ever in.
enum class MemorySpace : std::uint32_t {
    kDevice = 1,      ///< Device memory; index = device address / 64 KiB.
    kPinnedHost = 2,  ///< Pinned host memory in the shared region; index = region offset / 64
                      ///< KiB.
    kArray = 5,       ///< Arrays, linearised; index = (array ordinal << 32) + block in array.
};

struct BlockAddress {
    MemorySpace space = MemorySpace::kDevice;
    std::uint64_t index = 0;
    friend constexpr auto operator<=>(const BlockAddress&, const BlockAddress&) = default;
};

/// Names one migration attempt; drawn at random by the target at admission.
struct MigrationId {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    friend constexpr auto operator<=>(const MigrationId&, const MigrationId&) = default;
};

/// Names one freeze. Held by the frozen workers themselves (it survives a restart of gantryd) and
/// gone at the first thaw, so "frozen under this token" means "unchanged since that freeze".
struct FreezeToken {
    MigrationId migration;
    std::uint64_t count = 0;  ///< 1 for the first freeze of a migration; 0 names no freeze.
    friend constexpr auto operator<=>(const FreezeToken&, const FreezeToken&) = default;
};

/// Outcome of comparing a part's memory with the fingerprints of what was last sent.
struct ScanResult {
    std::vector<BlockAddress> changed;  ///< Ascending; everything at the first scan of a migration.
    std::uint64_t scanned_block_count = 0;
    /// Of the time it took: rests for the guest's sake, of which a scan while frozen has none.
    std::chrono::microseconds rested{};
};

/// Blocks copied out of a part into a staging area, in the order asked for. The bytes do not change
/// while the object lives; its destruction gives the staging area back.
class StagedBlocks {
public:
    virtual ~StagedBlocks() = default;
    [[nodiscard]] virtual std::size_t count() const = 0;
    [[nodiscard]] virtual BlockAddress address(std::size_t i) const = 0;
    [[nodiscard]] virtual std::span<const std::byte, kBlockBytes> bytes(std::size_t i) const = 0;
    /// Of the staged bytes, never of live memory.
    [[nodiscard]] virtual Fingerprint fingerprint(std::size_t i) const = 0;
};

/// A part's final state but for its memory, which travels as blocks.
struct FinalPart {
    PartId part;
    std::string graph;      ///< Serialised gantry.snapshot.ObjectGraph, consistent with the
                            ///< freeze.
    BlockSetDigest digest;  ///< Over every resident block, zero blocks included.
};

class StateSource {
public:
    virtual ~StateSource() = default;

    /// Parts, bytes and everything preflight wants to know. Cheap; while kernels run; any time.
    virtual Result<SessionNeeds> describe() = 0;

    /// A hypervisor is about to copy the guest's memory, and sees no write of the host's: from now
    /// on the workers keep what the GPU's side writes there until the guest has touched it. Must
    /// come before the hypervisor's first pass, and last as long as its job. Idempotent: what is
    /// kept since the first call stays.
    virtual Result<void> announce() = 0;

    /// No hypervisor copies the guest's memory any more. Idempotent, never fails visibly.
    virtual void end_announcement() = 0;

    /// Starts dirty tracking under a fresh seed: everything counts as never sent. While a migration
    /// runs this starts over. Kernels keep running.
    virtual Result<void> begin_precopy(Seed seed) = 0;

    /// Blocks whose content differs from what was last sent. While kernels run the answer may be
    /// stale in either direction; after freeze it is exact.
    virtual Result<ScanResult> scan(PartId part) = 0;

    /// Copies blocks out, fingerprints the copies and notes these fingerprints as last sent. At
    /// most kReadBlocksMax addresses a call. A block that has vanished meanwhile is left out.
    virtual Result<std::unique_ptr<StagedBlocks>> read_blocks(
        PartId part, std::span<const BlockAddress> blocks) = 0;
    static constexpr std::size_t kReadBlocksMax = 512;

    /// The link lost these blocks (or may have): count them as never sent. Empty: all of the part.
    virtual Result<void> mark_unsent(PartId part, std::span<const BlockAddress> blocks) = 0;

    /// A serialised graph that is consistent in itself, for the sink's early preparation.
    virtual Result<std::string> graph(PartId part) = 0;

    /// Stops executing the guest's commands, waits for the GPU to drain and parks what comes later.
    /// All parts or none: on error (deadline, dead worker) everything is thawed again. While frozen
    /// already it succeeds at once and only replaces the token (this voids the old one for ever).
    virtual Result<void> freeze(FreezeToken token, std::chrono::microseconds deadline) = 0;

    /// The token under which all workers are frozen now; nullopt when any of them is not. Survives
    /// a restart of gantryd, since the workers hold it.
    virtual Result<std::optional<FreezeToken>> frozen_token() = 0;

    /// Final graph and digest. Only while frozen.
    virtual Result<FinalPart> final_part(PartId part) = 0;

    /// Rollback: executes parked commands and carries on as if nothing had happened. Idempotent.
    virtual Result<void> thaw() = 0;

    /// After the grant: from now on a guest here gets no answer, and a hard error for every
    /// command. State is kept. Idempotent. Unless `guest_is_here`, it may run on the target already
    /// and pull its memory from here (post-copy): what is written into it would be read there.
    virtual Result<void> fence(bool guest_is_here) = 0;

    /// The grant came back unused: the session is this host's again, at `epoch`, and still frozen.
    /// Idempotent; succeeds also where nothing was fenced.
    virtual Result<void> unfence(Epoch epoch) = 0;

    /// Ends dirty tracking after a migration that did not happen. Idempotent, never fails visibly.
    virtual void end_precopy() = 0;

    /// After the target has confirmed: ends the workers and frees the GPU. Idempotent.
    virtual Result<void> release() = 0;
};

/// Blocks as one batch of the stream has them.
struct BlockBatch {
    struct Run {
        BlockAddress first;
        std::uint32_t count = 0;
        bool zero = false;  ///< Has no bytes in `content`.
    };
    std::vector<Run> runs;
    std::string_view content;  ///< In the order of the runs.
    bool lz4 = false;          ///< `content` is packed.
    std::size_t content_bytes = 0;
};

class StateSink {
public:
    virtual ~StateSink() = default;

    /// Sets memory quota and GPU share aside for the session. Undone by discard.
    virtual Result<void> reserve(const SessionNeeds& needs) = 0;

    /// Builds contexts, modules, memory and whatever else can be built before the pause, from a
    /// graph that may be outdated. Called again with newer graphs: builds the difference.
    virtual Result<void> prepare(PartId part, Seed seed, std::string_view graph) = 0;

    /// Writes blocks. Blocks of allocations that prepare has not seen are kept aside until a graph
    /// names them. kPinnedHost blocks are kept aside until activate: on ivshmem the guest's own
    /// copy of the region must not be touched before its memory is complete.
    virtual Result<void> apply_batch(PartId part, const BlockBatch& batch) = 0;

    /// The final graph: after it every object of the part exists under its handle. The engine has
    /// seen to it that all blocks were applied before.
    virtual Result<void> apply_final(const FinalPart& final_part) = 0;

    /// Digest of what really lies in memory now, computed from the memory, not from notes.
    virtual Result<BlockSetDigest> digest(PartId part) = 0;

    /// Notes in the workers that they hold the complete, verified state of this freeze, so that it
    /// is known after a restart of gantryd. The empty token (count 0) and apply_batch void the
    /// note.
    virtual Result<void> mark_complete(FreezeToken token) = 0;
    /// What mark_complete noted; nullopt when nothing, or when any worker is gone.
    virtual Result<std::optional<FreezeToken>> complete_token() = 0;

    /// Starts serving the guest as this epoch: publishes every host-owned word and the answer log,
    /// executes parked commands, then the ring. Only after the grant, and only when guest memory
    /// may be touched. Idempotent. An error means that nothing was served; once one part is served,
    /// another that fails is lost, and its process gets CUDA errors. Refuses with "session.stale"
    /// when the guest's own words in the region show that it has answers newer than this state
    /// (possible only if an operator vouched for a dead source).
    virtual Result<void> activate(Epoch epoch) = 0;

    /// Forgets everything, reservation included. Never after activate. Idempotent.
    virtual Result<void> discard() = 0;

    /// discard, unless something may have been served already: true then, and nothing was done.
    virtual bool retract() = 0;
};

}  // namespace gantry::engine
