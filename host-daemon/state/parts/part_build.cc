// PartTarget: making what a graph describes: memory, pools, links, objects,
// modules and the driver's private state. Objects that are there already, with the same order,
// stay.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "host-daemon/execution/code/placed_ptx.h"
#include "host-daemon/execution/dispatch/run_call.h"
#include "host-daemon/execution/loading/placed_image.h"
#include "host-daemon/state/parts/part_target.h"
#include "proto/base/hex.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::state {
namespace {

using cuda::HandleKind;

bool is_same(const worker::RecordedCommand& a, const worker::RecordedCommand& b) {
    return a.op == b.op && a.context == b.context && a.args == b.args && a.trailing == b.trailing;
}

bool has_command(const worker::Object& object, std::uint64_t key,
                 const worker::RecordedCommand& wanted) {
    const auto entry = object.configuration.find(key);
    return entry != object.configuration.end() && is_same(entry->second, wanted);
}

std::string name_of(const worker::Object& object) {
    const char* op = cuda::op_name(static_cast<cuda::Op>(object.creation.op));
    return fmt::format("{:#x} ({})", object.handle, op != nullptr ? op : "unknown command");
}

const worker::LoadedImage* image_of(const DecodedGraph& graph, std::uint64_t handle, Sha256* sha) {
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

bool can_restore(const worker::Device& device, const snapshot::PrivateBlob& blob) {
    return device.extension() != nullptr && blob.driver() == kSoftDriverState;
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

Result<void> PartTarget::build_memory(const DecodedGraph& graph) {
    GANTRY_TRY(keep_moved_blocks(graph));
    process_.memory.ranges.begin_restore(graph.mappings, graph.extents);
    GANTRY_TRY(
        process_.memory.device.reshape(graph.extents, graph.allocations, graph.reservations));
    if (const CUresult result = process_.memory.ranges.end_restore(graph.physicals, graph.mappings);
        result != CUDA_SUCCESS) {
        return driver::to_error(process_.device.api(), result, "state.memory",
                                "mapping the process's own address ranges");
    }
    for (const worker::Object& handle : process_.objects.list_kind(HandleKind::kVmmAllocation)) {
        process_.objects.erase(handle.handle);
    }
    for (const snapshot::VmmHandle& handle : graph.message.vmm_handles()) {
        if (handle.handle() != 0 && !process_.objects.insert(named(
                                        handle.handle(), handle.home_address(), handle.order()))) {
            return bad_handle(handle.handle());
        }
    }
    return build_pools(graph.message);
}

Result<void> PartTarget::build_pools(const snapshot::ObjectGraph& graph) {
    for (const worker::PoolBook::Pool& pool : process_.memory.pools.pools()) {
        process_.objects.erase(pool.handle);
    }
    process_.memory.pools.clear();
    for (const snapshot::MemoryPool& described : graph.pools()) {
        worker::PoolBook::Pool pool;
        if (cuda::handle_kind(described.handle()) != HandleKind::kMemPool ||
            described.properties().size() != sizeof(pool.properties) ||
            !process_.objects.insert(
                named(described.handle(), described.handle(), described.order()))) {
            return bad_handle(described.handle());
        }
        pool.handle = described.handle();
        pool.is_default = described.device_default();
        std::memcpy(&pool.properties, described.properties().data(), sizeof(pool.properties));
        pool.attributes = {described.attributes().begin(), described.attributes().end()};
        process_.memory.pools.add(std::move(pool));
        if (described.current()) {
            process_.memory.pools.set_current(described.handle());
        }
    }
    for (const snapshot::Allocation& allocation : graph.allocations()) {
        if (allocation.pool() != 0) {
            process_.memory.pools.allocated(allocation.pool(), allocation.address(),
                                            allocation.size_bytes());
        }
        if (allocation.kind() == snapshot::ALLOCATION_KIND_GRAPH) {
            process_.memory.device.keep_for_graphs(DeviceVa{allocation.address()},
                                                   allocation.graph_live());
        }
    }
    for (const snapshot::MemoryPool& described : graph.pools()) {
        process_.memory.pools.set_high_marks(described.handle(), described.used_high_bytes(),
                                             described.reserved_high_bytes());
    }
    return {};
}

Result<void> PartTarget::build_links(const snapshot::ObjectGraph& graph) {
    for (const auto& [handle, link] : process_.code.links.list()) {
        if (const auto object = process_.objects.get(handle)) {
            process_.destroy_object(*object);
        }
    }
    for (const snapshot::Link& described : graph.links()) {
        const auto link =
            std::make_shared<worker::Link>(process_.device, options_of(described.options()),
                                           described.info_log_bytes(), described.error_log_bytes());
        const MutexLock lock(link->mutex);
        CUresult result = process_.contexts.enter(described.context());
        if (result == CUDA_SUCCESS) {
            result = link->create();
        }
        for (const snapshot::LinkInput& input : described.inputs()) {
            const auto* bytes = reinterpret_cast<const std::byte*>(input.data().data());
            worker::Link::Input each;
            each.type = input.type();
            each.name = input.name();
            each.options = options_of(input.options());
            each.image = process_.code.images.adopt({bytes, bytes + input.data().size()});
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
        process_.code.links.add(described.handle(), link);
    }
    return {};
}

Result<void> PartTarget::build(DecodedGraph& graph, bool is_final) {
    process_.device.bind_thread();
    GANTRY_TRY(check_private(graph));
    GANTRY_TRY(build_memory(graph));
    return build_objects(graph, is_final);
}

Result<void> PartTarget::build_objects(DecodedGraph& graph, bool is_final) {
    process_.device.bind_thread();
    process_.graphs.user_objects.shut();  // Until the guest is served.
    wire::DeviceFacts shown = process_.facts;
    take_facts(graph.message.device(), &shown);
    GANTRY_TRY(process_.device.show(shown));
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
        if (match == wanted.end() || match->second->order != object->order ||
            (is_module_root(*object) && lies_elsewhere(graph, *object))) {
            process_.destroy_object(*object);
        }
    }
    const auto& blobs = graph.message.private_blobs();
    const bool has_private =
        std::any_of(blobs.begin(), blobs.end(), [](const auto& blob) { return blob.required(); });
    if (is_final && has_private) {
        GANTRY_TRY(restore_private(graph));
    }
    // What only the final graph settles: modules that use memory which moves until then, and those
    // that the guest ended while the early graph was on its way.
    std::set<std::uint64_t> put_off;
    for (const worker::Object& object : graph.objects) {
        const bool wait =
            !is_final && ((is_module_root(object) && (has_private || !has_image(graph, object))) ||
                          put_off.contains(object.parent));
        if (wait) {
            put_off.insert(object.handle);
        } else {
            GANTRY_TRY(build_object(graph, object));
        }
    }
    for (const snapshot::CooperativeGrid& grid : graph.message.cooperative_grids()) {
        if (process_.objects.contains(grid.function())) {
            process_.code.device_use.restore(grid.function(), grid.kernel(),
                                             {grid.blocks(), grid.threads_per_block(),
                                              grid.shared_bytes(), grid.registers_per_thread()});
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
        *late_graphs_->mutable_user_objects() = graph.message.user_objects();
    }
    return flush_kept_blocks();
}

bool PartTarget::lies_elsewhere(const DecodedGraph& graph, const worker::Object& object) {
    Sha256 sha{};
    const worker::LoadedImage* wanted = image_of(graph, object.handle, &sha);
    const auto loaded = process_.code.modules.get(object.handle);
    if (wanted == nullptr || !loaded) {
        return false;
    }
    return std::any_of(wanted->variables.begin(), wanted->variables.end(),
                       [&](const auto& variable) {
                           const auto known = loaded->variables.find(variable.first);
                           if (!process_.device.can_place()) {
                               // The program has asked since.
                               return known != loaded->variables.end() && variable.second.asked &&
                                      known->second.lies_at != 0;
                           }
                           return known == loaded->variables.end() ||
                                  known->second.address != variable.second.address;
                       });
}

bool PartTarget::has_image(const DecodedGraph& graph, const worker::Object& object) {
    Sha256 sha{};
    return image_of(graph, object.handle, &sha) != nullptr &&
           process_.code.images.find(sha) != nullptr;
}

Result<void> PartTarget::build_object(const DecodedGraph& graph, const worker::Object& object) {
    const auto present = process_.objects.get(object.handle);
    if (!present) {
        CUresult result = CUDA_SUCCESS;
        if (is_module_root(object)) {
            GANTRY_TRY(load_module(graph, object));
        } else {
            result =
                worker::replay(process_, object.creation, worker::Replay::kRestore, object.native);
        }
        if (result != CUDA_SUCCESS) {
            return driver::to_error(process_.device.api(), result, "state.object",
                                    "making object " + name_of(object) + " again");
        }
    }
    std::uint16_t replayed = 0;  // Later commands of its kind are the last word: once more.
    for (const auto& [key, command] : object.configuration) {
        if (present && command.op != replayed && has_command(*present, key, command)) {
            continue;
        }
        replayed = command.op;
        if (const CUresult result = worker::replay(process_, command); result != CUDA_SUCCESS) {
            return driver::to_error(process_.device.api(), result, "state.object",
                                    "configuring object " + name_of(object) + " again");
        }
    }
    process_.objects.restore_record(object.handle, object.order, object.parent,
                                    object.configuration);
    return {};
}

Result<void> PartTarget::load_module(const DecodedGraph& graph, const worker::Object& object) {
    Sha256 sha{};
    const worker::LoadedImage* loaded = image_of(graph, object.handle, &sha);
    cuda::wire_hand::LoadCall load{};
    if (loaded == nullptr || object.creation.args.size() != sizeof(load)) {
        return Error{Code::kInvalidArgument, "snapshot.graph",
                     "object " + name_of(object) + " names no image"};
    }
    std::memcpy(&load, object.creation.args.data(), sizeof(load));
    const worker::ImagePtr image = process_.code.images.find(sha);
    if (image == nullptr || image->bytes.size() != load.image_bytes) {
        return Error{Code::kNotFound, "module.image_missing",
                     "the image of " + name_of(object) + " did not arrive"};
    }
    GANTRY_TRY(process_.code.images.stage(load.image_id, load.image_bytes, 0, image->bytes));
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
    if (const CUresult result =
            worker::replay(process_, object.creation, worker::Replay::kRestore, object.native);
        result != CUDA_SUCCESS) {
        return driver::to_error(
            process_.device.api(), result, "module.load",
            fmt::format("loading image {} of {}", to_hex(sha).substr(0, 16), name_of(object)));
    }
    GANTRY_TRY(check_functions(graph, *loaded));
    return place_variables(*loaded);
}

Result<void> PartTarget::check_functions(const DecodedGraph& graph,
                                         const worker::LoadedImage& wanted) {
    const std::string here = process_.device.function_addresses();
    const std::string& there = graph.message.device().function_addresses();
    const auto loaded = process_.code.modules.get(wanted.handle);
    if (there.empty() || there == here || !loaded) {
        return {};
    }
    const auto units = worker::ptx_units(*loaded, process_.device.compute_capability());
    for (std::size_t i = 0; units.ok() && i < units->size(); ++i) {
        const auto function = worker::stored_function((*units)[i]);
        if (function.ok() && !function->empty()) {
            return Error{Code::kFailedPrecondition, "module.functions.not_movable",
                         fmt::format("the program may have stored the address of device function "
                                     "{}, which means nothing here (there: {}; here: {}): move "
                                     "it to a GPU and driver of the same kind",
                                     *function, there, here)};
        }
    }
    return {};
}

Result<void> PartTarget::place_variables(const worker::LoadedImage& wanted) {
    if (process_.device.can_place()) {
        return {};  // It was told before.
    }
    const auto placed = worker::bring_back_variables(process_, wanted.handle, wanted.variables);
    if (placed.ok()) {
        return placed;
    }
    // Whatever the reason, sent again it would fail again here; but one that depends on what lies
    // where in this worker may not hold in the next.
    const bool depends_on_now = placed.error().reason == "module.globals.not_now";
    return Error{Code::kFailedPrecondition,
                 depends_on_now ? "module.globals.not_now" : "module.globals.not_movable",
                 fmt::format("image {}: {}", wanted.name, placed.error().to_string())};
}

Result<void> PartTarget::check_variables(const DecodedGraph& graph) {
    for (const worker::LoadedImage& wanted : graph.images) {
        if (wanted.variables.empty() || !process_.objects.contains(wanted.handle)) {
            continue;
        }
        process_.code.learn_variables(wanted.handle);
        const auto loaded = process_.code.modules.get(wanted.handle);
        for (const auto& [name, variable] : wanted.variables) {
            const auto address = process_.code.variable_address(wanted.handle, name);
            if (!loaded || !address || *address != variable.address) {
                return Error{Code::kFailedPrecondition, "module.globals.not_movable",
                             fmt::format("variable {} of image {} lies at {:#x} here and must lie "
                                         "at {:#x}, since the program may have stored its address",
                                         name, loaded ? loaded->name : "?", address.value_or(0),
                                         variable.address)};
            }
            const auto known = process_.code.modules.variable(wanted.handle, name);
            worker::ModuleVariable noted = variable;
            noted.lies_at = known ? known->lies_at : 0;
            process_.memory.device.add_outside(wanted.handle, noted.address, noted.bytes,
                                               noted.lies_at);
            process_.code.modules.note_variable(wanted.handle, noted);
        }
    }
    return {};
}

Result<void> PartTarget::check_private(const DecodedGraph& graph) const {
    for (const snapshot::PrivateBlob& blob : graph.message.private_blobs()) {
        if (blob.required() && !can_restore(process_.device, blob)) {
            return Error{Code::kFailedPrecondition, "feature.device_heap.not_movable",
                         "the process uses the device heap, which this host's driver cannot take "
                         "over from '" +
                             blob.driver() + "'"};
        }
    }
    return {};
}

Result<void> PartTarget::restore_private(const DecodedGraph& graph) {
    if (private_restored_) {
        return {};
    }
    const GantrySoftExtension* extension = process_.device.extension();
    for (const snapshot::PrivateBlob& blob : graph.message.private_blobs()) {
        if (!can_restore(process_.device, blob)) {
            continue;  // It does not matter: check_private().
        }
        const CUresult result = extension->restore_private_state(
            process_.device.context(), blob.data().data(), blob.data().size());
        if (result != CUDA_SUCCESS) {
            return driver::to_error(process_.device.api(), result, "state.private",
                                    "restoring the driver's private state");
        }
    }
    private_restored_ = true;
    process_.memory.refresh_private_ranges();
    return {};
}

}  // namespace gantry::state
