#include "host-daemon/state/parts/part_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "host-daemon/state/files/file_pieces.h"

namespace gantry::state {

void take_facts(const snapshot::DeviceFacts& from, wire::DeviceFacts* facts) {
    std::memset(facts->name, 0, sizeof(facts->name));
    from.name().copy(facts->name, sizeof(facts->name) - 1);
    if (from.uuid().size() == sizeof(facts->uuid)) {
        std::memcpy(facts->uuid, from.uuid().data(), sizeof(facts->uuid));
    }
    facts->total_memory_bytes = from.total_memory_bytes();
    for (const auto& [number, value] : from.attributes()) {
        if (number < wire::kMaxDeviceAttributes) {
            facts->attributes[number] = static_cast<std::int32_t>(value);
            facts->attribute_status[number] = CUDA_SUCCESS;
        }
    }
}

std::vector<Problem> PartTarget::check(const DecodedGraph& graph) {
    std::vector<Problem> problems;
    std::uint64_t bytes = 0;
    for (const worker::ExtentRecord& extent : graph.extents) {
        bytes += extent.bytes;
    }
    if (bytes > process_.memory.device.quota_bytes()) {
        problems.push_back({true, "gpu.memory.too_small",
                            fmt::format("the process holds {} MiB of device memory, {} MiB may be "
                                        "used here",
                                        bytes >> 20, process_.memory.device.quota_bytes() >> 20)});
    }
    for (const snapshot::BlockedFeature& feature : graph.message.blocked_features()) {
        problems.push_back({true, "feature." + feature.id() + ".not_movable", feature.detail()});
    }
    return problems;
}

std::vector<Sha256> PartTarget::missing_images(const DecodedGraph& graph) {
    std::vector<Sha256> missing;
    for (const auto* hashes : {&graph.image_hashes, &graph.staged_hashes}) {
        for (const Sha256& sha : *hashes) {
            if (process_.code.images.find(sha) == nullptr) {
                missing.push_back(sha);
            }
        }
    }
    return missing;
}

Result<std::vector<Sha256>> PartTarget::prepare(snapshot::Seed seed, std::string_view bytes,
                                                bool arena_is_shared) {
    content_.memory.set_arena_is_shared(arena_is_shared);
    content_.expect_seed(seed);
    GANTRY_ASSIGN(DecodedGraph graph, decode(bytes));
    auto missing = missing_images(graph);
    if (missing.empty() && expects_file_) {
        process_.device.bind_thread();
        GANTRY_TRY(check_private(graph));
        GANTRY_TRY(build_memory(graph));
        put_off_ = std::move(graph);
    } else if (missing.empty()) {
        GANTRY_TRY(build(graph, false));
    }
    return missing;
}

Result<std::vector<Sha256>> PartTarget::apply_final(std::string_view bytes) {
    put_off_.reset();  // It builds all that is not there.
    GANTRY_ASSIGN(DecodedGraph graph, decode(bytes));
    if (!graph.message.has_execution()) {
        return Error{Code::kInvalidArgument, "snapshot.graph",
                     "this graph was not taken while frozen: it has no execution state"};
    }
    auto missing = missing_images(graph);
    if (!missing.empty()) {
        return missing;
    }
    GANTRY_TRY(build(graph, true));
    for (std::size_t i = 0; i < graph.staged.size(); ++i) {
        graph.staged[i].part = process_.code.images.find(graph.staged_hashes[i]);
    }
    GANTRY_TRY(process_.code.images.set_staged(graph.staged));
    take_facts(graph.message.device(), &process_.facts);
    if (process_.facts.total_memory_bytes != 0) {
        process_.memory.device.lower_quota(process_.facts.total_memory_bytes);
    }
    process_.channel.set_program(
        {graph.message.process().guest_pid(), graph.message.process().process_name()});
    process_.errors.lose_context(static_cast<CUresult>(graph.message.execution().sticky_error()));
    if (const CUresult result = process_.streams.event_times.load(graph.event_times);
        result != CUDA_SUCCESS) {
        return driver::to_error(process_.device.api(), result, "state.events",
                                "timing the moment of the take-over");
    }
    channel_ = std::move(graph.channel);
    return missing;
}

Result<std::vector<Sha256>> PartTarget::apply_final(std::string_view bytes,
                                                    const worker::MemorySum& expected) {
    worker::Device& device = process_.device;
    device.require_offers();
    GANTRY_ASSIGN(auto missing, apply_final(bytes));
    if (!missing.empty()) {
        return missing;
    }
    device.end_offers();
    if (const worker::MemorySum held = device.origin_sum(); held != expected) {
        return Error{Code::kDataLoss, "handover.memory",
                     fmt::format("{} pieces of {} bytes were taken over, the old worker has {} of "
                                 "{}, or others",
                                 held.count, held.bytes, expected.count, expected.bytes)};
    }
    channel_->pinned.clear();  // Both workers have the region: the guest's own writes stand.
    return missing;
}

Result<void> PartTarget::apply_block(BlockAddress block, std::span<const std::byte> bytes) {
    GANTRY_ASSIGN(const bool placed, content_.memory.write(block, bytes));
    if (placed && content_.memory.is_whole(block)) {
        kept_blocks_.erase(block);
    } else {
        kept_blocks_[block].assign(bytes.begin(), bytes.end());
    }
    return {};
}

Result<void> PartTarget::apply_run(BlockAddress first, std::uint64_t count,
                                   std::span<const std::byte> bytes) {
    GANTRY_ASSIGN(const bool placed, content_.memory.write_run(first, count, bytes));
    for (std::uint64_t i = 0; i < count; ++i) {
        const BlockAddress block{first.space, first.index + i};
        if (placed) {
            kept_blocks_.erase(block);
        } else {
            GANTRY_TRY(apply_block(
                block, bytes.empty() ? bytes : bytes.subspan(i * kBlockBytes, kBlockBytes)));
        }
    }
    return {};
}

Result<FileOutcome> PartTarget::load_blocks(int file, std::span<const FileRun> runs,
                                            bool more_follow) {
    // Blocks that are kept wait for memory: what the file has of them is put there by apply_run().
    if (!kept_blocks_.empty()) {
        return Error{Code::kFailedPrecondition, "worker.state",
                     "blocks of another state wait for their memory"};
    }
    const auto begin = std::chrono::steady_clock::now();
    content_.wait_for_slots();
    const auto has_slots = std::chrono::steady_clock::now();
    GANTRY_TRY(content_.need_key());
    if (!std::exchange(is_loading_, more_follow)) {
        content_.copied.clear();
    }
    CopyHooks beside;
    beside.meanwhile = [this, more_follow]() -> Result<void> {
        if (put_off_ && !more_follow) {
            GANTRY_TRY(build_objects(*put_off_, false));
            put_off_.reset();
        }
        return {};
    };
    beside.landed = [this](std::span<const FileChunk> chunks) {
        for (const FileChunk& chunk : chunks) {
            for (const FilePiece& piece : chunk.pieces) {
                content_.copied.add(piece.address, piece.bytes);
            }
        }
        return content_.copied.look(content_.key());
    };
    auto outcome = FileBlocks(process_, content_.memory, content_.slots).load(file, runs, beside);
    if (outcome) {
        const auto ms = [](std::chrono::steady_clock::duration time) {
            return std::chrono::duration<double, std::milli>(time).count();
        };
        outcome->how +=
            fmt::format("; {:.1f} ms for slots, {:.1f} ms with the copies", ms(has_slots - begin),
                        ms(std::chrono::steady_clock::now() - has_slots));
        if (!more_follow) {
            content_.begin_slots([&slots = content_.slots] { slots.give_back(); });
        }
        on_map_ = std::async(std::launch::async, [map = std::move(outcome->map)]() {
            if (map != nullptr) {
                map->end_in_pieces();
            }
        });
    }
    return outcome;
}

void PartTarget::expect_file() {
    expects_file_ = true;
    // What is the matter where it fails load_blocks() says.
    content_.begin_slots([&slots = content_.slots] {
        (void)slots.make(CopySlots::kCount, FilePlan::kLoadChunkBytes);
    });
}

Result<void> PartTarget::apply_copy(BlockAddress block, BlockAddress origin) {
    const auto kept = kept_blocks_.find(origin);
    if (kept != kept_blocks_.end()) {
        const std::vector<std::byte> bytes = kept->second;
        return apply_block(block, bytes);
    }
    std::vector<std::byte> bytes(kBlockBytes);
    GANTRY_ASSIGN(const bool present, content_.memory.read({origin.space, origin.index, 1}, bytes));
    if (!present) {
        return Error{Code::kInvalidArgument, "state.block",
                     fmt::format("a block copies block {} of space {}, which is not there",
                                 origin.index, static_cast<std::uint32_t>(origin.space))};
    }
    return apply_block(block, bytes);
}

Result<void> PartTarget::flush_kept_blocks() {
    for (auto kept = kept_blocks_.begin(); kept != kept_blocks_.end();) {
        GANTRY_ASSIGN(const bool placed, content_.memory.write(kept->first, kept->second));
        // A block that holds variables of several modules is complete only when all are loaded.
        if (placed && content_.memory.is_whole(kept->first)) {
            kept = kept_blocks_.erase(kept);
        } else {
            ++kept;
        }
    }
    return content_.memory.settle();
}

Result<void> PartTarget::register_pinned() {
    process_.device.bind_thread();
    const auto is_in = [](std::span<const worker::PinnedRange> ranges,
                          const worker::PinnedRange& range) {
        return std::any_of(ranges.begin(), ranges.end(), [&range](const auto& each) {
            return each.address == range.address && each.bytes == range.bytes &&
                   each.flags == range.flags;
        });
    };
    const std::vector<worker::PinnedRange> present = process_.memory.device.pinned_ranges();
    for (const worker::PinnedRange& range : present) {
        if (!is_in(pinned_, range)) {
            process_.memory.device.unregister_pinned(range.address);
        }
    }
    for (const worker::PinnedRange& range : pinned_) {
        if (is_in(present, range)) {
            continue;
        }
        const CUresult result = process_.memory.device.register_pinned(range);
        if (result != CUDA_SUCCESS) {
            return driver::to_error(
                process_.device.api(), result, "state.pinned",
                fmt::format("page-locking {} bytes at {:#x}", range.bytes, range.address));
        }
    }
    if (late_graphs_) {
        GANTRY_TRY(build_graphs(*late_graphs_, true));
        late_graphs_.reset();
    }
    return {};
}

}  // namespace gantry::state
