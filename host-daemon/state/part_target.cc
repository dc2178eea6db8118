// PartState, the target's half: building what a graph describes.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "host-daemon/state/image_code.h"
#include "host-daemon/state/part_state.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::state {
namespace {

using cuda::HandleKind;

bool is_same(const worker::RecordedCommand& a, const worker::RecordedCommand& b) {
    return a.op == b.op && a.context == b.context && a.args == b.args && a.trailing == b.trailing;
}

bool has_command(const worker::Object& object, const worker::RecordedCommand& wanted) {
    return std::any_of(object.configuration.begin(), object.configuration.end(),
                       [&](const auto& entry) { return is_same(entry.second, wanted); });
}

std::string name_of(const worker::Object& object) {
    const char* op = cuda::op_name(static_cast<cuda::Op>(object.creation.op));
    return fmt::format("{:#x} ({})", object.handle, op != nullptr ? op : "unknown command");
}

const worker::LoadedImage* image_of(const DecodedGraph& graph, std::uint64_t handle,
                                    worker::Sha256* sha) {
    for (std::size_t i = 0; i < graph.images.size(); ++i) {
        if (graph.images[i].handle == handle) {
            *sha = graph.image_hashes[i];
            return &graph.images[i];
        }
    }
    return nullptr;
}

bool is_module_root(const worker::Object& object) {
    return object.parent == 0 &&
           (object.kind() == HandleKind::kModule || object.kind() == HandleKind::kLibrary);
}

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

}  // namespace

std::vector<Problem> PartState::check(const DecodedGraph& graph) {
    std::vector<Problem> problems;
    std::uint64_t bytes = 0;
    for (const worker::ExtentRecord& extent : graph.extents) {
        bytes += extent.bytes;
    }
    if (bytes > process_.memory.quota_bytes()) {
        problems.push_back({true, "gpu.memory.too_small",
                            fmt::format("the process holds {} MiB of device memory, {} MiB may be "
                                        "used here",
                                        bytes >> 20, process_.memory.quota_bytes() >> 20)});
    }
    for (const snapshot::BlockedFeature& feature : graph.message.blocked_features()) {
        problems.push_back({true, "feature." + feature.id() + ".not_movable", feature.detail()});
    }
    return problems;
}

std::vector<worker::Sha256> PartState::missing_images(const DecodedGraph& graph) {
    std::vector<worker::Sha256> missing;
    for (const worker::Sha256& sha : graph.image_hashes) {
        if (process_.images.find(sha) == nullptr) {
            missing.push_back(sha);
        }
    }
    return missing;
}

Result<std::vector<worker::Sha256>> PartState::prepare(snapshot::Seed seed,
                                                       std::string_view bytes) {
    if (!seed_ || *seed_ != seed) {
        seed_ = seed;
        key_.reset();
    }
    GANTRY_ASSIGN(DecodedGraph graph, decode(bytes));
    auto missing = missing_images(graph);
    if (missing.empty()) {
        GANTRY_TRY(build(graph, false));
    }
    return missing;
}

Result<std::vector<worker::Sha256>> PartState::apply_final(std::string_view bytes) {
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
    take_facts(graph.message.device(), &process_.facts);
    process_.guest_pid = graph.message.process().guest_pid();
    process_.sticky_error = static_cast<std::uint32_t>(graph.message.execution().sticky_error());
    for (const snapshot::Event& event : graph.message.events()) {
        if (event.timestamp_ns() != 0) {
            process_.event_times.keep(event.handle(),
                                      static_cast<double>(event.timestamp_ns()) / 1e6);
        }
    }
    pinned_ = graph.pinned;
    channel_ = std::move(graph.channel);
    return missing;
}

Result<void> PartState::build(DecodedGraph& graph, bool is_final) {
    process_.device.bind_thread();
    GANTRY_TRY(process_.memory.reshape(graph.extents, graph.allocations));
    std::map<std::uint64_t, const worker::Object*> wanted;
    for (const worker::Object& object : graph.objects) {
        wanted.emplace(object.handle, &object);
    }
    auto present = process_.objects.list([](const worker::Object&) { return true; });
    for (auto object = present.rbegin(); object != present.rend(); ++object) {
        const auto match = wanted.find(object->handle);
        if (match == wanted.end() || match->second->order != object->order) {
            process_.destroy_object(*object);
        }
    }
    const auto& blobs = graph.message.private_blobs();
    const bool has_private = std::any_of(blobs.begin(), blobs.end(),
                                         [](const auto& blob) { return blob.required(); });
    if (is_final && has_private) {
        GANTRY_TRY(restore_private(graph));
    }
    std::set<std::uint64_t> put_off;  // Their module uses memory that only the final graph fixes.
    for (const worker::Object& object : graph.objects) {
        const bool wait = !is_final && ((has_private && is_module_root(object)) ||
                                        put_off.contains(object.parent));
        if (wait) {
            put_off.insert(object.handle);
        } else {
            GANTRY_TRY(build_object(graph, object));
        }
    }
    GANTRY_TRY(check_variables(graph));
    return flush_kept_blocks();
}

Result<void> PartState::build_object(const DecodedGraph& graph, const worker::Object& object) {
    const auto present = process_.objects.get(object.handle);
    if (!present) {
        process_.wanted_native = object.native;
        CUresult result = CUDA_SUCCESS;
        if (is_module_root(object)) {
            GANTRY_TRY(load_module(graph, object));
        } else {
            result = process_.replay(object.creation);
        }
        process_.wanted_native = 0;
        if (result != CUDA_SUCCESS) {
            return driver::to_error(process_.device.api(), result, "state.object",
                                    "making object " + name_of(object) + " again");
        }
    }
    for (const auto& [key, command] : object.configuration) {
        if (present && has_command(*present, command)) {
            continue;
        }
        if (const CUresult result = process_.replay(command); result != CUDA_SUCCESS) {
            return driver::to_error(process_.device.api(), result, "state.object",
                                    "configuring object " + name_of(object) + " again");
        }
    }
    process_.objects.restore_record(object.handle, object.order, object.parent,
                                    object.configuration);
    return {};
}

Result<void> PartState::load_module(const DecodedGraph& graph, const worker::Object& object) {
    worker::Sha256 sha{};
    const worker::LoadedImage* loaded = image_of(graph, object.handle, &sha);
    cuda::wire_hand::LoadCall load{};
    if (loaded == nullptr || object.creation.args.size() != sizeof(load)) {
        return Error{Code::kInvalidArgument, "snapshot.graph",
                     "object " + name_of(object) + " names no image"};
    }
    std::memcpy(&load, object.creation.args.data(), sizeof(load));
    const worker::ImagePtr image = process_.images.find(sha);
    if (image == nullptr || image->bytes.size() != load.image_bytes) {
        return Error{Code::kNotFound, "module.image_missing",
                     "the image of " + name_of(object) + " did not arrive"};
    }
    GANTRY_TRY(process_.images.stage(load.image_id, load.image_bytes, 0, image->bytes));
    std::vector<GantrySoftPlacement> places;
    for (const auto& [name, variable] : loaded->variables) {
        places.push_back({name.c_str(), variable.address});
    }
    if (const GantrySoftExtension* extension = process_.device.extension();
        extension != nullptr && !places.empty()) {
        extension->place_next_load(places.data(), places.size());
    }
    if (const CUresult result = process_.replay(object.creation); result != CUDA_SUCCESS) {
        return driver::to_error(process_.device.api(), result, "module.load",
                                fmt::format("loading image {} of {}",
                                            worker::to_hex(sha).substr(0, 16), name_of(object)));
    }
    return {};
}

Result<void> PartState::check_variables(const DecodedGraph& graph) {
    for (const worker::LoadedImage& wanted : graph.images) {
        if (wanted.variables.empty() || !process_.objects.contains(wanted.handle)) {
            continue;
        }
        process_.learn_variables(wanted.handle);
        const auto loaded = process_.modules.get(wanted.handle);
        for (const auto& [name, variable] : wanted.variables) {
            const auto address = process_.variable_address(wanted.handle, name);
            if (!loaded || !address || *address != variable.address) {
                return Error{Code::kFailedPrecondition, "module.globals.not_movable",
                             fmt::format("variable {} of image {} lies at {:#x} here and must lie "
                                         "at {:#x}, since the program may have stored its address",
                                         name, loaded ? loaded->name : "?", address.value_or(0),
                                         variable.address)};
            }
            process_.memory.add_outside(wanted.handle, variable.address, variable.bytes);
            process_.modules.note_variable(wanted.handle, variable);
        }
    }
    return {};
}

Result<void> PartState::restore_private(const DecodedGraph& graph) {
    if (private_restored_) {
        return {};
    }
    const GantrySoftExtension* extension = process_.device.extension();
    for (const snapshot::PrivateBlob& blob : graph.message.private_blobs()) {
        if (extension == nullptr || blob.driver() != kSoftDriverState) {
            if (!blob.required()) {
                continue;
            }
            return Error{Code::kFailedPrecondition, "feature.device_heap.not_movable",
                         "the process uses the device heap, which this host's driver cannot take "
                         "over from '" +
                             blob.driver() + "'"};
        }
        const CUresult result = extension->restore_private_state(
            process_.device.context(), blob.data().data(), blob.data().size());
        if (result != CUDA_SUCCESS) {
            return driver::to_error(process_.device.api(), result, "state.private",
                                    "restoring the driver's private state");
        }
    }
    private_restored_ = true;
    process_.refresh_private_ranges();
    return {};
}

Result<void> PartState::apply_block(BlockAddress block, std::span<const std::byte> bytes) {
    GANTRY_ASSIGN(const bool placed, memory_.write(block, bytes));
    if (placed && memory_.is_whole(block)) {
        kept_blocks_.erase(block);
    } else {
        kept_blocks_[block].assign(bytes.begin(), bytes.end());
    }
    return {};
}

Result<void> PartState::flush_kept_blocks() {
    for (auto kept = kept_blocks_.begin(); kept != kept_blocks_.end();) {
        GANTRY_ASSIGN(const bool placed, memory_.write(kept->first, kept->second));
        // A block that holds variables of several modules is complete only when all are loaded.
        if (placed && memory_.is_whole(kept->first)) {
            kept = kept_blocks_.erase(kept);
        } else {
            ++kept;
        }
    }
    return {};
}

Result<void> PartState::register_pinned() {
    process_.device.bind_thread();
    for (const worker::PinnedRange& range : pinned_) {
        const CUresult result = process_.memory.register_pinned(range);
        if (result != CUDA_SUCCESS) {
            return driver::to_error(process_.device.api(), result, "state.pinned",
                                    fmt::format("page-locking {} bytes at {:#x}", range.bytes,
                                                range.address));
        }
    }
    return {};
}

}  // namespace gantry::state
