// object_graph_codec.h, from a process to its graph.
#include <algorithm>
#include <cstring>
#include <map>

#include "host-daemon/state/commands/command_codec.h"
#include "host-daemon/state/cuda_graphs/cuda_graph_content.h"
#include "host-daemon/state/objects/answer_head.h"
#include "host-daemon/state/objects/object_graph_codec.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::state {
namespace {

using cuda::HandleKind;
using worker::ArenaAllocator;

std::string encode_object(const worker::Object& object) {
    std::string out;
    put(out, object.native);
    put(out, object.context);
    put(out, object.order);
    put(out, object.parent);
    put_command(out, object.creation);
    put(out, static_cast<std::uint64_t>(object.configuration.size()));
    for (const auto& [key, command] : object.configuration) {
        put(out, key);
        put_command(out, command);
    }
    return out;
}

// ---- typed parts --------------------------------------------------------------------------------

template <typename T>
bool arguments_of(const worker::RecordedCommand& command, T* out) {
    if (command.args.size() != sizeof(T)) {
        return false;
    }
    std::memcpy(out, command.args.data(), sizeof(T));
    return true;
}

void add_stream(const worker::Object& object, snapshot::ObjectGraph* graph) {
    snapshot::Stream* stream = graph->add_streams();
    stream->set_handle(object.handle);
    stream->set_context(object.context);
    cuda::wire::cuStreamCreateWithPriority_call with_priority{};
    cuda::wire::cuStreamCreate_call plain{};
    if (arguments_of(object.creation, &with_priority)) {
        static_assert(sizeof(with_priority) == sizeof(plain));
        stream->set_flags(with_priority.flags);
        stream->set_priority(with_priority.priority);
    }
}

void add_event(const worker::Object& object, snapshot::ObjectGraph* graph) {
    snapshot::Event* event = graph->add_events();
    event->set_handle(object.handle);
    event->set_context(object.context);
    cuda::wire::cuEventCreate_call create{};
    if (arguments_of(object.creation, &create)) {
        event->set_flags(create.Flags);
    }
    event->set_completed(true);
}

/// The clock's value at the freeze: times of events are before it.
constexpr std::uint64_t kFreezeClockNs = 1ull << 62;

/// Only once the device is drained.
void add_event_times(worker::GuestProcess& process, snapshot::ObjectGraph* graph) {
    std::vector<worker::EventTimes::Named> events;
    for (const worker::Object& event : process.objects.list_kind(HandleKind::kEvent)) {
        events.push_back({event.handle, reinterpret_cast<CUevent>(event.native)});
    }
    const worker::EventTimes::State state = process.streams.event_times.save(events);
    std::map<std::uint64_t, std::int64_t> times;
    for (const worker::EventTimes::Time& time : state.times) {
        times.emplace(time.event, time.ns);
    }
    for (snapshot::Event& event : *graph->mutable_events()) {
        if (const auto time = times.find(event.handle()); time != times.end()) {
            event.set_recorded(true);
            event.set_timestamp_ns(kFreezeClockNs + static_cast<std::uint64_t>(time->second));
        }
    }
    for (const worker::EventTimes::Answer& answer : state.answers) {
        snapshot::ElapsedTime* out = graph->add_elapsed_times();
        out->set_start(answer.start);
        out->set_end(answer.end);
        out->set_milliseconds(answer.milliseconds);
    }
    graph->mutable_execution()->set_gpu_clock_ns(kFreezeClockNs);
}

void add_objects(worker::GuestProcess& process, snapshot::ObjectGraph* graph) {
    const auto objects = process.objects.list([](const worker::Object&) { return true; });
    for (const worker::Object& object : objects) {
        switch (object.kind()) {
            case HandleKind::kGraph:
            case HandleKind::kGraphNode:
            case HandleKind::kGraphExec:
                continue;  // Described by their contents (cuda_graph_content.h).
            case HandleKind::kVmmAllocation:
            case HandleKind::kMemPool:
            case HandleKind::kLinkState:
                continue;  // add_virtual_memory(), add_pools(), add_links().
            case HandleKind::kContext: {
                snapshot::Context* context = graph->add_contexts();
                context->set_handle(object.handle);
                context->set_primary(object.handle == cuda::primary_context_handle(0));
                break;
            }
            case HandleKind::kStream: add_stream(object, graph); break;
            case HandleKind::kEvent: add_event(object, graph); break;
            default: break;
        }
        snapshot::OtherObject* other = graph->add_other_objects();
        other->set_kind(kCommandObject);
        other->set_handle(object.handle);
        other->set_data(encode_object(object));
        if (object.parent != 0) {
            other->add_depends_on(object.parent);
        }
        graph->add_creation_order(object.handle);
    }
}

snapshot::ImageKind kind_of(cuda::wire_hand::ImageKind kind) {
    switch (kind) {
        case cuda::wire_hand::ImageKind::kElf: return snapshot::IMAGE_KIND_CUBIN;
        case cuda::wire_hand::ImageKind::kPtx: return snapshot::IMAGE_KIND_PTX;
        default: return snapshot::IMAGE_KIND_FATBIN;
    }
}

void add_modules(worker::GuestProcess& process, snapshot::ObjectGraph* graph) {
    std::set<Sha256> listed;
    for (const worker::LoadedImage& loaded : process.code.modules.list()) {
        const auto& sha = loaded.image->sha256;
        if (listed.insert(sha).second) {
            snapshot::Image* image = graph->add_images();
            image->set_sha256(sha.data(), sha.size());
            image->set_size_bytes(loaded.image->bytes.size());
            image->set_kind(kind_of(loaded.parts.front().kind));
            image->set_name(loaded.name);
        }
        snapshot::Module* module = graph->add_modules();
        module->set_handle(loaded.handle);
        module->set_library(loaded.library);
        module->set_context(loaded.context);
        module->set_image_sha256(sha.data(), sha.size());
        module->set_load_order(loaded.load_order);
        for (const auto& option : loaded.jit_options) {
            snapshot::Option* out = module->add_load_options();
            out->set_option(option.option);
            out->set_value(option.value);
        }
        snapshot::ModuleInstance* instance = module->add_instances();
        instance->set_context(loaded.context);
        instance->set_loaded(true);
        for (const auto& [name, variable] : loaded.variables) {
            snapshot::Global* global = instance->add_globals();
            global->set_name(name);
            global->set_address(variable.address);
            global->set_size_bytes(variable.bytes);
            global->set_never_asked(!variable.asked);
            global->set_kind(variable.managed ? snapshot::GLOBAL_KIND_MANAGED
                                              : snapshot::GLOBAL_KIND_DEVICE);
            global->set_placement(process.device.can_place()
                                      ? snapshot::GLOBAL_PLACEMENT_EXTENSION
                                      : snapshot::GLOBAL_PLACEMENT_LOAD_ORDER);
        }
    }
}

void add_memory(worker::GuestProcess& process, snapshot::ObjectGraph* graph) {
    const auto kept = process.memory.device.kept_for_graphs();
    for (const worker::AllocationRecord& record : process.memory.device.allocations()) {
        snapshot::Allocation* allocation = graph->add_allocations();
        allocation->set_address(record.address.value);
        allocation->set_size_bytes(record.bytes);
        const std::uint64_t unit = record.bytes <= ArenaAllocator::kSmallBytesMax
                                       ? ArenaAllocator::kAlignBytes
                                       : ArenaAllocator::kGranuleBytes;
        allocation->set_reserved_bytes((record.bytes + unit - 1) / unit * unit);
        const std::uint64_t pool = process.memory.pools.pool_of(record.address.value);
        const auto of_graph = kept.find(record.address.value);
        allocation->set_pool(pool);
        allocation->set_kind(of_graph != kept.end() ? snapshot::ALLOCATION_KIND_GRAPH
                             : pool != 0            ? snapshot::ALLOCATION_KIND_POOL
                                                    : snapshot::ALLOCATION_KIND_LINEAR);
        allocation->set_graph_live(of_graph != kept.end() && of_graph->second);
    }
    for (const worker::PinnedRange& range : process.memory.device.pinned_ranges()) {
        snapshot::HostRegistration* registration = graph->add_host_registrations();
        registration->set_guest_address(range.address);
        registration->set_size_bytes(range.bytes);
        registration->set_flags(range.flags);
        registration->set_device_address(range.address);
        registration->set_region_offset(range.address - wire::kPinnedBase);
    }
}

void add_virtual_memory(worker::GuestProcess& process, snapshot::ObjectGraph* graph) {
    for (const worker::AllocationRecord& reservation : process.memory.device.reservations()) {
        snapshot::VmmReservation* out = graph->add_vmm_reservations();
        out->set_address(reservation.address.value);
        out->set_size_bytes(reservation.bytes);
    }
    const auto handles = process.objects.list_kind(HandleKind::kVmmAllocation);
    for (const worker::VirtualMemory::Physical& physical : process.memory.ranges.physicals()) {
        auto add = [&](std::uint64_t handle, std::uint64_t order) {
            snapshot::VmmHandle* out = graph->add_vmm_handles();
            out->set_handle(handle);
            out->set_order(order);
            out->set_size_bytes(physical.bytes);
            out->set_home_address(physical.home);
            out->set_released(handle == 0);
            out->set_properties(&physical.properties, sizeof(physical.properties));
        };
        bool named = false;
        for (const worker::Object& handle : handles) {
            if (handle.native == physical.home) {
                add(handle.handle, handle.order);
                named = true;
            }
        }
        if (!named) {
            add(0, 0);
        }
    }
    for (const worker::VirtualMemory::Mapping& mapping : process.memory.ranges.mappings()) {
        snapshot::VmmMapping* out = graph->add_vmm_mappings();
        out->set_address(mapping.address);
        out->set_size_bytes(mapping.bytes);
        out->set_home_address(mapping.home);
        snapshot::AccessRule* access = out->add_access();
        access->set_location_type(CU_MEM_LOCATION_TYPE_DEVICE);
        access->set_flags(mapping.access);
    }
}

void add_pools(worker::GuestProcess& process, snapshot::ObjectGraph* graph) {
    for (const worker::PoolBook::Pool& pool : process.memory.pools.pools()) {
        const auto object = process.objects.get(pool.handle);
        snapshot::MemoryPool* out = graph->add_pools();
        out->set_handle(pool.handle);
        out->set_order(object ? object->order : 0);
        out->set_device_default(pool.is_default);
        out->set_current(pool.handle == process.memory.pools.current());
        out->set_properties(&pool.properties, sizeof(pool.properties));
        out->set_reserved_high_bytes(pool.reserved_high_bytes);
        out->set_used_high_bytes(pool.used_high_bytes);
        for (const auto& [attribute, value] : pool.attributes) {
            (*out->mutable_attributes())[attribute] = value;
        }
    }
}

void put_options(const std::vector<worker::Link::Option>& options,
                 google::protobuf::RepeatedPtrField<snapshot::Option>* out) {
    for (const worker::Link::Option& option : options) {
        snapshot::Option* each = out->Add();
        each->set_option(option.option);
        each->set_value(option.value);
    }
}

void add_links(worker::GuestProcess& process, snapshot::ObjectGraph* graph) {
    for (const auto& [handle, link] : process.code.links.list()) {
        const MutexLock lock(link->mutex);
        const auto object = process.objects.get(handle);
        snapshot::Link* out = graph->add_links();
        out->set_handle(handle);
        out->set_order(object ? object->order : 0);
        out->set_context(object ? object->context : 0);
        out->set_info_log_bytes(link->info_log_bytes());
        out->set_error_log_bytes(link->error_log_bytes());
        out->set_completed(!link->cubin().empty());
        put_options(link->options(), out->mutable_options());
        for (const worker::Link::Input& input : link->inputs()) {
            snapshot::LinkInput* each = out->add_inputs();
            each->set_type(input.type);
            each->set_name(input.name);
            each->set_data(input.image->bytes.data(), input.bytes);
            put_options(input.options, each->mutable_options());
        }
    }
}

void add_facts(worker::GuestProcess& process, snapshot::ObjectGraph* graph) {
    const worker::GuestProgram program = process.channel.program();
    graph->mutable_process()->set_process_name(program.name);
    graph->mutable_process()->set_guest_pid(program.pid);
    graph->mutable_process()->set_shim_abi_hash(cuda::kTableHash);
    const wire::DeviceFacts& facts = process.facts;
    snapshot::DeviceFacts* out = graph->mutable_device();
    out->set_name(facts.name);
    out->set_uuid(facts.uuid, sizeof(facts.uuid));
    out->set_total_memory_bytes(facts.total_memory_bytes);
    out->set_driver_version(static_cast<std::uint32_t>(process.device.library().version()));
    out->set_function_addresses(process.device.function_addresses());
    for (std::uint32_t i = 0; i < wire::kMaxDeviceAttributes; ++i) {
        if (facts.attribute_status[i] == CUDA_SUCCESS) {
            (*out->mutable_attributes())[i] = facts.attributes[i];
        }
    }
    out->set_compute_major(
        static_cast<std::uint32_t>(facts.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR]));
    out->set_compute_minor(
        static_cast<std::uint32_t>(facts.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR]));
    out->set_profile_kind(worker::is_soft_only(facts) ? snapshot::PROFILE_KIND_SOFT_ONLY
                                                      : snapshot::PROFILE_KIND_MOVABLE);
}

void add_cooperative_grids(worker::GuestProcess& process, snapshot::ObjectGraph* graph) {
    const auto is_alive = [&](std::uint64_t handle) { return process.objects.contains(handle); };
    for (const worker::FunctionUse& use : process.code.device_use.list(is_alive)) {
        for (const worker::CooperativeGrid& grid : use.grids) {
            snapshot::CooperativeGrid* out = graph->add_cooperative_grids();
            out->set_function(use.function);
            out->set_kernel(use.kernel);
            out->set_blocks(grid.blocks);
            out->set_threads_per_block(grid.threads_per_block);
            out->set_shared_bytes(grid.shared_bytes);
            out->set_registers_per_thread(grid.registers_per_thread);
        }
    }
}

/// State behind the driver's extension, if it has any for this process.
void add_private(worker::GuestProcess& process, snapshot::ObjectGraph* graph) {
    const GantrySoftExtension* extension = process.device.extension();
    std::size_t bytes = 0;
    if (extension == nullptr ||
        extension->save_private_state(process.device.context(), nullptr, &bytes) != CUDA_SUCCESS ||
        bytes == 0) {
        return;
    }
    std::string data(bytes, '\0');
    if (extension->save_private_state(process.device.context(), data.data(), &bytes) !=
        CUDA_SUCCESS) {
        return;
    }
    data.resize(bytes);
    snapshot::PrivateBlob* blob = graph->add_private_blobs();
    blob->set_driver(kSoftDriverState);
    blob->set_name("context");
    blob->set_version(extension->version);
    blob->set_data(std::move(data));
    blob->set_context(cuda::primary_context_handle(0));
    std::size_t ranges = 0;
    extension->list_private_ranges(process.device.context(), nullptr, &ranges);
    blob->set_required(ranges != 0);
}

// ---- the channel --------------------------------------------------------------------------------

void add_execution(worker::GuestProcess& process, const worker::ChannelState& state,
                   snapshot::ObjectGraph* graph) {
    snapshot::ExecutionState* out = graph->mutable_execution();
    out->set_next_seq(state.next_position);
    out->set_ring_generation(state.next_position >> wire::kGenerationShift);
    out->set_sticky_error(static_cast<std::int32_t>(process.errors.sticky()));
    for (const std::uint64_t position : state.executed_ahead) {
        snapshot::ParkedCommand* parked = out->add_parked();
        parked->set_seq(position);
        parked->set_stage(snapshot::PARKED_STAGE_WAITING);
    }
    std::map<std::uint32_t, snapshot::Lane*> lanes;
    auto lane_of = [&](std::uint32_t number) {
        snapshot::Lane*& lane = lanes[number];
        if (lane == nullptr) {
            lane = out->add_lanes();
            lane->set_lane(number);
        }
        return lane;
    };
    for (const worker::Answer& answer : state.answers) {
        snapshot::Lane* lane = lane_of(answer.lane);
        lane->set_answered_seq(answer.position);
        lane->mutable_last_answer()->set_seq(answer.position);
        lane->mutable_last_answer()->set_status(static_cast<std::int32_t>(answer.status));
        const AnswerHead head{answer.flags, static_cast<std::uint32_t>(answer.payload.size()),
                              answer.bulk_offset, answer.bulk_bytes};
        std::string payload;
        put(payload, head);
        payload.append(reinterpret_cast<const char*>(answer.payload.data()), answer.payload.size());
        payload.append(reinterpret_cast<const char*>(answer.bulk.data()), answer.bulk.size());
        lane->mutable_last_answer()->set_payload(std::move(payload));
    }
    for (std::uint32_t number = 0; number < wire::kLaneCount; ++number) {
        if (state.async_errors[number] != 0) {
            lane_of(number)->set_last_async_error(
                static_cast<std::int32_t>(state.async_errors[number]));
        }
        if (state.confirmed[number] != 0) {
            (*out->mutable_host_words())[offsetof(wire::HostWords, confirm_seq) + number * 8] =
                state.confirmed[number];
        }
    }
    if (state.parked_callback) {
        lane_of(state.parked_callback->lane)->set_awaited_seq(state.parked_callback->position + 1);
    }
    if (state.open_callback) {
        out->set_open_callback_seq(state.open_callback->position + 1);
        out->set_open_callback_id(state.open_callback->ticket);
    }
    for (const wire::CallbackReply& callback : state.loose_callbacks) {
        snapshot::LooseCallback* loose = out->add_loose_callbacks();
        loose->set_function(callback.function);
        loose->set_argument(callback.user_data);
    }
    for (const worker::PinnedBytes& pinned : state.pinned) {
        snapshot::PinnedBytes* written = out->add_pinned_writes();
        written->set_pool_offset(pinned.offset);
        written->set_content(pinned.bytes.data(), pinned.bytes.size());
    }
    out->set_profile(state.profile);
    out->set_frozen_unix_ns(state.frozen_unix_ns);
    if (!state.pending_output.empty()) {
        snapshot::OtherObject* output = graph->add_other_objects();
        output->set_kind(kPendingOutput);
        output->set_optional(true);
        output->set_data(state.pending_output.data(), state.pending_output.size());
    }
    if (state.mirror) {
        snapshot::MirrorState* mirror = out->mutable_mirror();
        mirror->set_session_low(state.mirror->session[0]);
        mirror->set_session_high(state.mirror->session[1]);
        mirror->set_received(state.mirror->received);
        mirror->set_ring_position(state.mirror->ring_position);
        mirror->set_ring(state.mirror->ring.data(), state.mirror->ring.size());
        mirror->set_pinned_high_water(state.mirror->pinned_high_water);
        graph->set_version(kGraphVersionMirror);
    }
}

void add_staged_images(worker::GuestProcess& process, snapshot::ObjectGraph* graph) {
    for (const worker::StagedImage& image : process.code.images.staged()) {
        snapshot::StagedImage* out = graph->mutable_execution()->add_staged_images();
        out->set_image_id(image.image_id);
        out->set_total_bytes(image.total_bytes);
        out->set_part_sha256(image.part->sha256.data(), image.part->sha256.size());
        graph->set_version(std::max(graph->version(), kGraphVersionStagedImages));
    }
}

}  // namespace

Result<snapshot::ObjectGraph> encode(worker::GuestProcess& process, std::uint64_t part_id,
                                     const worker::ChannelState* channel) {
    snapshot::ObjectGraph graph;
    graph.set_version(process.graphs.book.knows_memory() ? kGraphVersionMemoryNodes : 1);
    graph.set_part_id(part_id);
    add_facts(process, &graph);
    if (process.is_broken()) {  // Its channel and its error are all there is
                                // (execution/process/error_ledger.h).
        if (channel != nullptr) {
            add_execution(process, *channel, &graph);
        }
        graph.set_version(kGraphVersion);
        return graph;
    }
    add_objects(process, &graph);
    add_modules(process, &graph);
    add_memory(process, &graph);
    add_virtual_memory(process, &graph);
    add_pools(process, &graph);
    add_links(process, &graph);
    for (const auto& held : process.graphs.user_objects.of_guest()) {
        snapshot::UserObject* object = graph.add_user_objects();
        object->set_handle(held.handle);
        object->set_count(held.count);
    }
    add_cooperative_grids(process, &graph);
    add_private(process, &graph);
    GANTRY_TRY(CudaGraphReader(process).read_all(&graph));
    if (channel != nullptr) {
        add_event_times(process, &graph);
        add_execution(process, *channel, &graph);
        add_staged_images(process, &graph);
    }
    return graph;
}

}  // namespace gantry::state
