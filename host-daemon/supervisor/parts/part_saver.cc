#include "host-daemon/supervisor/parts/part_saver.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "host-daemon/supervisor/base/place_guesses.h"
#include "host-daemon/supervisor/parts/direct_memory.h"
#include "host-daemon/supervisor/parts/ordered_section.h"
#include "host-daemon/supervisor/parts/part_files.h"
#include "proto/snapshot/memory_writer.h"

namespace gantry::supervisor {
namespace {

using engine::BlockAddress;
using engine::kBlockBytes;
using snapshot::MemoryWriter;

/// Blocks that a thread hashes and then writes, from its cache: a large page, which the system need
/// not clear first when it is written in one go.
constexpr std::size_t kSaveBlocks = 32;
/// Threads that read mapped memory. Where the file's pages are not there yet writers exclude each
/// other, and hashing is no slower than writing; more than cores keep each other from their turns.
constexpr std::size_t kSaveThreadsMax = 4;

class PartSaver {
public:
    PartSaver(WorkersSource& source, const std::shared_ptr<Worker>& worker, DirectMemory direct,
              std::span<const BlockAddress> blocks, const snapshot::FingerprintKey& key,
              MemoryWriter& writer)
        : source_(source),
          part_(worker->part()),
          direct_(std::move(direct)),
          key_(key),
          writer_(writer) {
        for (std::size_t at = 0; at < blocks.size();) {
            const bool is_direct = !lies_at(blocks[at]).empty();
            const std::size_t count_max = is_direct ? kSaveBlocks : kBatchBlocks;
            std::size_t count = 1;
            while (count < count_max && at + count < blocks.size() &&
                   lies_at(blocks[at + count]).empty() != is_direct) {
                ++count;
            }
            batches_.push_back({blocks.subspan(at, count), is_direct});
            at += count;
        }
        std::vector<std::uint64_t> stored_max;
        for (const Batch& batch : batches_) {
            stored_max.push_back(kBlockBytes * static_cast<std::uint64_t>(std::count_if(
                                                   batch.blocks.begin(), batch.blocks.end(),
                                                   [&](const BlockAddress& block) {
                                                       return !batch.is_direct || !is_hole(block);
                                                   })));
        }
        guesses_.emplace(writer.next_place(), stored_max);
    }

    Result<void> run() {
        const auto save = [&](std::size_t i, const auto& in_turn) {
            return batches_[i].is_direct ? save_direct(i, in_turn) : save_staged(i, in_turn);
        };
        const bool is_direct = std::all_of(batches_.begin(), batches_.end(),
                                           [](const Batch& batch) { return batch.is_direct; });
        const std::size_t threads =
            is_direct
                ? std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kSaveThreadsMax)
                : slot_threads();
        GANTRY_TRY(OrderedSection().run(threads, batches_.size(), save));
        // What was copied to a wrong guess and lies behind all.
        const std::uint64_t end = writer_.next_place();
        if (guesses_->used_end() > end) {
            const std::uint64_t bytes = guesses_->used_end() - end;
            std::memset(writer_.pages()->find(end, bytes), 0, bytes);
        }
        return {};
    }

    [[nodiscard]] SavedMemory take_staged() { return std::move(staged_); }

private:
    struct Batch {
        std::span<const BlockAddress> blocks;
        bool is_direct = false;
    };

    std::span<std::byte> lies_at(const BlockAddress& block) const {
        return block.space == engine::MemorySpace::kDevice
                   ? direct_.find(block.index * kBlockBytes, kBlockBytes)
                   : std::span<std::byte>();
    }

    [[nodiscard]] bool is_hole(const BlockAddress& block) const {
        return direct_.is_hole(block.index * kBlockBytes, kBlockBytes);
    }

    /// `at`: where the bytes of each lie; null: they are zeros. `copies`: where those that are not
    /// are copied, one behind the other; null: nowhere.
    void look_at(std::span<const BlockAddress> blocks, std::span<const std::byte* const> at,
                 std::span<MemoryWriter::Block> looks, std::byte* copies = nullptr) const {
        std::vector<const std::byte*> there;
        std::vector<std::byte*> to;
        for (const std::byte* const bytes : at) {
            if (bytes != nullptr) {
                there.push_back(bytes);
                if (copies != nullptr) {
                    to.push_back(copies + to.size() * kBlockBytes);
                }
            }
        }
        std::vector<snapshot::Fingerprint> fingerprints(there.size());
        if (copies != nullptr) {
            snapshot::fingerprints_of_copied(key_, there, to,
                                             writer_.pages()->are_cleared()
                                                 ? snapshot::CopyTo::kMemory
                                                 : snapshot::CopyTo::kCaches,
                                             fingerprints);
        } else {
            snapshot::fingerprints(key_, there, fingerprints);
        }
        auto fingerprint = fingerprints.begin();
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            looks[i] = {static_cast<std::uint32_t>(blocks[i].space), blocks[i].index,
                        key_.zero_block(), true};
            if (at[i] != nullptr) {
                looks[i].fingerprint = *fingerprint++;
                looks[i].is_zero = looks[i].fingerprint == key_.zero_block() &&
                                   snapshot::is_zero_block(snapshot::BlockSpan(at[i], kBlockBytes));
            }
        }
    }

    /// `at`: where the bytes of each lie. Neighbours here and in the file go in one go.
    Result<void> store(std::span<const std::byte* const> at,
                       std::span<const std::uint64_t> places) const {
        for (std::size_t i = 0; i < places.size();) {
            std::size_t run = 1;
            while (places[i] != MemoryWriter::kNotStored && i + run < places.size() &&
                   places[i + run] == places[i] + run * kBlockBytes &&
                   at[i + run] == at[i] + run * kBlockBytes) {
                ++run;
            }
            if (places[i] != MemoryWriter::kNotStored) {
                GANTRY_TRY(writer_.store(places[i], {at[i], run * kBlockBytes}));
            }
            i += run;
        }
        return {};
    }

    /// In the batch's turn.
    Result<void> place(std::size_t number, std::span<const MemoryWriter::Block> looks,
                       std::span<std::uint64_t> places) {
        Result<void> placed = writer_.place(looks, places);
        guesses_->placed(number, writer_.next_place());
        return placed;
    }

    /// Whether all that is stored was copied there already.
    static bool are_at(std::uint64_t guess, std::span<const std::byte* const> at,
                       std::span<const std::uint64_t> places) {
        for (std::size_t i = 0; i < places.size(); ++i) {
            if (places[i] != MemoryWriter::kNotStored && places[i] != guess) {
                return false;
            }
            guess += at[i] == nullptr ? 0 : kBlockBytes;
        }
        return true;
    }

    template <typename InTurn>
    Result<void> save_direct(std::size_t number, const InTurn& in_turn) {
        const Batch& batch = batches_[number];
        std::array<const std::byte*, kSaveBlocks> at{};
        std::array<MemoryWriter::Block, kSaveBlocks> looks;
        std::array<std::uint64_t, kSaveBlocks> places{};
        const std::size_t count = batch.blocks.size();
        for (std::size_t i = 0; i < count; ++i) {
            const BlockAddress& block = batch.blocks[i];
            at[i] = is_hole(block) ? nullptr : lies_at(block).data();
        }
        const auto some = std::span(at).first(count);
        const auto guess = guesses_->guess(number);
        const snapshot::FilePages* const pages = writer_.pages();
        std::byte* const copies =
            pages != nullptr && guess ? pages->find(guess->place, guess->bytes) : nullptr;
        if (copies != nullptr) {
            guesses_->used(*guess);
        }
        look_at(batch.blocks, some, std::span(looks).first(count), copies);
        const auto stored = std::span(places).first(count);
        GANTRY_TRY(in_turn([&] { return place(number, std::span(looks).first(count), stored); }));
        if (copies != nullptr && are_at(guess->place, some, stored)) {
            return {};
        }
        return store(some, stored);
    }

    template <typename InTurn>
    Result<void> save_staged(std::size_t number, const InTurn& in_turn) {
        const Batch& batch = batches_[number];
        GANTRY_ASSIGN(const auto staged, source_.read_blocks(part_, batch.blocks));
        if (staged->count() != batch.blocks.size()) {
            return Error{Code::kInvalidArgument, "worker.protocol",
                         std::to_string(batch.blocks.size() - staged->count()) +
                             " blocks vanished from a frozen worker"};
        }
        std::vector<const std::byte*> at;
        for (std::size_t i = 0; i < staged->count(); ++i) {
            if (staged->address(i) != batch.blocks[i]) {
                return Error{Code::kInvalidArgument, "worker.protocol",
                             "a worker read other blocks than it was asked for"};
            }
            at.push_back(staged->bytes(i).data());
        }
        std::vector<MemoryWriter::Block> looks(at.size());
        look_at(batch.blocks, at, looks);
        std::vector<std::uint64_t> places(looks.size());
        GANTRY_TRY(in_turn([&]() -> Result<void> {
            for (std::size_t i = 0; i < looks.size(); ++i) {
                const MemoryWriter::Block& block = looks[i];
                staged_.digest.add(block.space, block.index, block.fingerprint);
                if (staged->fingerprint(i) != block.fingerprint) {
                    staged_.differences.add(batch.blocks[i], staged->fingerprint(i),
                                            block.fingerprint);
                }
            }
            return place(number, looks, places);
        }));
        return store(at, places);
    }

    WorkersSource& source_;
    engine::PartId part_;
    DirectMemory direct_;
    const snapshot::FingerprintKey& key_;
    MemoryWriter& writer_;
    std::vector<Batch> batches_;
    std::optional<PlaceGuesses> guesses_;
    SavedMemory staged_;
};

}  // namespace

Result<HeldMemory> look_at_memory(WorkersSource& source, const std::shared_ptr<Worker>& worker) {
    HeldMemory held{DirectMemory::map(*worker, DirectMemory::For::kReading), {}, {}};
    GANTRY_ASSIGN(const SnapshotSettings settings, snapshot_settings());
    if (held.direct.empty() || settings.always_by_worker) {
        GANTRY_ASSIGN(held.first, first_fingerprints(*worker, WorkersCopy::first_count(settings)));
        if (held.first.total() >= kWorkersBlocksMin) {
            return held;
        }
        held.first = {};
    }
    GANTRY_ASSIGN(engine::ScanResult scanned, source.scan(worker->part()));
    held.blocks = std::move(scanned.changed);
    if (!is_ascending(held.blocks, [](const BlockAddress& block) { return block; })) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     "a worker lists the blocks of its memory out of order"};
    }
    return held;
}

Result<SavedMemory> save_memory(WorkersSource& source, const std::shared_ptr<Worker>& worker,
                                HeldMemory held, const snapshot::FingerprintKey& key,
                                snapshot::SnapshotWriter* writer) {
    if (held.by_worker()) {
        writer->use_pages(nullptr);  // From here on the file may be cut.
    }
    const std::size_t count = held.by_worker() ? held.first.total() : held.blocks.size();
    GANTRY_ASSIGN(MemoryWriter * memory, writer->begin_memory(worker->part().value, count));
    if (held.by_worker()) {
        GANTRY_ASSIGN(const SnapshotSettings settings, snapshot_settings());
        WorkersCopy copy(source, worker, settings, held.first, key);
        GANTRY_TRY(copy.begin(*memory));
        SavedMemory saved;
        saved.by_worker = true;
        saved.digest = memory->digest();
        GANTRY_TRY(writer->end_memory());  // While the worker copies.
        GANTRY_ASSIGN(saved.held, copy.end(&saved.differences));
        saved.how = copy.how();
        return saved;
    }
    PartSaver saver(source, worker, std::move(held.direct), held.blocks, key, *memory);
    GANTRY_TRY(saver.run());
    GANTRY_TRY(writer->end_memory());
    return saver.take_staged();
}

}  // namespace gantry::supervisor
