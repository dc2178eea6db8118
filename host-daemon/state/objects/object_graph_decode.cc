// object_graph_codec.h, from a graph, which is hostile, to the worker's own terms.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "host-daemon/state/commands/command_codec.h"
#include "host-daemon/state/cuda_graphs/cuda_graph_content.h"
#include "host-daemon/state/objects/answer_head.h"
#include "host-daemon/state/objects/object_graph_codec.h"
#include "proto/cuda/gen/opcodes.h"
#include "proto/wire/ring.h"

namespace gantry::state {
namespace {

using cuda::HandleKind;
using worker::ArenaAllocator;

Error bad_graph(std::string text) {
    return Error{Code::kInvalidArgument, "snapshot.graph",
                 "the object graph is damaged: " + std::move(text)};
}

bool decode_object(std::uint64_t handle, std::string_view bytes, worker::Object* out) {
    CommandReader reader(bytes);
    std::uint64_t count = 0;
    out->handle = handle;
    if (out->kind() == HandleKind::kInvalid || !reader.get(&out->native) ||
        !reader.get(&out->context) || !reader.get(&out->order) || !reader.get(&out->parent) ||
        !reader.get_command(&out->creation) || !reader.get(&count)) {
        return false;
    }
    for (std::uint64_t i = 0; i < count; ++i) {
        std::uint64_t key = 0;
        worker::RecordedCommand command;
        if (!reader.get(&key) || !reader.get_command(&command)) {
            return false;
        }
        out->configuration.emplace(key, std::move(command));
    }
    return reader.empty() && out->order != 0;
}

// ---- the channel and typed parts ----------------------------------------------------------------

Result<void> decode_answer(const snapshot::Lane& lane, worker::ChannelState* state) {
    if (!lane.has_last_answer()) {
        return {};
    }
    const std::string& payload = lane.last_answer().payload();
    AnswerHead head;
    if (payload.size() < sizeof(head)) {
        return bad_graph("an answer without its head");
    }
    std::memcpy(&head, payload.data(), sizeof(head));
    const std::size_t rest = payload.size() - sizeof(head);
    if (head.payload_bytes > wire::kReplyInlineBytes || head.payload_bytes > rest ||
        (rest != head.payload_bytes && rest - head.payload_bytes != head.bulk_bytes)) {
        return bad_graph("an answer with impossible sizes");
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(payload.data()) + sizeof(head);
    worker::Answer answer;
    answer.position = lane.last_answer().seq();
    answer.lane = lane.lane();
    answer.status = static_cast<std::uint32_t>(lane.last_answer().status());
    answer.flags = head.flags;
    answer.bulk_offset = head.bulk_offset;
    answer.bulk_bytes = head.bulk_bytes;
    answer.payload.assign(bytes, bytes + head.payload_bytes);
    answer.bulk.assign(bytes + head.payload_bytes, bytes + rest);
    state->answers.push_back(std::move(answer));
    return {};
}

Result<void> decode_execution(const snapshot::ObjectGraph& graph, worker::ChannelState* state) {
    const snapshot::ExecutionState& execution = graph.execution();
    state->next_position = execution.next_seq();
    state->confirmed.assign(wire::kLaneCount, 0);
    state->profile = execution.profile();
    state->frozen_unix_ns = execution.frozen_unix_ns();
    for (const snapshot::ParkedCommand& parked : execution.parked()) {
        state->executed_ahead.insert(parked.seq());
    }
    for (const snapshot::Lane& lane : execution.lanes()) {
        if (lane.lane() >= wire::kLaneCount) {
            return bad_graph(fmt::format("lane {}", lane.lane()));
        }
        GANTRY_TRY(decode_answer(lane, state));
        state->async_errors[lane.lane()] = static_cast<std::uint32_t>(lane.last_async_error());
        if (lane.awaited_seq() != 0) {
            state->parked_callback =
                worker::CallbackBroker::Parked{lane.awaited_seq() - 1, lane.lane()};
        }
    }
    if (execution.open_callback_seq() != 0) {
        // Position 0: nothing in the ring waits for it.
        const bool is_loose = execution.open_callback_seq() == 1;
        if ((!is_loose && execution.open_callback_seq() <= execution.next_seq()) ||
            execution.open_callback_id() == 0 || execution.open_callback_id() == ~0ull) {
            return bad_graph("a host callback that cannot be open");
        }
        state->open_callback = worker::CallbackBroker::Open{execution.open_callback_seq() - 1,
                                                            execution.open_callback_id()};
    }
    for (const snapshot::LooseCallback& loose : execution.loose_callbacks()) {
        wire::CallbackReply callback{};
        callback.function = loose.function();
        callback.user_data = loose.argument();
        callback.kind = wire::CallbackKind::kHostFunction;
        state->loose_callbacks.push_back(callback);
    }
    constexpr std::uint64_t kConfirmOffset = offsetof(wire::HostWords, confirm_seq);
    for (const auto& [offset, value] : execution.host_words()) {
        const std::uint64_t lane = (offset - kConfirmOffset) / 8;
        if (offset < kConfirmOffset || lane >= wire::kLaneCount) {
            return bad_graph(fmt::format("host word {}", offset));
        }
        state->confirmed[lane] = value;
    }
    if (static_cast<std::size_t>(execution.pinned_writes_size()) >
        worker::PinnedWrites::kCarriedRangesMax) {
        return bad_graph(fmt::format("{} pinned writes", execution.pinned_writes_size()));
    }
    std::uint64_t pinned_total = 0;
    for (const snapshot::PinnedBytes& written : execution.pinned_writes()) {
        pinned_total += written.content().size();
        if (written.pool_offset() > wire::kArenaBytes ||
            pinned_total > worker::PinnedWrites::kCarriedBytesMax) {
            return bad_graph(fmt::format("{} pinned bytes at {}", written.content().size(),
                                         written.pool_offset()));
        }
        const auto* bytes = reinterpret_cast<const std::byte*>(written.content().data());
        state->pinned.push_back({written.pool_offset(), {bytes, bytes + written.content().size()}});
    }
    if (execution.has_mirror()) {
        const snapshot::MirrorState& mirror = execution.mirror();
        const std::uint64_t next = state->next_position;
        const std::uint64_t wanted =
            mirror.ring_position() > next ? mirror.ring_position() - next : 0;
        if ((mirror.session_low() == 0 && mirror.session_high() == 0) ||
            mirror.ring().size() != wanted || wanted % wire::kRecordAlign != 0) {
            return bad_graph(fmt::format("{} bytes of commands that wait", mirror.ring().size()));
        }
        const auto* ring = reinterpret_cast<const std::byte*>(mirror.ring().data());
        state->mirror = {{mirror.session_low(), mirror.session_high()},
                         mirror.received(),
                         mirror.ring_position(),
                         {ring, ring + mirror.ring().size()},
                         mirror.pinned_high_water()};
    }
    return {};
}

Result<Sha256> decode_sha256(const std::string& bytes) {
    Sha256 sha{};
    if (bytes.size() != sha.size()) {
        return bad_graph("an image name that is no SHA-256");
    }
    std::memcpy(sha.data(), bytes.data(), sha.size());
    return sha;
}

Result<void> decode_staged_images(DecodedGraph* out) {
    std::set<std::uint64_t> listed;
    for (const snapshot::StagedImage& image : out->message.execution().staged_images()) {
        if (!listed.insert(image.image_id()).second) {
            return bad_graph(fmt::format("image {} is on its way twice", image.image_id()));
        }
        GANTRY_ASSIGN(const Sha256 sha, decode_sha256(image.part_sha256()));
        out->staged.push_back({image.image_id(), image.total_bytes(), nullptr});
        out->staged_hashes.push_back(sha);
    }
    return {};
}

Result<void> decode_modules(DecodedGraph* out) {
    for (const snapshot::Module& module : out->message.modules()) {
        worker::LoadedImage image;
        GANTRY_ASSIGN(const Sha256 sha, decode_sha256(module.image_sha256()));
        image.handle = module.handle();
        image.library = module.library();
        image.context = module.context();
        image.load_order = module.load_order();
        for (const snapshot::ModuleInstance& instance : module.instances()) {
            for (const snapshot::Global& global : instance.globals()) {
                image.variables[global.name()] = {
                    global.name(), global.address(), global.size_bytes(),
                    global.kind() == snapshot::GLOBAL_KIND_MANAGED, !global.never_asked()};
            }
        }
        out->images.push_back(std::move(image));
        out->image_hashes.push_back(sha);
    }
    return {};
}

void decode_event_times(DecodedGraph* out) {
    const std::uint64_t clock_ns = out->message.execution().gpu_clock_ns();
    for (const snapshot::Event& event : out->message.events()) {
        if (event.timestamp_ns() != 0) {
            out->event_times.times.push_back(
                {event.handle(), static_cast<std::int64_t>(event.timestamp_ns() - clock_ns)});
        }
    }
    for (const snapshot::ElapsedTime& elapsed : out->message.elapsed_times()) {
        out->event_times.answers.push_back(
            {elapsed.start(), elapsed.end(), elapsed.milliseconds()});
    }
}

/// Extents follow from allocations: small ones share the slab of their granule.
Result<void> decode_memory(DecodedGraph* out) {
    std::set<std::uint64_t> slabs;
    for (const snapshot::Allocation& allocation : out->message.allocations()) {
        const std::uint64_t address = allocation.address();
        const std::uint64_t bytes = allocation.size_bytes();
        if (bytes == 0 || bytes > wire::kArenaBytes || address < wire::kArenaBase ||
            address - wire::kArenaBase > wire::kArenaBytes - bytes) {
            return bad_graph(fmt::format("an allocation of {} bytes at {:#x}", bytes, address));
        }
        out->allocations.push_back({DeviceVa{address}, bytes});
        const std::uint64_t granule = ArenaAllocator::kGranuleBytes;
        if (bytes <= ArenaAllocator::kSmallBytesMax) {
            if (slabs.insert(address / granule * granule).second) {
                out->extents.push_back({DeviceVa{address / granule * granule}, granule, true});
            }
        } else {
            out->extents.push_back(
                {DeviceVa{address}, (bytes + granule - 1) / granule * granule, false});
        }
    }
    for (const snapshot::HostRegistration& pinned : out->message.host_registrations()) {
        out->pinned.push_back({pinned.guest_address(), pinned.size_bytes(), pinned.flags()});
    }
    return {};
}

Result<void> decode_virtual_memory(DecodedGraph* out) {
    for (const snapshot::VmmReservation& reservation : out->message.vmm_reservations()) {
        out->reservations.push_back({DeviceVa{reservation.address()}, reservation.size_bytes()});
    }
    std::map<std::uint64_t, worker::VirtualMemory::Physical> physicals;
    for (const snapshot::VmmHandle& handle : out->message.vmm_handles()) {
        const bool is_memory = std::any_of(
            out->allocations.begin(), out->allocations.end(), [&](const auto& allocation) {
                return allocation.address.value == handle.home_address() &&
                       allocation.bytes == handle.size_bytes();
            });
        worker::VirtualMemory::Physical& physical = physicals[handle.home_address()];
        if (!is_memory || handle.properties().size() != sizeof(physical.properties) ||
            (handle.handle() != 0 &&
             cuda::handle_kind(handle.handle()) != HandleKind::kVmmAllocation)) {
            return bad_graph(fmt::format("physical memory at {:#x}", handle.home_address()));
        }
        physical.home = handle.home_address();
        physical.bytes = handle.size_bytes();
        physical.handles += handle.handle() != 0 ? 1 : 0;
        std::memcpy(&physical.properties, handle.properties().data(), sizeof(physical.properties));
    }
    for (const snapshot::VmmMapping& mapping : out->message.vmm_mappings()) {
        const auto physical = physicals.find(mapping.home_address());
        const bool is_reserved = std::any_of(
            out->reservations.begin(), out->reservations.end(), [&](const auto& reservation) {
                return mapping.address() >= reservation.address.value &&
                       mapping.address() - reservation.address.value < reservation.bytes &&
                       mapping.size_bytes() <=
                           reservation.bytes - (mapping.address() - reservation.address.value);
            });
        if (physical == physicals.end() || !is_reserved || mapping.access_size() != 1 ||
            mapping.size_bytes() > physical->second.bytes) {
            return bad_graph(fmt::format("a mapping at {:#x}", mapping.address()));
        }
        out->mappings.push_back({mapping.address(), mapping.size_bytes(), mapping.home_address(),
                                 mapping.access(0).flags()});
    }
    for (const auto& [home, physical] : physicals) {
        out->physicals.push_back(physical);
    }
    return {};
}

}  // namespace

Result<DecodedGraph> decode(std::string_view bytes) {
    DecodedGraph out;
    if (bytes.size() > (1ull << 31) ||
        !out.message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
        return bad_graph("it does not parse");
    }
    if (out.message.version() == 0 || out.message.version() > kGraphVersion) {
        return Error{Code::kFailedPrecondition, "snapshot.version",
                     fmt::format("the object graph has version {}, this worker reads up to {}; "
                                 "update Gantry on this host",
                                 out.message.version(), kGraphVersion)};
    }
    const std::uint64_t table = out.message.process().shim_abi_hash();
    if (table != 0 && table != cuda::kTableHash) {  // The commands in it mean something else here.
        return Error{Code::kFailedPrecondition, "version.table",
                     fmt::format("the object graph follows version {:016x} of the CUDA API table, "
                                 "this worker serves {:016x}; use the Gantry release that wrote it",
                                 table, cuda::kTableHash)};
    }
    for (const snapshot::OtherObject& other : out.message.other_objects()) {
        if (other.kind() == kPendingOutput) {
            const auto* raw = reinterpret_cast<const std::byte*>(other.data().data());
            out.channel.pending_output.assign(raw, raw + other.data().size());
            continue;
        }
        if (other.kind() != kCommandObject) {
            if (other.optional()) {
                continue;
            }
            return Error{Code::kFailedPrecondition, "snapshot.object",
                         "the object graph holds objects of kind '" + other.kind() +
                             "', which this worker does not know"};
        }
        worker::Object object;
        if (!decode_object(other.handle(), other.data(), &object)) {
            return bad_graph(fmt::format("object {:#x}", other.handle()));
        }
        out.objects.push_back(std::move(object));
    }
    std::sort(out.objects.begin(), out.objects.end(),
              [](const auto& a, const auto& b) { return a.order < b.order; });
    GANTRY_TRY(decode_modules(&out));
    GANTRY_TRY(decode_staged_images(&out));
    GANTRY_TRY(decode_memory(&out));
    GANTRY_TRY(decode_virtual_memory(&out));
    GANTRY_TRY(decode_execution(out.message, &out.channel));
    decode_event_times(&out);
    return out;
}

}  // namespace gantry::state
