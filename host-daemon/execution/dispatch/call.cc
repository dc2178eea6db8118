#include "host-daemon/execution/dispatch/call.h"

#include <utility>

#include "host-daemon/execution/base/log.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/cuda/gen/wire_structs.h"

namespace gantry::worker {
namespace {

/// The bytes of this thread's last answer, for the next one: a round trip allocates nothing.
thread_local std::vector<std::byte> t_spare;

/// Names what a configuring command sets, so that only the newest is kept: the op, and the setting
/// where the table says that the call has one.
std::uint64_t configuration_key(const Recipe& recipe) {
    const std::uint64_t what = cuda::op_facts(recipe.op).key.read(recipe.args);
    return static_cast<std::uint64_t>(recipe.op) << 48 | (what & 0xffffffff);
}

/// The dynamic shared memory that a function was allowed by this command, if it is one.
std::optional<std::int32_t> granted_shared(const Recipe& recipe) {
    const cuda::OpFacts& facts = cuda::op_facts(recipe.op);
    return facts.shared_value.bytes != 0 && facts.shared_attribute.read(recipe.args) ==
                                                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
               ? std::optional(static_cast<std::int32_t>(facts.shared_value.read(recipe.args)))
               : std::nullopt;
}

/// Each of these takes of the device what nobody tells; no bound but that of all objects for
/// others.
bool has_enough(const ObjectTable& objects, HandleKind kind) {
    switch (kind) {
        case HandleKind::kContext:
            return objects.count_kind(kind) >=
                   kMostContexts + objects.contains(cuda::primary_context_handle(0));
        case HandleKind::kStream: return objects.count_kind(kind) >= kMostStreams;
        case HandleKind::kEvent: return objects.count_kind(kind) >= kMostEvents;
        default: return false;
    }
}

}  // namespace

std::shared_ptr<Call> Call::keep() const {
    auto own = std::make_unique<Own>();
    own->command = *command_;
    const std::size_t args = wire::align_up(command_->args.size(), 8);
    own->bytes.resize(args + command_->trailing.size());
    if (!command_->args.empty()) {
        std::memcpy(own->bytes.data(), command_->args.data(), command_->args.size());
    }
    if (!command_->trailing.empty()) {
        std::memcpy(own->bytes.data() + args, command_->trailing.data(), command_->trailing.size());
    }
    const std::span<const std::byte> bytes = own->bytes;
    own->command.args = bytes.first(command_->args.size());
    own->command.trailing = bytes.subspan(args);
    own->command.trailing_is_shared = false;
    auto kept = std::make_shared<Call>(process_, own->command);
    kept->own_ = std::move(own);
    kept->is_replay_ = is_replay_;
    kept->is_restore_ = is_restore_;
    kept->wanted_native_ = wanted_native_;
    kept->device_wait_since_ = device_wait_since_;
    kept->is_kept_ = true;
    return kept;
}

RecordedCommand Call::recorded() const {
    return RecordedCommand{command_->header.op,
                           command_->header.lane,
                           command_->header.context,
                           {command_->args.begin(), command_->args.end()},
                           {command_->trailing.begin(), command_->trailing.end()}};
}

bool Call::charge(std::uint64_t bytes) {
    charge_ = process_.memory.device.share().charge(
        bytes, is_replay_ ? MemoryShare::Beyond::kCounted : MemoryShare::Beyond::kRefused);
    return charge_ != nullptr;
}

CUresult Call::add_object(std::uint64_t handle, std::uint64_t native, std::uint64_t parent) {
    Object object;
    object.handle = handle;
    object.native = native;
    object.context = command_->header.context;
    object.parent = parent;
    if (object.kind() != HandleKind::kGraph && object.kind() != HandleKind::kGraphNode &&
        object.kind() != HandleKind::kGraphExec) {
        object.creation = recorded();
    }
    if (charge_ != nullptr && charge_->bytes() != 0) {
        object.charges.emplace(Object::kOwnMemory, std::exchange(charge_, nullptr));
    }
    return process_.objects.insert(std::move(object)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

std::span<std::byte> Call::offered_bulk(std::uint64_t* offset) {
    *offset = std::uint64_t{command_->header.bulk_page} * wire::kPageBytes;
    if (process_.channel.memory() == nullptr || command_->header.bulk_pages == 0) {
        return {};
    }
    return process_.channel.memory()->bulk(
        *offset, std::uint64_t{command_->header.bulk_pages} * wire::kPageBytes);
}

void Call::wrote_bulk(std::uint64_t offset, std::uint64_t bytes) {
    bulk_offset_ = offset;
    bulk_bytes_ = bytes;
}

std::span<const std::byte> Call::place_payload(AnswerHead* answer) {
    const std::span<const std::byte> fixed =
        fixed_bytes_ <= few_.size() ? std::span<const std::byte>(few_).first(fixed_bytes_) : many_;
    if (trailing_.empty()) {
        return fixed;
    }
    const std::size_t room = wire::align_up(fixed.size(), 8);
    if (room + trailing_.size() <= wire::kReplyInlineBytes) {
        if (fixed_bytes_ <= few_.size()) {
            many_.swap(t_spare);
            many_.assign(fixed.begin(), fixed.end());
        }
        many_.resize(room);
        many_.insert(many_.end(), trailing_.begin(), trailing_.end());
        return many_;
    }
    std::uint64_t offset = 0;
    const auto extent = offered_bulk(&offset);
    if (extent.size() >= trailing_.size()) {
        std::memcpy(extent.data(), trailing_.data(), trailing_.size());
        answer->bulk_offset = offset;
        answer->bulk_bytes = trailing_.size();
    }
    return fixed;
}

void Call::finish(CUresult result) {
    if (answered_ || is_replay_) {
        return;
    }
    answered_ = true;
    process_.errors.note(lane(), result, wants_reply());
    if (!wants_reply()) {
        return;
    }
    AnswerHead answer;
    answer.position = command_->header.position;
    answer.lane = lane();
    answer.status = static_cast<std::uint32_t>(result);
    answer.bulk_offset = bulk_offset_;
    answer.bulk_bytes = bulk_bytes_;
    // While streams are captured the guest asks this behind each call that it posts.
    const bool settles = number() == static_cast<std::uint16_t>(cuda::Op::cuMemGetInfo_v2) &&
                         process_.graphs.captures.any();
    if (result == CUDA_SUCCESS && (settles || has(kTellsOfEarlierErrors))) {
        if (const std::uint32_t late = process_.errors.take(lane()); late != CUDA_SUCCESS) {
            answer.status = late;
        }
    }
    const std::span<const std::byte> payload = place_payload(&answer);
    if (process_.channel.output.pending()) {
        answer.flags |= wire::kReplyOutputPending;
    }
    if (__builtin_expect(device_wait_since_.has_value(), 0)) {
        const auto waited = std::chrono::steady_clock::now() - *device_wait_since_;
        answer.device_wait_ns = std::chrono::duration<float, std::nano>(waited).count();
        process_.channel.profile.launched(process_.account.gpu_ns());
    }
    process_.memory.pinned_writes.before_answer(answer.lane);
    process_.channel.replies.publish(answer, payload);
    if (many_.capacity() != 0) {
        t_spare.swap(many_);
    }
}

CUresult Call::resolve(cuda::HandleKind kind, std::uint64_t handle, std::uint64_t* native) {
    switch (kind) {
        case HandleKind::kStream: {
            CUstream found = nullptr;
            const CUresult result = stream(handle, &found);
            *native = reinterpret_cast<std::uint64_t>(found);
            return result;
        }
        case HandleKind::kTexObject:
        case HandleKind::kSurfObject:
            // The guest has the driver's own value, which kernels are given.
            *native = process_.objects.native(cuda::make_handle(kind, handle), kind);
            return *native == handle && handle != 0 ? CUDA_SUCCESS : cuda::bad_handle(kind);
        case HandleKind::kFunction:
            *native = process_.objects.native(handle, HandleKind::kKernel);
            if (*native != 0) {
                return CUDA_SUCCESS;
            }
            break;
        case HandleKind::kGraphExec: exec_ = handle; break;
        case HandleKind::kGraphNode:
            *native = process_.objects.native(handle, kind);
            if (exec_ != 0) {
                return resolve_exec_node(native);
            }
            return *native != 0 ? CUDA_SUCCESS : cuda::bad_handle(kind);
        case HandleKind::kContext:
            if (handle == cuda::primary_context_handle(0)) {
                *native = reinterpret_cast<std::uint64_t>(process_.device.context());
                return CUDA_SUCCESS;
            }
            break;
        default: break;
    }
    *native = process_.objects.native(handle, kind);
    return *native != 0 ? CUDA_SUCCESS : cuda::bad_handle(kind);
}

/// A node where an exec is meant: the one that the exec was made from.
CUresult Call::resolve_exec_node(std::uint64_t* native) {
    CudaGraphBook& graphs = process_.graphs.book;
    exec_node_ = reinterpret_cast<CUgraphNode>(*native);
    const CUgraphNode node =
        graphs.restored_node != nullptr ? graphs.restored_node : graphs.node_in(exec_, exec_node_);
    *native = reinterpret_cast<std::uint64_t>(node);
    return node != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Call::guest_handle(cuda::HandleKind kind, std::uint64_t native, std::uint64_t* handle) {
    *handle = process_.objects.handle_of(native, kind);
    return *handle != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult Call::device(std::int32_t guest, std::int32_t* native) {
    if (guest > 0) {
        return CUDA_ERROR_INVALID_DEVICE;  // The guest has one.
    }
    *native = guest == 0 ? process_.device.ordinal() : guest;
    return CUDA_SUCCESS;
}

CUresult Call::reserve(cuda::HandleKind kind, std::uint64_t handle) {
    if (cuda::handle_kind(handle) != kind || process_.objects.contains(handle)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!is_replay_ && (process_.objects.is_full() || has_enough(process_.objects, kind))) {
        log_limited(
            "the guest has %zu objects, %zu of them as the one that it asks for: it gets no "
            "more",
            process_.objects.size(), process_.objects.count_kind(kind));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult Call::bind(cuda::HandleKind kind, std::uint64_t handle, std::uint64_t native,
                    const Recipe& recipe) {
    if (cuda::handle_kind(handle) != kind) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return add_object(handle, native, cuda::op_facts(recipe.op).owner.read(recipe.args));
}

CUresult Call::name(cuda::HandleKind kind, std::uint64_t new_handle, std::uint64_t native,
                    const Recipe& recipe, std::uint64_t* handle) {
    *handle = process_.objects.handle_of(native, kind);
    if (*handle != 0) {
        return CUDA_SUCCESS;
    }
    *handle = new_handle;
    const CUresult result = reserve(kind, new_handle);
    return result == CUDA_SUCCESS ? bind(kind, new_handle, native, recipe) : result;
}

void Call::unbind(cuda::HandleKind kind, std::uint64_t handle) {
    if (kind == HandleKind::kTexObject || kind == HandleKind::kSurfObject) {
        handle = cuda::make_handle(kind, handle);
    }
    process_.streams.event_times.forget(handle);
    process_.graphs.book.remove(handle);
    process_.code.links.remove(handle);
    process_.code.modules.remove(handle);
    process_.memory.device.remove_outside(handle);
    if (kind == HandleKind::kGraph) {
        process_.graphs.book.forget_graph(process_.objects.native_as<CUgraph>(handle, kind));
    } else if (kind == HandleKind::kGraphNode) {
        process_.graphs.book.forget_node(process_.objects.native_as<CUgraphNode>(handle, kind));
    }
    process_.objects.erase(handle);
    const bool is_graph = kind == HandleKind::kGraph || kind == HandleKind::kGraphExec;
    if (is_graph && process_.objects.count_kind(HandleKind::kGraph) == 0 &&
        process_.objects.count_kind(HandleKind::kGraphExec) == 0) {
        for (const DeviceVa address : process_.memory.device.free_graph_memory()) {
            process_.memory.pools.freed(address.value);
        }
        process_.schedule_reap();
    }
}

void Call::note_untold(std::uint64_t node, const Recipe& recipe) {
    ObjectTable& objects = process_.objects;
    const auto graph = objects.native_as<CUgraph>(objects.parent_of(node), HandleKind::kGraph);
    cuda::wire::cuGraphKernelNodeSetAttribute_call set{};
    cuda::wire::cuGraphKernelNodeCopyAttributes_call copy{};
    std::optional<CUkernelNodeAttrValue> value;
    if (recipe.op == cuda::Op::cuGraphKernelNodeSetAttribute && recipe.args.size() == sizeof(set)) {
        std::memcpy(&set, recipe.args.data(), sizeof(set));
        if (set.attr == CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING) {
            value.emplace();
            std::memcpy(&*value, &set.value, sizeof(*value));
        }
    } else if (recipe.op == cuda::Op::cuGraphKernelNodeCopyAttributes &&
               recipe.args.size() == sizeof(copy)) {
        std::memcpy(&copy, recipe.args.data(), sizeof(copy));
        value = process_.graphs.book.untold_of(
            objects.native_as<CUgraphNode>(copy.src, HandleKind::kGraphNode));
    }
    if (value) {
        process_.graphs.book.note_untold(
            graph, objects.native_as<CUgraphNode>(node, HandleKind::kGraphNode), *value);
    }
}

void Call::configured(cuda::HandleKind kind, std::uint64_t handle, const Recipe& recipe) {
    if (kind == HandleKind::kGraph || kind == HandleKind::kGraphNode) {
        note_untold(handle, recipe);
        return;  // A snapshot reads all else from the driver.
    }
    if (kind == HandleKind::kGraphExec) {
        process_.graphs.book.changed(handle, exec_node_, recorded());
        return;
    }
    if (kind == HandleKind::kFunction || kind == HandleKind::kKernel ||
        kind == HandleKind::kStream) {
        process_.launches.leave_out(handle);
    }
    if (kind == HandleKind::kContext && handle == 0) {
        handle = command_->header.context;
    }
    if (const auto bytes = granted_shared(recipe);
        bytes && process_.code.device_use.note_dynamic_shared(handle, *bytes)) {
        // The most that was granted is granted again before the present value is set: the guest
        // does not ask a second time (guest-shim/driver/code/kernel.cc). An attribute 0 cannot be
        // set.
        process_.objects.configure(handle, static_cast<std::uint64_t>(recipe.op) << 48, recorded());
    }
    process_.objects.configure(handle, configuration_key(recipe), recorded());
}

CUresult Call::unsupported(cuda::Op op) {
    process_.counters.refused.fetch_add(1, std::memory_order_relaxed);
    const char* name = cuda::op_name(op);
    log_limited("the guest called %s, which this worker does not serve",
                name != nullptr ? name : "an unknown entry point");
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult Call::malformed(cuda::Op op, const char* what) {
    process_.counters.refused.fetch_add(1, std::memory_order_relaxed);
    const char* name = cuda::op_name(op);
    log_limited("a malformed %s of the guest was refused: %s", name != nullptr ? name : "command",
                what);
    return CUDA_ERROR_INVALID_VALUE;
}

void Call::fixed(std::span<const std::byte> bytes) {
    fixed_bytes_ = bytes.size();
    if (fixed_bytes_ <= few_.size()) {
        wire::copy_few(few_.data(), bytes.data(), fixed_bytes_);
        return;
    }
    if (many_.capacity() == 0) {
        many_.swap(t_spare);
    }
    many_.assign(bytes.begin(), bytes.end());
}

void Call::trailing(std::span<const std::byte> bytes) {
    trailing_.insert(trailing_.end(), bytes.begin(), bytes.end());
}

}  // namespace gantry::worker
