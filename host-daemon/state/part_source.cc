// PartState, the source's half and what both halves share.
#include <fmt/format.h>

#include <algorithm>

#include "host-daemon/state/image_code.h"
#include "host-daemon/state/part_state.h"

namespace gantry::state {

PartState::PartState(worker::GuestProcess& process, std::uint64_t part_id)
    : process_(process),
      part_id_(part_id),
      memory_(process) {}

PartFacts PartState::describe() {
    PartFacts facts;
    process_.refresh_private_ranges();
    facts.resident_bytes = memory_.block_count() * kBlockBytes;
    for (const worker::PinnedRange& range : process_.memory.pinned_ranges()) {
        facts.pinned_bytes += range.bytes;
    }
    facts.object_count = process_.objects.size();
    for (const worker::LoadedImage& loaded : process_.modules.list()) {
        ModuleFacts module;
        module.image_sha256 = worker::to_hex(loaded.image->sha256);
        module.name = loaded.name;
        module.has_address_bound_globals =
            !loaded.variables.empty() && !process_.device.can_place();
        for (const auto& part : loaded.parts) {
            std::vector<engine::CodeEntry> code;
            append_code(std::span(loaded.image->bytes).subspan(part.offset, part.bytes), &code);
            // Part 0 is what a driver loads. The others are its relocatable inputs, whose PTX only
            // a driver with our extension links.
            const bool is_loaded = &part == &loaded.parts.front();
            std::copy_if(code.begin(), code.end(), std::back_inserter(module.code),
                         [&](const engine::CodeEntry& entry) {
                             return is_loaded ||
                                    (entry.is_ptx && process_.device.extension() != nullptr);
                         });
        }
        facts.modules.push_back(std::move(module));
    }
    facts.blocking = blocking_features(process_, part_id_);
    return facts;
}

void PartState::begin_precopy(snapshot::Seed seed) {
    seed_ = seed;
    key_ = std::make_unique<snapshot::FingerprintKey>(seed);
    sent_.clear();
}

void PartState::end_precopy() {
    key_.reset();
    sent_.clear();
}

Result<void> PartState::for_each_block(
    const std::function<Result<void>(BlockAddress, snapshot::BlockSpan)>& visit) {
    process_.refresh_private_ranges();
    for (const BlockRange& range : memory_.ranges()) {
        for (std::uint64_t done = 0; done < range.count;) {
            BlockRange batch = range;
            batch.first += done;
            batch.count = std::min(range.count - done, MemoryImage::kBatchBlocks);
            const auto bytes = memory_.buffer().first(batch.count * kBlockBytes);
            GANTRY_ASSIGN(const bool present, memory_.read(batch, bytes));
            for (std::uint64_t i = 0; present && i < batch.count; ++i) {
                GANTRY_TRY(visit({batch.space, batch.first + i},
                                 bytes.subspan(i * kBlockBytes).first<kBlockBytes>()));
            }
            done += batch.count;
        }
    }
    return {};
}

Result<engine::ScanResult> PartState::scan() {
    if (key_ == nullptr) {
        return Error{Code::kFailedPrecondition, "worker.state", "scan before begin_precopy"};
    }
    engine::ScanResult result;
    std::set<BlockAddress> seen;
    if (sent_.empty()) {  // All of it, without a look at the bytes.
        process_.refresh_private_ranges();
        for (const BlockRange& range : memory_.ranges()) {
            for (std::uint64_t i = 0; i < range.count; ++i) {
                result.changed.push_back({range.space, range.first + i});
            }
        }
        std::sort(result.changed.begin(), result.changed.end());
        result.scanned_block_count = result.changed.size();
        return result;
    }
    GANTRY_TRY(for_each_block([&](BlockAddress block, snapshot::BlockSpan bytes) -> Result<void> {
        ++result.scanned_block_count;
        const auto sent = sent_.find(block);
        if (sent == sent_.end() || sent->second != snapshot::fingerprint(*key_, bytes)) {
            result.changed.push_back(block);
        }
        seen.insert(block);
        return {};
    }));
    std::erase_if(sent_, [&](const auto& entry) {
        const bool gone = !seen.contains(entry.first);
        result.vanished_block_count += gone ? 1 : 0;
        return gone;
    });
    std::sort(result.changed.begin(), result.changed.end());
    return result;
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
    std::vector<CopiedBlock> copied;
    for (std::size_t i = 0; i < blocks.size();) {
        std::size_t run = 1;  // Neighbours are copied together.
        while (i + run < blocks.size() && run < MemoryImage::kBatchBlocks &&
               blocks[i + run].space == blocks[i].space &&
               blocks[i + run].index == blocks[i].index + run) {
            ++run;
        }
        const auto bytes = out.subspan(copied.size() * kBlockBytes, run * kBlockBytes);
        GANTRY_ASSIGN(const bool present,
                      memory_.read({blocks[i].space, blocks[i].index, run}, bytes));
        for (std::size_t k = 0; present && k < run; ++k) {
            const Fingerprint print = snapshot::fingerprint(
                *key_, bytes.subspan(k * kBlockBytes).first<kBlockBytes>());
            copied.push_back({blocks[i + k], print});
            sent_[blocks[i + k]] = print;
        }
        i += run;
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

Result<void> PartState::check_movable() {
    for (const engine::BlockingFeature& feature : blocking_features(process_, part_id_)) {
        return Error{Code::kFailedPrecondition, "feature." + feature.id + ".not_movable",
                     "the process uses what cannot be taken over: " + feature.id + ", " +
                         feature.detail};
    }
    return {};
}

Result<std::string> PartState::graph() {
    GANTRY_TRY(check_movable());
    // Graphs are read from the driver: no command of the guest may change one meanwhile.
    const bool has_graphs = process_.objects.count_kind(cuda::HandleKind::kGraph) != 0 ||
                            process_.objects.count_kind(cuda::HandleKind::kGraphExec) != 0;
    const bool needs_hold = has_graphs && process_.serving() && !process_.frozen();
    if (needs_hold &&
        !process_.loop().hold(std::chrono::steady_clock::now() + std::chrono::seconds(2))) {
        return Error{Code::kDeadlineExceeded, "drain.deadline",
                     "the command in hand did not end in time"};
    }
    auto encoded = encode(process_, part_id_, false);
    if (needs_hold) {
        process_.loop().resume();
    }
    if (!encoded.ok()) {
        return encoded.error();
    }
    return encoded->SerializeAsString();
}

Result<std::string> PartState::final_graph() {
    if (!process_.frozen()) {
        return Error{Code::kFailedPrecondition, "worker.state",
                     "the final graph is taken while frozen only"};
    }
    GANTRY_TRY(check_movable());
    GANTRY_TRY(process_.pinned_writes.left());
    GANTRY_ASSIGN(const snapshot::ObjectGraph encoded, encode(process_, part_id_, true));
    return encoded.SerializeAsString();
}

engine::BlockSetDigest PartState::sent_digest() const {
    engine::BlockSetDigest digest;
    for (const auto& [block, print] : sent_) {
        digest.add(static_cast<std::uint32_t>(block.space), block.index, print);
    }
    return digest;
}

Result<engine::BlockSetDigest> PartState::digest() {
    if (!seed_) {
        return Error{Code::kFailedPrecondition, "worker.state", "a digest needs a seed"};
    }
    if (key_ == nullptr) {
        key_ = std::make_unique<snapshot::FingerprintKey>(*seed_);
    }
    engine::BlockSetDigest digest;
    GANTRY_TRY(for_each_block([&](BlockAddress block, snapshot::BlockSpan bytes) -> Result<void> {
        digest.add(static_cast<std::uint32_t>(block.space), block.index,
                   snapshot::fingerprint(*key_, bytes));
        return {};
    }));
    return digest;
}

void PartState::keep_image(std::vector<std::byte> bytes) {
    kept_images_.push_back(process_.images.adopt(std::move(bytes)));
}

std::vector<worker::ImagePtr> PartState::images() {
    std::vector<worker::ImagePtr> images;
    std::set<worker::Sha256> listed;
    for (const worker::LoadedImage& loaded : process_.modules.list()) {
        if (listed.insert(loaded.image->sha256).second) {
            images.push_back(loaded.image);
        }
    }
    return images;
}

}  // namespace gantry::state
