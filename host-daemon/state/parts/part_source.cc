// PartState, the source's half and what both halves share.
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "host-daemon/state/blocks/block_ranges.h"
#include "host-daemon/state/parts/blocking_features.h"
#include "host-daemon/state/parts/code_entries.h"
#include "host-daemon/state/parts/device_needs.h"
#include "host-daemon/state/parts/part_state.h"

namespace gantry::state {
PartState::PartState(worker::Execution& execution, std::uint64_t part_id, FingerprintBy by,
                     std::unique_ptr<GpuFingerprints> fingerprints,
                     std::unique_ptr<Mapping> slot_pages)
    : execution_(execution),
      process_(execution.process()),
      part_id_(part_id),
      memory_(process_),
      reader_(process_, memory_, by, std::move(fingerprints)),
      copied_(reader_),
      slots_(process_, std::move(slot_pages)) {}

PartFacts PartState::describe() {
    PartFacts facts;
    if (process_.finds_broken()) {
        return facts;  // Its channel and its error (process/error_ledger.h): any GPU will do.
    }
    process_.memory.refresh_private_ranges();
    facts.resident_bytes = memory_.block_count() * kBlockBytes;
    for (const worker::PinnedRange& range : process_.memory.device.pinned_ranges()) {
        facts.pinned_bytes += range.bytes;
    }
    facts.object_count = process_.objects.size();
    for (const worker::ImagePtr& image : images()) {
        facts.image_bytes += image->bytes.size();
    }
    for (const worker::LoadedImage& loaded : process_.code.modules.list()) {
        ModuleFacts module;
        module.image_sha256 = worker::to_hex(loaded.image->sha256);
        module.name = loaded.name;
        module.has_address_bound_globals =
            !loaded.variables.empty() && !process_.device.can_place();
        for (const auto& part : loaded.parts) {
            std::vector<engine::CodeEntry> code;
            append_code(std::span(loaded.image->bytes).subspan(part.offset, part.bytes), &code);
            // Part 0 is what a driver loads as it is. The others are its relocatable inputs: a
            // driver links them anew from their PTX.
            const bool is_loaded = &part == &loaded.parts.front();
            std::copy_if(code.begin(), code.end(), std::back_inserter(module.code),
                         [&](const engine::CodeEntry& entry) { return is_loaded || entry.is_ptx; });
        }
        facts.modules.push_back(std::move(module));
    }
    facts.blocking = blocking_features(process_, part_id_);
    facts.attributes = attribute_needs(process_);
    return facts;
}

void PartState::begin_precopy(snapshot::Seed seed, bool arena_is_shared) {
    memory_.set_arena_is_shared(arena_is_shared);
    seed_ = seed;
    key_ = std::make_unique<snapshot::FingerprintKey>(seed);
    sent_.clear();
    copied_.clear();
}

void PartState::end_precopy() {
    memory_.set_arena_is_shared(false);
    key_.reset();
    sent_.clear();
    unlooked_.clear();
}

Result<engine::ScanResult> PartState::scan(unsigned share_percent) {
    if (key_ == nullptr) {
        return Error{Code::kFailedPrecondition, "worker.state", "scan before begin_precopy"};
    }
    engine::ScanResult result;
    if (sent_.empty()) {  // All of it, without a look at the bytes.
        process_.memory.refresh_private_ranges();
        for (const BlockRange& range : memory_.ranges()) {
            for (std::uint64_t i = 0; i < range.count; ++i) {
                result.changed.push_back({range.space, range.first + i});
            }
        }
        std::sort(result.changed.begin(), result.changed.end());
        result.scanned_block_count = result.changed.size();
        return result;
    }
    GANTRY_TRY(look(&result, nullptr, share_percent));
    return result;
}

Result<engine::ScanResult> PartState::scan_all(engine::BlockSetDigest* digest,
                                               unsigned share_percent) {
    if (key_ == nullptr) {
        return Error{Code::kFailedPrecondition, "worker.state", "scan before begin_precopy"};
    }
    engine::ScanResult result;
    GANTRY_TRY(look(&result, digest, share_percent));
    return result;
}

Result<void> PartState::look(engine::ScanResult* result, engine::BlockSetDigest* digest,
                             unsigned share_percent) {
    const Result<void> looked = look_once(result, digest, share_percent);
    if (looked || !process_.finds_broken()) {
        return looked;
    }
    *result = {};
    if (digest != nullptr) {
        *digest = {};
    }
    return look_once(result, digest, share_percent);
}

Result<void> PartState::look_once(engine::ScanResult* result, engine::BlockSetDigest* digest,
                                  unsigned share_percent) {
    // A frozen guest needs nothing of the device.
    reader_.set_share(execution_.frozen() ? 0 : share_percent);
    sent_.begin_look();
    GANTRY_TRY(reader_.for_each_fingerprint(
        *key_, [&](const BlockRange& range, std::span<const Fingerprint> now) {
            result->scanned_block_count += range.count;
            for (std::uint64_t i = 0; i < range.count; ++i) {
                const BlockAddress block{range.space, range.first + i};
                const Fingerprint* sent = sent_.find(block);
                if (sent == nullptr || *sent != now[i]) {
                    result->changed.push_back(block);
                }
            }
            if (digest != nullptr) {
                add_fingerprints(range, now, digest);
            }
        }));
    result->rested = std::chrono::microseconds(reader_.take_rested_us());
    result->vanished_block_count = sent_.drop_unseen();
    if (!std::is_sorted(result->changed.begin(), result->changed.end())) {
        std::sort(result->changed.begin(), result->changed.end());
    }
    return {};
}

Result<std::vector<CopiedBlock>> PartState::read_blocks(std::span<const BlockAddress> blocks,
                                                        std::span<std::byte> out) {
    if (key_ == nullptr) {
        return Error{Code::kFailedPrecondition, "worker.state", "read_blocks before begin_precopy"};
    }
    if (out.size() < blocks.size() * kBlockBytes) {
        return Error{Code::kInvalidArgument, "state.arena",
                     fmt::format("{} blocks do not fit {} bytes", blocks.size(), out.size())};
    }
    if (process_.is_broken()) {
        return std::vector<CopiedBlock>();  // They vanished.
    }
    auto read = reader_.copy(*key_, blocks, out);
    if (!read && process_.finds_broken()) {
        return std::vector<CopiedBlock>();
    }
    GANTRY_ASSIGN(const auto copied, std::move(read));
    for (const CopiedBlock& block : copied) {
        sent_.set(block.address, block.fingerprint);
    }
    return copied;
}

void PartState::mark_unsent(std::span<const BlockAddress> blocks) {
    if (blocks.empty()) {
        sent_.clear();
        return;
    }
    for (const BlockAddress& block : blocks) {
        sent_.erase(block);
    }
}

Result<void> PartState::note_sent(std::span<const BlockRange> ranges,
                                  std::span<const Fingerprint> fingerprints) {
    if (key_ == nullptr) {
        return Error{Code::kFailedPrecondition, "worker.state", "note_sent before begin_precopy"};
    }
    std::size_t at = 0;
    for (const BlockRange& range : ranges) {
        for (std::uint64_t i = 0; i < range.count; ++i) {
            sent_.set({range.space, range.first + i}, fingerprints[at++]);
        }
    }
    return {};
}

Result<void> PartState::check_movable() {
    for (const engine::BlockingFeature& feature : blocking_features(process_, part_id_)) {
        return Error{
            Code::kFailedPrecondition, "feature." + feature.id + ".not_movable",
            "the process uses what cannot be taken over: " + feature.id + ", " + feature.detail};
    }
    return {};
}

Result<std::string> PartState::graph() {
    using std::chrono::milliseconds;
    // Objects and what is kept beside them must agree, so the guest's commands stand still while
    // they are read. Where one takes too long for that, a target leaves out what hangs together no
    // more until the final graph tells (part_build.cc); but CUDA's graphs are read from the driver,
    // and no command may change one meanwhile.
    const bool runs = execution_.serving() && !execution_.frozen();
    const bool has_graphs = process_.objects.count_kind(cuda::HandleKind::kGraph) != 0 ||
                            process_.objects.count_kind(cuda::HandleKind::kGraphExec) != 0;
    const milliseconds patience(has_graphs ? 2000 : 200);
    const bool holds = runs && execution_.loop().hold(std::chrono::steady_clock::now() + patience);
    if (runs && has_graphs && !holds) {
        return Error{Code::kDeadlineExceeded, "drain.deadline",
                     "the command in hand did not end in time"};
    }
    std::unique_lock lanes(process_.lane_changes, std::defer_lock);
    if (holds) {
        (void)lanes.try_lock_for(milliseconds(20));
    }
    const auto read = [this]() -> Result<snapshot::ObjectGraph> {
        GANTRY_TRY(check_movable());
        return encode(process_, part_id_, nullptr);
    };
    Result<snapshot::ObjectGraph> encoded = read();
    if (!encoded && process_.finds_broken()) {
        encoded = read();
    }
    if (holds) {
        execution_.loop().resume();
    }
    if (!encoded.ok()) {
        return encoded.error();
    }
    return encoded->SerializeAsString();
}

Result<std::string> PartState::final_graph() {
    if (!execution_.frozen()) {
        return Error{Code::kFailedPrecondition, "worker.state",
                     "the final graph is taken while frozen only"};
    }
    GANTRY_TRY(check_movable());
    GANTRY_TRY(process_.memory.pinned_writes.left());
    GANTRY_ASSIGN(const worker::ChannelState channel, execution_.channel_state());
    GANTRY_ASSIGN(const snapshot::ObjectGraph encoded, encode(process_, part_id_, &channel));
    return encoded.SerializeAsString();
}

engine::BlockSetDigest PartState::sent_digest() const {
    engine::BlockSetDigest digest;
    sent_.for_each([&](BlockAddress block, const Fingerprint& fingerprint) {
        digest.add(static_cast<std::uint32_t>(block.space), block.index, fingerprint);
    });
    return digest;
}

Result<engine::BlockSetDigest> PartState::digest() { return digest_without({}, {}); }

Result<engine::BlockSetDigest> PartState::digest(const BlockReader::Visit& see) {
    return digest_without({}, see);
}

Result<void> PartState::need_key() {
    if (!seed_) {
        return Error{Code::kFailedPrecondition, "worker.state", "a digest needs a seed"};
    }
    if (key_ == nullptr) {
        key_ = std::make_unique<snapshot::FingerprintKey>(*seed_);
    }
    return {};
}

Result<engine::BlockSetDigest> PartState::digest_without(std::vector<BlockRange> known,
                                                         const BlockReader::Visit& see) {
    GANTRY_TRY(need_key());
    engine::BlockSetDigest digest;
    reader_.set_share(0);
    const auto visit = [&](const BlockRange& range, std::span<const Fingerprint> fingerprints) {
        add_fingerprints(range, fingerprints, &digest);
        if (see) {
            see(range, fingerprints);
        }
    };
    GANTRY_TRY(reader_.for_each_fingerprint(*key_, visit, std::move(known)));
    return digest;
}

void PartState::keep_image(std::vector<std::byte> bytes) {
    kept_images_.push_back(process_.code.images.adopt(std::move(bytes)));
}

Result<PartState::Looked> PartState::look_at_first(std::uint64_t count,
                                                   const BlockReader::Visit& see) {
    if (!execution_.frozen()) {
        return Error{Code::kFailedPrecondition, "worker.state",
                     "memory is looked at portion by portion while frozen only"};
    }
    process_.memory.refresh_private_ranges();
    unlooked_ = memory_.ranges();
    Result<Looked> looked = look_on(count, see);
    if (!looked && process_.finds_broken()) {
        unlooked_.clear();  // Of a context that is broken nothing is left to see.
        return Looked{};
    }
    return looked;
}

Result<PartState::Looked> PartState::look_on(std::uint64_t count, const BlockReader::Visit& see) {
    GANTRY_TRY(need_key());
    reader_.set_share(0);
    Looked out;
    GANTRY_TRY(reader_.for_each_fingerprint_of(
        take_first(&unlooked_, count), *key_,
        [&](const BlockRange& range, std::span<const Fingerprint> fingerprints) {
            add_fingerprints(range, fingerprints, &out.digest);
            see(range, fingerprints);
        }));
    out.left_count = count_of(unlooked_);
    return out;
}

Result<FileOutcome> PartState::store_blocks(int file, std::span<const FileRun> runs,
                                            const std::function<Result<void>()>& meanwhile) {
    const bool is_prepared =
        prepared_file() != nullptr && prepared_->is_of(file) && prepared_->settle();
    bool is_due = static_cast<bool>(meanwhile);
    const auto do_meanwhile = [&] {
        return std::exchange(is_due, false) ? meanwhile() : Result<void>{};
    };
    CopyHooks beside;
    beside.meanwhile = [&]() -> Result<void> {
        GANTRY_TRY(do_meanwhile());
        return key_ == nullptr ? Result<void>{} : copied_.look(*key_);  // Of those before.
    };
    GANTRY_ASSIGN(FileOutcome outcome,
                  FileBlocks(process_, memory_, slots_)
                      .store(file, runs, is_prepared ? prepared_.get() : nullptr, beside));
    GANTRY_TRY(do_meanwhile());
    if (outcome.outside.empty()) {
        for (const FileRun& run : runs) {
            copied_.add(run.range.first * kBlockBytes, run.range.count * kBlockBytes);
        }
    }
    return outcome;
}

Result<engine::BlockSetDigest> PartState::digest_after_copies() {
    if (execution_.serving() && !execution_.frozen()) {
        return Error{Code::kFailedPrecondition, "worker.state",
                     "what was copied may have changed: the guest is served"};
    }
    GANTRY_TRY(need_key());
    GANTRY_TRY(copied_.look_at_sample(*key_));
    GANTRY_ASSIGN(engine::BlockSetDigest digest, digest_without(copied_.seen(), {}));
    digest.merge(copied_.digest());
    return digest;
}

Result<void> PartState::prepare_file(control::UniqueFd file, snapshot::FileRange range) {
    if (prepared_file() != nullptr) {
        return Error{Code::kUnavailable, "worker.file_busy",
                     "another file is prepared, or is being let go"};
    }
    GANTRY_ASSIGN(prepared_, PreparedFile::begin(process_, std::move(file), range));
    return {};
}

const PreparedFile* PartState::prepared_file() {
    if (prepared_ != nullptr && prepared_->is_over()) {
        prepared_.reset();
    }
    return prepared_.get();
}

void PartState::drop_prepared_file() {
    if (prepared_file() != nullptr) {
        prepared_->give_up();
    }
}

std::vector<worker::ImagePtr> PartState::images() {
    std::vector<worker::ImagePtr> images;
    if (process_.is_broken()) {
        return images;
    }
    std::set<worker::Sha256> listed;
    for (const worker::LoadedImage& loaded : process_.code.modules.list()) {
        if (listed.insert(loaded.image->sha256).second) {
            images.push_back(loaded.image);
        }
    }
    if (execution_.frozen()) {  // Before, more pieces may come.
        for (worker::StagedImage& staged : process_.code.images.staged()) {
            if (listed.insert(staged.part->sha256).second) {
                images.push_back(std::move(staged.part));
            }
        }
    }
    return images;
}

}  // namespace gantry::state
