// PartContent: what both roles of a part, source and target, have of it: its memory as blocks, the
// seed of its fingerprints, its code images, and what blocks of files are copied through.
//
// Owner: Part. Threads: the worker's control thread. Failure: a Result with reason `state.*` or
// `worker.state`.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "host-daemon/execution/dispatch/execution.h"
#include "host-daemon/state/blocks/block_reader.h"
#include "host-daemon/state/blocks/copied_blocks.h"
#include "host-daemon/state/blocks/copy_slots.h"
#include "host-daemon/state/blocks/memory_image.h"
#include "migration/engine/state.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::state {

class PartContent {
public:
    /// `fingerprints`: made before (make_gpu_fingerprints); null: now. `slot_pages`: CopySlots.
    PartContent(worker::Execution& execution_in, std::uint64_t id, FingerprintBy by,
                std::unique_ptr<GpuFingerprints> fingerprints, std::unique_ptr<Mapping> slot_pages);
    PartContent(const PartContent&) = delete;
    PartContent& operator=(const PartContent&) = delete;

    worker::Execution& execution;
    worker::GuestProcess& process;
    const std::uint64_t part_id;
    MemoryImage memory;
    BlockReader reader;
    CopiedBlocks copied;  ///< By store_blocks() since the last thaw, or by load_blocks().
    CopySlots slots;

    // ---- the seed of the fingerprints, and the key made from it
    void set_seed(snapshot::Seed seed);
    /// The key of another seed is given up; the new one is made when it is needed.
    void expect_seed(snapshot::Seed seed);
    void drop_key() { key_.reset(); }
    [[nodiscard]] bool has_key() const { return key_ != nullptr; }
    [[nodiscard]] const snapshot::FingerprintKey& key() const { return *key_; }
    /// Makes the key where there is none yet; `worker.state` without a seed.
    Result<void> need_key();

    // ---- digests
    /// Over all blocks, computed from memory now. Needs a seed.
    Result<engine::BlockSetDigest> digest();
    /// The same. `see`: is told each block's.
    Result<engine::BlockSetDigest> digest(const BlockReader::Visit& see);
    /// Over all blocks, after store_blocks() (frozen) or load_blocks(): what of them was read while
    /// others were on their way, after it was copied itself, is not read again but for a sample.
    Result<engine::BlockSetDigest> digest_after_copies();

    // ---- code
    /// Bytes of images by name: what get_images and an images blob carry. While frozen, also of
    /// those that are on their way from the guest.
    void keep_image(std::vector<std::byte> bytes);
    [[nodiscard]] std::vector<worker::ImagePtr> images();

    // ---- what file blocks are copied through
    /// In the background; nobody else uses the slots until wait_for_slots().
    void begin_slots(std::function<void()> work);
    void wait_for_slots();
    /// The snapshot is over, or all was loaded: what they copied through is given back, if it is
    /// not yet. Before the guest is served: a driver may wait for the device for it.
    void end_files();

private:
    /// Over all blocks but `known`, which are not read. `see`: may be empty.
    Result<engine::BlockSetDigest> digest_without(std::vector<BlockRange> known,
                                                  const BlockReader::Visit& see);

    std::optional<snapshot::Seed> seed_;
    std::unique_ptr<snapshot::FingerprintKey> key_;  ///< By the seed.
    std::vector<worker::ImagePtr> kept_images_;
    std::future<void> on_slots_;  ///< They are made, or given back: nobody else may touch them.
};

}  // namespace gantry::state
