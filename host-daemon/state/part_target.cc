// PartState, the target's half: building what a graph describes.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "host-daemon/state/graph_content.h"
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

/// Not made by commands again, but by build_memory(), build_links() and build_graphs().
bool is_described(const worker::Object& object) {
    return object.kind() == HandleKind::kVmmAllocation || object.kind() == HandleKind::kMemPool ||
           object.kind() == HandleKind::kLinkState || object.kind() == HandleKind::kGraph ||
           object.kind() == HandleKind::kGraphNode || object.kind() == HandleKind::kGraphExec;
}

/// An exec that can be made only once the guest's region is mapped, or whose graph can.
bool is_late(const snapshot::ObjectGraph& graph, const snapshot::GraphExec& exec) {
    return exec.graph().names_pinned_memory() || exec.updated().names_pinned_memory() ||
           std::any_of(graph.graphs().begin(), graph.graphs().end(), [&](const auto& each) {
               return each.handle() == exec.source_graph() && each.names_pinned_memory();
           });
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
    for (const auto* hashes : {&graph.image_hashes, &graph.staged_hashes}) {
        for (const worker::Sha256& sha : *hashes) {
            if (process_.images.find(sha) == nullptr) {
                missing.push_back(sha);
            }
        }
    }
    return missing;
}

Result<std::vector<worker::Sha256>> PartState::prepare(snapshot::Seed seed,
                                                       std::string_view bytes,
                                                       bool arena_is_shared) {
    memory_.set_arena_is_shared(arena_is_shared);
    process_.memory.share().set_counting(!arena_is_shared);
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
    for (std::size_t i = 0; i < graph.staged.size(); ++i) {
        graph.staged[i].part = process_.images.find(graph.staged_hashes[i]);
    }
    GANTRY_TRY(process_.images.set_staged(graph.staged));
    take_facts(graph.message.device(), &process_.facts);
    process_.guest_pid = graph.message.process().guest_pid();
    process_.sticky_error = static_cast<std::uint32_t>(graph.message.execution().sticky_error());
    if (const CUresult result = process_.event_times.load(graph.event_times);
        result != CUDA_SUCCESS) {
        return driver::to_error(process_.device.api(), result, "state.events",
                                "timing the moment of the take-over");
    }
    channel_ = std::move(graph.channel);
    return missing;
}

Result<std::vector<worker::Sha256>> PartState::apply_final(std::string_view bytes,
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

namespace {

worker::Object named(std::uint64_t handle, std::uint64_t native, std::uint64_t order,
                     std::uint64_t context = 0) {
    worker::Object object;
    object.handle = handle;
    object.native = native;
    object.order = order;
    object.context = context;
    return object;
}

Error bad_handle(std::uint64_t handle) {
    return Error{Code::kInvalidArgument, "snapshot.graph",
                 fmt::format("handle {:#x} is taken or malformed", handle)};
}

std::vector<worker::Link::Option> options_of(
    const google::protobuf::RepeatedPtrField<snapshot::Option>& options) {
    std::vector<worker::Link::Option> out;
    for (const snapshot::Option& option : options) {
        out.push_back({option.option(), 0, option.value()});
    }
    return out;
}

}  // namespace

Result<void> PartState::build_memory(const DecodedGraph& graph) {
    GANTRY_TRY(keep_moved_blocks(graph));
    process_.virtual_memory.begin_restore(graph.mappings, graph.extents);
    GANTRY_TRY(process_.memory.reshape(graph.extents, graph.allocations, graph.reservations));
    if (const CUresult result =
            process_.virtual_memory.end_restore(graph.physicals, graph.mappings);
        result != CUDA_SUCCESS) {
        return driver::to_error(process_.device.api(), result, "state.memory",
                                "mapping the process's own address ranges");
    }
    for (const worker::Object& handle :
         process_.objects.list_kind(HandleKind::kVmmAllocation)) {
        process_.objects.erase(handle.handle);
    }
    for (const snapshot::VmmHandle& handle : graph.message.vmm_handles()) {
        if (handle.handle() != 0 &&
            !process_.objects.insert(
                named(handle.handle(), handle.home_address(), handle.order()))) {
            return bad_handle(handle.handle());
        }
    }
    return build_pools(graph.message);
}

Result<void> PartState::build_pools(const snapshot::ObjectGraph& graph) {
    for (const worker::PoolBook::Pool& pool : process_.pools.pools()) {
        process_.objects.erase(pool.handle);
    }
    process_.pools.clear();
    for (const snapshot::MemoryPool& described : graph.pools()) {
        worker::PoolBook::Pool pool;
        if (cuda::handle_kind(described.handle()) != HandleKind::kMemPool ||
            described.properties().size() != sizeof(pool.properties) ||
            !process_.objects.insert(named(described.handle(), 1, described.order()))) {
            return bad_handle(described.handle());
        }
        pool.handle = described.handle();
        pool.is_default = described.device_default();
        std::memcpy(&pool.properties, described.properties().data(), sizeof(pool.properties));
        pool.attributes = {described.attributes().begin(), described.attributes().end()};
        process_.pools.add(std::move(pool));
        if (described.current()) {
            process_.pools.set_current(described.handle());
        }
    }
    for (const snapshot::Allocation& allocation : graph.allocations()) {
        if (allocation.pool() != 0) {
            process_.pools.allocated(allocation.pool(), allocation.address(),
                                     allocation.size_bytes());
        }
        if (allocation.kind() == snapshot::ALLOCATION_KIND_GRAPH) {
            process_.memory.keep_for_graphs(DeviceVa{allocation.address()},
                                            allocation.graph_live());
        }
    }
    for (const snapshot::MemoryPool& described : graph.pools()) {
        process_.pools.set_high_marks(described.handle(), described.used_high_bytes(),
                                      described.reserved_high_bytes());
    }
    return {};
}

Result<void> PartState::build_links(const snapshot::ObjectGraph& graph) {
    for (const auto& [handle, link] : process_.links.list()) {
        if (const auto object = process_.objects.get(handle)) {
            process_.destroy_object(*object);
        }
    }
    for (const snapshot::Link& described : graph.links()) {
        const auto link = std::make_shared<worker::Link>(
            process_.device, options_of(described.options()), described.info_log_bytes(),
            described.error_log_bytes());
        CUresult result = process_.enter_context(described.context());
        if (result == CUDA_SUCCESS) {
            result = link->create();
        }
        for (const snapshot::LinkInput& input : described.inputs()) {
            const auto* bytes = reinterpret_cast<const std::byte*>(input.data().data());
            worker::Link::Input each;
            each.type = input.type();
            each.name = input.name();
            each.options = options_of(input.options());
            each.image = process_.images.adopt({bytes, bytes + input.data().size()});
            each.bytes = input.data().size();
            if (result == CUDA_SUCCESS) {
                result = link->add(std::move(each));
            }
        }
        if (result == CUDA_SUCCESS && described.completed()) {
            result = link->complete();
        }
        if (result != CUDA_SUCCESS) {
            return driver::to_error(process_.device.api(), result, "state.link",
                                    "making a linker's state again");
        }
        if (cuda::handle_kind(described.handle()) != HandleKind::kLinkState ||
            !process_.objects.insert(named(described.handle(),
                                           reinterpret_cast<std::uint64_t>(link->state()),
                                           described.order(), described.context()))) {
            return bad_handle(described.handle());
        }
        process_.links.add(described.handle(), link);
    }
    return {};
}

Result<void> PartState::build(DecodedGraph& graph, bool is_final) {
    process_.device.bind_thread();
    GANTRY_TRY(build_memory(graph));
    std::map<std::uint64_t, const worker::Object*> wanted;
    for (const worker::Object& object : graph.objects) {
        wanted.emplace(object.handle, &object);
    }
    auto present = process_.objects.list([](const worker::Object&) { return true; });
    for (auto object = present.rbegin(); object != present.rend(); ++object) {
        if (is_described(*object)) {
            continue;
        }
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
    GANTRY_TRY(build_links(graph.message));
    if (is_final || !has_private) {
        GANTRY_TRY(build_graphs(graph.message, false));
    }
    pinned_ = graph.pinned;
    if (is_final || !has_private) {
        late_graphs_.emplace();
        *late_graphs_->mutable_graphs() = graph.message.graphs();
        *late_graphs_->mutable_graph_execs() = graph.message.graph_execs();
    }
    return flush_kept_blocks();
}

void PartState::drop_graph(std::uint64_t handle) {
    if (const auto object = process_.objects.get(handle)) {
        process_.destroy_object(*object);
    }
    built_graphs_.erase(handle);
}

Result<void> PartState::build_graphs(const snapshot::ObjectGraph& graph, bool late) {
    std::map<std::uint64_t, std::string> wanted;
    for (const snapshot::Graph& each : graph.graphs()) {
        wanted[each.handle()] = each.SerializeAsString();
    }
    for (const snapshot::GraphExec& each : graph.graph_execs()) {
        const auto source = wanted.find(each.source_graph());
        // Its nodes lead to those of the graph: both are made in one go.
        wanted[each.handle()] =
            each.SerializeAsString() + (source == wanted.end() ? "" : source->second);
    }
    const auto built = built_graphs_;
    for (const auto& [handle, description] : built) {
        const auto now = wanted.find(handle);
        if (now == wanted.end() || now->second != description) {
            drop_graph(handle);
        }
    }
    GraphWriter writer(process_);
    for (const snapshot::Graph& each : graph.graphs()) {
        if (each.names_pinned_memory() && !late) {
            continue;
        }
        const bool has_exec = std::any_of(
            graph.graph_execs().begin(), graph.graph_execs().end(), [&](const auto& exec) {
                return exec.source_graph() == each.handle() &&
                       !built_graphs_.contains(exec.handle());
            });
        if (built_graphs_.contains(each.handle())) {
            if (!has_exec) {
                continue;
            }
            for (const snapshot::GraphExec& exec : graph.graph_execs()) {
                if (exec.source_graph() == each.handle()) {
                    drop_graph(exec.handle());
                }
            }
            drop_graph(each.handle());
        }
        GANTRY_TRY(writer.make_guest_graph(each));
        built_graphs_[each.handle()] = wanted[each.handle()];
    }
    for (const snapshot::GraphExec& each : graph.graph_execs()) {
        if (!built_graphs_.contains(each.handle()) && (late || !is_late(graph, each))) {
            GANTRY_TRY(writer.make_exec(each));
            built_graphs_[each.handle()] = wanted[each.handle()];
        }
    }
    return {};
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
    std::vector<GantrySoftPlacement> pinned;  // Their bytes come with the guest's memory.
    for (const auto& [name, variable] : loaded->variables) {
        (wire::is_pinned_address(variable.address) ? pinned : places)
            .push_back({name.c_str(), variable.address});
    }
    if (const GantrySoftExtension* extension = process_.device.extension();
        extension != nullptr && !loaded->variables.empty()) {
        extension->place_next_load(places.data(), places.size());
        if (!pinned.empty()) {
            extension->place_next_load_in(pinned.data(), pinned.size(), 0);
        }
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

Result<void> PartState::apply_run(BlockAddress first, std::uint64_t count,
                                  std::span<const std::byte> bytes) {
    GANTRY_ASSIGN(const bool placed, memory_.write_run(first, count, bytes));
    for (std::uint64_t i = 0; i < count; ++i) {
        const BlockAddress block{first.space, first.index + i};
        if (placed) {
            kept_blocks_.erase(block);
        } else {
            GANTRY_TRY(apply_block(block, bytes.subspan(i * kBlockBytes, kBlockBytes)));
        }
    }
    return {};
}

Result<void> PartState::apply_copy(BlockAddress block, BlockAddress origin) {
    const auto kept = kept_blocks_.find(origin);
    if (kept != kept_blocks_.end()) {
        const std::vector<std::byte> bytes = kept->second;
        return apply_block(block, bytes);
    }
    std::vector<std::byte> bytes(kBlockBytes);
    GANTRY_ASSIGN(const bool present, memory_.read({origin.space, origin.index, 1}, bytes));
    if (!present) {
        return Error{Code::kInvalidArgument, "state.block",
                     fmt::format("a block copies block {} of space {}, which is not there",
                                 origin.index, static_cast<std::uint32_t>(origin.space))};
    }
    return apply_block(block, bytes);
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
    const auto is_in = [](std::span<const worker::PinnedRange> ranges,
                          const worker::PinnedRange& range) {
        return std::any_of(ranges.begin(), ranges.end(), [&range](const auto& each) {
            return each.address == range.address && each.bytes == range.bytes &&
                   each.flags == range.flags;
        });
    };
    const std::vector<worker::PinnedRange> present = process_.memory.pinned_ranges();
    for (const worker::PinnedRange& range : present) {
        if (!is_in(pinned_, range)) {
            process_.memory.unregister_pinned(range.address);
        }
    }
    for (const worker::PinnedRange& range : pinned_) {
        if (is_in(present, range)) {
            continue;
        }
        const CUresult result = process_.memory.register_pinned(range);
        if (result != CUDA_SUCCESS) {
            return driver::to_error(process_.device.api(), result, "state.pinned",
                                    fmt::format("page-locking {} bytes at {:#x}", range.bytes,
                                                range.address));
        }
    }
    if (late_graphs_) {
        GANTRY_TRY(build_graphs(*late_graphs_, true));
        late_graphs_.reset();
    }
    return {};
}

}  // namespace gantry::state
