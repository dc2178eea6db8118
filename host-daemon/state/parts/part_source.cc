#include "host-daemon/state/parts/part_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "host-daemon/state/blocks/block_ranges.h"
#include "host-daemon/state/cuda_graphs/cuda_graph_content.h"
#include "host-daemon/state/objects/object_graph_codec.h"
#include "host-daemon/state/parts/blocking_features.h"
#include "host-daemon/state/parts/code_entries.h"
#include "host-daemon/state/parts/device_needs.h"
#include "proto/base/hex.h"

namespace gantry::state {

PartSource::PartSource(PartContent& content)
    : content_(content), execution_(content.execution), process_(content.process) {
    describe_graphs(process_);
}

PartFacts PartSource::describe() {
    PartFacts facts;
    if (process_.finds_broken()) {
        return facts;  // Its channel and its error are all there is: any GPU will do.
    }
    process_.memory.refresh_private_ranges();
    facts.resident_bytes = content_.memory.block_count() * kBlockBytes;
    facts.beside_bytes = process_.objects.charged_kind(worker::HandleKind::kContext);
    for (const worker::PinnedRange& range : process_.memory.device.pinned_ranges()) {
        facts.pinned_bytes += range.bytes;
    }
    facts.object_count = process_.objects.size();
    for (const worker::ImagePtr& image : content_.images()) {
        facts.image_bytes += image->bytes.size();
    }
    for (const worker::LoadedImage& loaded : process_.code.modules.list()) {
        ModuleFacts module;
        module.image_sha256 = to_hex(loaded.image->sha256);
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
    facts.blocking = blocking_features(process_, content_.part_id);
    facts.attributes = attribute_needs(process_);
    return facts;
}

void PartSource::begin_precopy(snapshot::Seed seed, bool arena_is_shared) {
    content_.memory.set_arena_is_shared(arena_is_shared);
    content_.set_seed(seed);
    sent_.clear();
    content_.copied.clear();
}

void PartSource::end_precopy() {
    content_.memory.set_arena_is_shared(false);
    content_.drop_key();
    sent_.clear();
    unlooked_.clear();
}

Result<engine::ScanResult> PartSource::scan(unsigned share_percent) {
    if (!content_.has_key()) {
        return Error{Code::kFailedPrecondition, "worker.state", "scan before begin_precopy"};
    }
    engine::ScanResult result;
    if (sent_.empty()) {  // All of it, without a look at the bytes.
        process_.memory.refresh_private_ranges();
        for (const BlockRange& range : content_.memory.ranges()) {
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

Result<engine::ScanResult> PartSource::scan_all(engine::BlockSetDigest* digest,
                                                unsigned share_percent) {
    if (!content_.has_key()) {
        return Error{Code::kFailedPrecondition, "worker.state", "scan before begin_precopy"};
    }
    engine::ScanResult result;
    GANTRY_TRY(look(&result, digest, share_percent));
    return result;
}

Result<void> PartSource::look(engine::ScanResult* result, engine::BlockSetDigest* digest,
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

Result<void> PartSource::look_once(engine::ScanResult* result, engine::BlockSetDigest* digest,
                                   unsigned share_percent) {
    // A frozen guest needs nothing of the device.
    content_.reader.set_share(execution_.frozen() ? 0 : share_percent);
    sent_.begin_look();
    GANTRY_TRY(content_.reader.for_each_fingerprint(
        content_.key(), [&](const BlockRange& range, std::span<const Fingerprint> now) {
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
    result->rested = std::chrono::microseconds(content_.reader.take_rested_us());
    sent_.drop_unseen();
    if (!std::is_sorted(result->changed.begin(), result->changed.end())) {
        std::sort(result->changed.begin(), result->changed.end());
    }
    return {};
}

Result<std::vector<CopiedBlock>> PartSource::read_blocks(std::span<const BlockAddress> blocks,
                                                         std::span<std::byte> out) {
    if (!content_.has_key()) {
        return Error{Code::kFailedPrecondition, "worker.state", "read_blocks before begin_precopy"};
    }
    if (out.size() < blocks.size() * kBlockBytes) {
        return Error{Code::kInvalidArgument, "state.arena",
                     fmt::format("{} blocks do not fit {} bytes", blocks.size(), out.size())};
    }
    if (process_.is_broken()) {
        return std::vector<CopiedBlock>();  // They vanished.
    }
    auto read = content_.reader.copy(content_.key(), blocks, out);
    if (!read && process_.finds_broken()) {
        return std::vector<CopiedBlock>();
    }
    GANTRY_ASSIGN(const auto copied, std::move(read));
    for (const CopiedBlock& block : copied) {
        sent_.set(block.address, block.fingerprint);
    }
    return copied;
}

void PartSource::mark_unsent(std::span<const BlockAddress> blocks) {
    if (blocks.empty()) {
        sent_.clear();
        return;
    }
    for (const BlockAddress& block : blocks) {
        sent_.erase(block);
    }
}

Result<void> PartSource::note_sent(std::span<const BlockRange> ranges,
                                   std::span<const Fingerprint> fingerprints) {
    if (!content_.has_key()) {
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

Result<void> PartSource::check_movable() {
    for (const engine::BlockingFeature& feature : blocking_features(process_, content_.part_id)) {
        return Error{
            Code::kFailedPrecondition, "feature." + feature.id + ".not_movable",
            "the process uses what cannot be taken over: " + feature.id + ", " + feature.detail};
    }
    return {};
}

Result<std::string> PartSource::graph() {
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
        return encode(process_, content_.part_id, nullptr);
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

Result<std::string> PartSource::final_graph() {
    if (!execution_.frozen()) {
        return Error{Code::kFailedPrecondition, "worker.state",
                     "the final graph is taken while frozen only"};
    }
    GANTRY_TRY(check_movable());
    GANTRY_TRY(process_.memory.pinned_writes.left());
    GANTRY_ASSIGN(const worker::ChannelState channel, execution_.channel_state());
    GANTRY_ASSIGN(const snapshot::ObjectGraph encoded,
                  encode(process_, content_.part_id, &channel));
    return encoded.SerializeAsString();
}

engine::BlockSetDigest PartSource::sent_digest() const {
    engine::BlockSetDigest digest;
    sent_.for_each([&](BlockAddress block, const Fingerprint& fingerprint) {
        digest.add(static_cast<std::uint32_t>(block.space), block.index, fingerprint);
    });
    return digest;
}

Result<PartSource::Looked> PartSource::look_at_first(std::uint64_t count,
                                                     const BlockReader::Visit& see) {
    if (!execution_.frozen()) {
        return Error{Code::kFailedPrecondition, "worker.state",
                     "memory is looked at portion by portion while frozen only"};
    }
    process_.memory.refresh_private_ranges();
    unlooked_ = content_.memory.ranges();
    Result<Looked> looked = look_on(count, see);
    if (!looked && process_.finds_broken()) {
        unlooked_.clear();  // Of a context that is broken nothing is left to see.
        return Looked{};
    }
    return looked;
}

Result<PartSource::Looked> PartSource::look_on(std::uint64_t count, const BlockReader::Visit& see) {
    GANTRY_TRY(content_.need_key());
    content_.reader.set_share(0);
    Looked out;
    GANTRY_TRY(content_.reader.for_each_fingerprint_of(
        take_first(&unlooked_, count), content_.key(),
        [&](const BlockRange& range, std::span<const Fingerprint> fingerprints) {
            add_fingerprints(range, fingerprints, &out.digest);
            see(range, fingerprints);
        }));
    out.left_count = count_of(unlooked_);
    return out;
}

Result<FileOutcome> PartSource::store_blocks(int file, std::span<const FileRun> runs,
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
        return !content_.has_key() ? Result<void>{}
                                   : content_.copied.look(content_.key());  // Of those before.
    };
    GANTRY_ASSIGN(FileOutcome outcome,
                  FileBlocks(process_, content_.memory, content_.slots)
                      .store(file, runs, is_prepared ? prepared_.get() : nullptr, beside));
    GANTRY_TRY(do_meanwhile());
    if (outcome.outside.empty()) {
        for (const FileRun& run : runs) {
            content_.copied.add(run.range.first * kBlockBytes, run.range.count * kBlockBytes);
        }
    }
    return outcome;
}

Result<void> PartSource::prepare_file(control::UniqueFd file, snapshot::FileRange range) {
    if (prepared_file() != nullptr) {
        return Error{Code::kUnavailable, "worker.file_busy",
                     "another file is prepared, or is being let go"};
    }
    GANTRY_ASSIGN(prepared_, PreparedFile::begin(process_, std::move(file), range));
    return {};
}

const PreparedFile* PartSource::prepared_file() {
    if (prepared_ != nullptr && prepared_->is_over()) {
        prepared_.reset();
    }
    return prepared_.get();
}

void PartSource::drop_prepared_file() {
    if (prepared_file() != nullptr) {
        prepared_->give_up();
    }
}

}  // namespace gantry::state
