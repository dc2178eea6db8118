#include "host-daemon/supervisor/parts/part_loader.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <vector>

#include "host-daemon/supervisor/parts/direct_memory.h"
#include "host-daemon/supervisor/parts/ordered_section.h"
#include "host-daemon/supervisor/parts/stored_sender.h"
#include "host-daemon/supervisor/parts/worker_blocks.h"
#include "proto/snapshot/large_pages.h"
#include "proto/snapshot/leased_file.h"

namespace gantry::supervisor {
namespace {

using engine::kBlockBytes;
using snapshot::kLargePageBytes;
using snapshot::StoredBlock;
using snapshot::StoredForm;

constexpr std::size_t kLoadBlocks = 32;
/// Blocks read and then verified, from the cache: as many as are fingerprinted side by side.
constexpr std::size_t kReadBlocks = 2;
/// Of the blocks verified here, that the worker reads again at the end, when all of it is in place.
constexpr std::size_t kReadAgainBlocks = 256;
/// Of a large page, that have to be filled: fewer do not warrant all its memory.
constexpr std::size_t kPageBlocksMin = kLargePageBytes / kBlockBytes / 2;
/// Of large pages that are made in one go: each go waits for all cores.
constexpr std::uint64_t kMakeBytes = 64U << 20;

class PartLoader {
public:
    /// `only`: these blocks, ascending; nullopt: all of them.
    PartLoader(WorkerSet& workers, const std::shared_ptr<Worker>& worker,
               std::optional<DirectMemory> direct,
               std::optional<std::vector<engine::BlockAddress>> only,
               const snapshot::StoredMemory& memory, const snapshot::FingerprintKey& key)
        : workers_(workers),
          worker_(worker),
          direct_(std::move(direct)),
          only_(std::move(only)),
          memory_(memory),
          key_(key),
          file_(only_ ? snapshot::LeasedFile()  // The worker, which has the file, shares the lease.
                      : snapshot::LeasedFile::map(memory.fd, memory.offset,
                                                  memory.blocks.size() * kBlockBytes)) {
        std::uint64_t offset = memory.offset;
        for (std::size_t at = 0; at < memory.blocks.size();) {
            const Kind kind = kind_of(memory.blocks[at]);
            Batch batch{memory.blocks.subspan(at, 1), offset, kind};
            while (at + batch.blocks.size() < memory.blocks.size() &&
                   batch.blocks.size() < (kind == Kind::kDirect ? kLoadBlocks : kBatchBlocks) &&
                   kind_of(memory.blocks[at + batch.blocks.size()]) == kind) {
                batch.blocks = memory.blocks.subspan(at, batch.blocks.size() + 1);
            }
            for (const StoredBlock& block : batch.blocks) {
                offset += block.stored_bytes;
            }
            at += batch.blocks.size();
            if (kind != Kind::kNothing) {  // The final digest proves that these are zeros.
                (kind == Kind::kCopy ? copies_ : batches_).push_back(batch);
            }
        }
    }

    Result<LoadedMemory> run() {
        make_pages();
        GANTRY_TRY(OrderedSection().run(
            slot_threads(), batches_.size(), [&](std::size_t i, const auto&) -> Result<void> {
                return batches_[i].kind == Kind::kDirect ? load_direct(batches_[i])
                                                         : load_staged(batches_[i]);
            }));
        for (const Batch& batch : copies_) {
            GANTRY_TRY(copy(batch.blocks));
        }
        return LoadedMemory{false, proven(),
                            std::to_string(mapped_bytes_ >> 20) + " MiB of the mapped file"};
    }

private:
    enum class Kind {
        kDirect,   ///< Bytes for memory that is mapped here.
        kStaged,   ///< Bytes, or zeros, that the worker puts in place.
        kNothing,  ///< Zeros in fresh memory that is mapped here, or what the worker has done.
        kCopy,
    };
    struct Batch {
        std::span<const StoredBlock> blocks;
        std::uint64_t offset = 0;  ///< Of the first one's bytes in the file.
        Kind kind = Kind::kStaged;
    };

    std::span<std::byte> lies_at(const snapshot::BlockRef& ref, std::size_t count = 1) const {
        const bool known = ref.space == static_cast<std::uint32_t>(engine::MemorySpace::kDevice) &&
                           ref.index < (std::uint64_t{1} << 47) / kBlockBytes;
        return known && direct_ ? direct_->find(ref.index * kBlockBytes, count * kBlockBytes)
                                : std::span<std::byte>();
    }

    /// Block by block, in order.
    Kind kind_of(const StoredBlock& block) {
        if (only_) {
            const engine::BlockAddress address{static_cast<engine::MemorySpace>(block.ref.space),
                                               block.ref.index};
            while (only_next_ < only_->size() && (*only_)[only_next_] < address) {
                ++only_next_;
            }
            if (only_next_ == only_->size() || (*only_)[only_next_] != address) {
                return Kind::kNothing;
            }
        }
        if (block.form == StoredForm::kCopyOf) {
            return Kind::kCopy;
        }
        if (lies_at(block.ref).empty()) {
            return Kind::kStaged;
        }
        return block.form == StoredForm::kZero ? Kind::kNothing : Kind::kDirect;
    }

    /// Large pages where most of one is about to be filled. A hint only.
    void make_pages() const {
        std::vector<std::span<std::byte>> ranges;
        const std::byte* page = nullptr;  // That of the blocks before,
        std::size_t filled = 0;           // and how many they are.
        for (const Batch& batch : batches_) {
            for (const StoredBlock& block : batch.blocks) {
                const std::span<std::byte> to = lies_at(block.ref);
                if (to.empty()) {
                    continue;
                }
                std::byte* const first =
                    to.data() - reinterpret_cast<std::uintptr_t>(to.data()) % kLargePageBytes;
                filled = first == page ? filled + 1 : 1;
                page = first;
                if (filled != kPageBlocksMin) {
                    continue;
                }
                std::span<std::byte>* last = ranges.empty() ? nullptr : &ranges.back();
                if (last != nullptr && last->data() + last->size() == first &&
                    last->size() < kMakeBytes) {
                    *last = {last->data(), last->size() + kLargePageBytes};
                } else {
                    ranges.emplace_back(first, kLargePageBytes);
                }
            }
        }
        (void)OrderedSection().run(
            slot_threads(), ranges.size(), [&](std::size_t i, const auto&) -> Result<void> {
                snapshot::make_large_pages(ranges[i].data(), ranges[i].size());
                return {};
            });
    }

    /// The bytes of blocks that are all stored, from the file to where they are wanted; verified.
    Result<void> read(std::span<const StoredBlock> blocks, std::uint64_t offset,
                      std::byte* to) const {
        const std::byte* const mapped = file_.find(offset, blocks.size() * kBlockBytes);
        mapped_bytes_ += mapped != nullptr ? blocks.size() * kBlockBytes : 0;
        for (std::size_t at = 0; at < blocks.size(); at += kReadBlocks) {
            const auto some = blocks.subspan(at, std::min(kReadBlocks, blocks.size() - at));
            std::byte* const here = to + at * kBlockBytes;
            std::array<snapshot::Fingerprint, kReadBlocks> fingerprints;
            const auto looks = std::span(fingerprints).first(some.size());
            if (mapped != nullptr) {
                const std::byte* const from = mapped + at * kBlockBytes;
                const std::array blocks_from{from, from + kBlockBytes};
                const std::array blocks_to{here, here + kBlockBytes};
                snapshot::fingerprints_of_copied(key_, std::span(blocks_from).first(some.size()),
                                                 std::span(blocks_to).first(some.size()),
                                                 snapshot::CopyTo::kCaches, looks);
            } else {
                GANTRY_TRY(
                    memory_.read(offset + at * kBlockBytes, {here, some.size() * kBlockBytes}));
                snapshot::fingerprints(key_, {here, some.size() * kBlockBytes}, looks);
            }
            for (std::size_t i = 0; i < some.size(); ++i) {
                if (fingerprints[i] != some[i].fingerprint) {
                    return memory_.damaged(offset + (at + i) * kBlockBytes);
                }
            }
        }
        return {};
    }

    /// Fresh memory: its pages in one go instead of a fault for each, which where the system has no
    /// memory left were a signal.
    static Result<void> make(std::span<std::byte> to) {
        if (::madvise(to.data(), to.size(), MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
            return Error{Code::kResourceExhausted, "snapshot.memory",
                         std::string("the system has no memory for what the worker is to hold: ") +
                             std::strerror(errno) + "; free some and restore again"};
        }
        return {};  // EINVAL: a system that has no such call.
    }

    Result<void> load_direct(const Batch& batch) const {
        std::uint64_t offset = batch.offset;
        for (std::size_t at = 0; at < batch.blocks.size();) {
            std::size_t count = 1;
            while (at + count < batch.blocks.size() &&
                   batch.blocks[at + count].ref.index == batch.blocks[at].ref.index + count &&
                   !lies_at(batch.blocks[at].ref, count + 1).empty()) {
                ++count;
            }
            const std::span<std::byte> to = lies_at(batch.blocks[at].ref, count);
            GANTRY_TRY(make(to));
            GANTRY_TRY(read(batch.blocks.subspan(at, count), offset, to.data()));
            offset += to.size();
            at += count;
        }
        return {};
    }

    /// What load_direct() has verified on its way, without the sample.
    ProvenBlocks proven() const {
        std::size_t count = 0;
        for (const Batch& batch : batches_) {
            count += batch.kind == Kind::kDirect ? batch.blocks.size() : 0;
        }
        const std::size_t step = std::max<std::size_t>(2, count / kReadAgainBlocks);
        ProvenBlocks out;
        std::vector<engine::BlockAddress> addresses;
        std::size_t at = 0;
        for (const Batch& batch : batches_) {
            if (batch.kind != Kind::kDirect) {
                continue;
            }
            for (const StoredBlock& block : batch.blocks) {
                if (++at % step != 0) {
                    addresses.push_back(
                        {static_cast<engine::MemorySpace>(block.ref.space), block.ref.index});
                    out.digest.add(block.ref.space, block.ref.index, block.fingerprint);
                }
            }
        }
        append_runs(addresses, out.runs.mutable_runs());
        return out;
    }

    Result<void> load_staged(const Batch& batch) const {
        std::vector<StoredBlock> stored;
        std::copy_if(batch.blocks.begin(), batch.blocks.end(), std::back_inserter(stored),
                     [](const StoredBlock& block) { return block.form == StoredForm::kBytes; });
        GANTRY_ASSIGN(const auto staging, workers_.staging(worker_));
        const StagingSlot slot = staging->acquire();
        GANTRY_TRY(read(stored, batch.offset, slot.bytes().data()));
        control::ToWorker request;
        GANTRY_ASSIGN(*request.mutable_apply_blocks(),
                      apply_request(worker_->part(), batch.blocks));
        request.mutable_apply_blocks()->set_arena_id(kStagingArena);
        request.mutable_apply_blocks()->set_offset(slot.offset());
        GANTRY_TRY(worker_->call(std::move(request), kLongCall));
        return {};
    }

    Result<void> copy(std::span<const StoredBlock> blocks) const {
        for (const StoredBlock& block : blocks) {
            const auto from = lies_at(block.origin);
            const auto to = lies_at(block.ref);
            if (!from.empty() && !to.empty()) {
                GANTRY_TRY(make(from));
                GANTRY_TRY(make(to));
                std::memcpy(to.data(), from.data(), kBlockBytes);
                continue;
            }
            control::ToWorker request;
            GANTRY_ASSIGN(*request.mutable_apply_blocks(),
                          apply_request(worker_->part(), {&block, 1}));
            GANTRY_TRY(worker_->call(std::move(request), kLongCall));
        }
        return {};
    }

    WorkerSet& workers_;
    std::shared_ptr<Worker> worker_;
    std::optional<DirectMemory> direct_;
    std::optional<std::vector<engine::BlockAddress>> only_;
    std::size_t only_next_ = 0;
    const snapshot::StoredMemory& memory_;
    const snapshot::FingerprintKey& key_;
    const snapshot::LeasedFile file_;
    mutable std::atomic<std::uint64_t> mapped_bytes_{0};  ///< For a log.
    std::vector<Batch> batches_;
    std::vector<Batch> copies_;
};

}  // namespace

Result<LoadedAhead> load_ahead(Worker& worker, const FileLoad& first) {
    GANTRY_ASSIGN(const SnapshotSettings settings, snapshot_settings());
    if (worker.device().is_soft() && !settings.always_by_worker) {
        return LoadedAhead{};
    }
    GANTRY_ASSIGN(LoadedByWorker loaded, load_by_worker(worker, first, true));
    return LoadedAhead{first.blocks, std::move(loaded)};
}

Result<LoadedMemory> load_memory(WorkerSet& workers, const std::shared_ptr<Worker>& worker,
                                 const snapshot::StoredMemory& memory, LoadedAhead ahead,
                                 FileLoad rest, const snapshot::FingerprintKey& key) {
    if (ahead.blocks == 0) {
        DirectMemory direct = DirectMemory::map(*worker, DirectMemory::For::kWriting);
        GANTRY_ASSIGN(const SnapshotSettings settings, snapshot_settings());
        if (!direct.empty() && !settings.always_by_worker) {
            return PartLoader(workers, worker, std::move(direct), std::nullopt, memory, key).run();
        }
        GANTRY_ASSIGN(rest, load_of(memory));
    }
    GANTRY_ASSIGN(LoadedByWorker loaded, load_by_worker(*worker, rest, false));
    if (ahead.blocks != 0) {
        ahead.by_worker.outside.insert(ahead.by_worker.outside.end(), loaded.outside.begin(),
                                       loaded.outside.end());
        loaded.outside = std::move(ahead.by_worker.outside);
        loaded.how = ahead.by_worker.how + "; " + loaded.how;
    }
    if (!loaded.outside.empty()) {
        GANTRY_TRY(PartLoader(workers, worker, std::nullopt, std::move(loaded.outside), memory, key)
                       .run());
    }
    return LoadedMemory{true, {}, loaded.how};
}

}  // namespace gantry::supervisor
