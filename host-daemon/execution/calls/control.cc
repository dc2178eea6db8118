// Gantry's own commands (proto/wire/control_ops.h).
#include "host-daemon/execution/dispatch/handlers.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "host-daemon/execution/base/log.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/wire/control_ops.h"

namespace gantry::worker {
namespace {

using gantry::wire::ControlOp;

constexpr std::uint64_t kInlineReadBytesMax = 1ull << 20;
constexpr std::uint64_t kRegisteredReadBytesMin = 64ull << 10;

CUresult refuse(Call& call, const char* what) { return call.malformed(call.op(), what); }

CUresult hello(Call& call) {
    gantry::wire::HelloCall hello{};
    if (call.args().size() < offsetof(gantry::wire::HelloCall, program)) {
        return refuse(call, "size of the arguments");
    }
    // Another version's, which shall hear of that, may be shorter or longer behind these.
    std::memcpy(&hello, call.args().data(), std::min(call.args().size(), sizeof(hello)));
    gantry::wire::HelloReply reply{};
    reply.wire_version = gantry::wire::kWireVersion;
    reply.driver_version = static_cast<std::uint32_t>(call.process().device.library().version());
    reply.table_hash = cuda::kTableHash;
    reply.device_count = 1;
    call.put(reply);
    if (hello.wire_version != gantry::wire::kWireVersion || hello.table_hash != cuda::kTableHash) {
        log_line(
            "the guest's libcuda.so.1 speaks wire version %u with API table %016llx, this "
            "worker version %u with %016llx; install the same Gantry version on both sides",
            hello.wire_version, static_cast<unsigned long long>(hello.table_hash),
            gantry::wire::kWireVersion, static_cast<unsigned long long>(cuda::kTableHash));
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    }
    call.process().channel.set_program(
        {hello.guest_pid, {hello.program, strnlen(hello.program, sizeof(hello.program))}});
    return CUDA_SUCCESS;
}

/// Writes `bytes` into an extent of the bulk area that the guest named.
CUresult to_bulk(Call& call, std::uint64_t offset, std::uint64_t room,
                 std::span<const std::byte> bytes) {
    const auto extent = call.process().channel.memory()->bulk(offset, room);
    if (extent.size() < bytes.size()) {
        return refuse(call, "an extent outside the bulk area, or too small");
    }
    std::memcpy(extent.data(), bytes.data(), bytes.size());
    call.wrote_bulk(offset, bytes.size());
    return CUDA_SUCCESS;
}

CUresult device_facts(Call& call) {
    const auto query = call.arguments<gantry::wire::DeviceFactsCall>();
    if (!query) {
        return refuse(call, "size of the arguments");
    }
    if (query->device != 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    return to_bulk(call, query->bulk_offset, query->bulk_bytes,
                   std::as_bytes(std::span(&call.process().facts, 1)));
}

CUresult confirm(Call& call) {
    call.process().memory.pinned_writes.confirmed(call.lane());
    call.process().channel.replies.confirm(call.lane(), call.header().position);
    call.leave_unanswered();
    return CUDA_SUCCESS;
}

CUresult stage_image(Call& call) {
    const auto stage = call.arguments<gantry::wire::StageImageCall>();
    if (!stage) {
        return refuse(call, "size of the arguments");
    }
    const auto staged = call.process().code.images.stage(stage->image_id, stage->total_bytes,
                                                         stage->offset, call.trailing_bytes());
    if (!staged.ok()) {
        log_limited("%s", staged.error().to_string().c_str());
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult drop_image(Call& call) {
    const auto stage = call.arguments<gantry::wire::StageImageCall>();
    if (!stage) {
        return refuse(call, "size of the arguments");
    }
    call.process().code.images.drop(stage->image_id);
    return CUDA_SUCCESS;
}

CUresult write_device(Call& call) {
    const auto write = call.arguments<gantry::wire::WriteDeviceCall>();
    const auto bytes = call.trailing_bytes();
    if (!write || write->bytes != bytes.size()) {
        return refuse(call, "size of the bytes to write");
    }
    if (bytes.empty()) {
        return CUDA_SUCCESS;
    }
    CUstream stream = nullptr;
    if (const CUresult result = call.stream(write->stream, &stream); result != CUDA_SUCCESS) {
        return result;
    }
    return write_staged(call, write->device_address, bytes, stream);
}

CUresult read_device(Call& call) {
    const auto read = call.arguments<gantry::wire::ReadDeviceCall>();
    if (!read) {
        return refuse(call, "size of the arguments");
    }
    const auto extent = call.process().channel.memory()->bulk(read->bulk_offset, read->bytes);
    if (read->bytes == 0 || extent.size() != read->bytes) {
        return refuse(call, "an extent outside the bulk area");
    }
    CUstream stream = nullptr;
    CUresult result = call.stream(read->stream, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const bool is_locked = (read->bytes >= kRegisteredReadBytesMin ||
                            call.process().bulk_pages.is_frequent_reader()) &&
                           call.process().bulk_pages.lock();
    const driver::DriverApi& api = call.api();
    if (stream == nullptr && (!is_locked || call.process().graphs.captures.any())) {
        result = api.cuMemcpyDtoH_v2(extent.data(), read->device_address, read->bytes);
    } else {
        result = api.cuMemcpyDtoHAsync_v2(extent.data(), read->device_address, read->bytes, stream);
        if (result == CUDA_SUCCESS) {
            const auto busy = is_locked ? std::optional(BusyStream{stream}) : std::nullopt;
            result = call.process().streams.synchronise(stream, busy);
        }
    }
    if (result == CUDA_SUCCESS) {
        call.wrote_bulk(read->bulk_offset, read->bytes);
    }
    return result;
}

CUresult wait_callback(Call& call) {
    call.leave_unanswered();
    if (call.wants_reply()) {
        call.process().channel.callbacks.wait({call.header().position, call.lane()});
    }
    return CUDA_SUCCESS;
}

CUresult callback_done(Call& call) {
    const auto done = call.arguments<gantry::wire::CallbackDoneCall>();
    if (!done) {
        return refuse(call, "size of the arguments");
    }
    return call.process().callback_done(done->callback_id)
               ? CUDA_SUCCESS
               : refuse(call, "a callback that the guest does not have");
}

CUresult drain_output(Call& call) {
    const auto drain = call.arguments<gantry::wire::DrainOutputCall>();
    if (!drain) {
        return refuse(call, "size of the arguments");
    }
    const auto extent =
        call.process().channel.memory()->bulk(drain->bulk_offset, drain->bulk_bytes);
    if (extent.empty()) {
        return refuse(call, "an extent outside the bulk area");
    }
    call.process().channel.output.collect();
    call.wrote_bulk(drain->bulk_offset, call.process().channel.output.take(extent));
    return CUDA_SUCCESS;
}

CUresult look_at_event(Call& call) {
    const auto look = call.arguments<gantry::wire::LookAtEventCall>();
    if (!look) {
        return refuse(call, "size of the arguments");
    }
    const auto native = call.process().objects.native_as<CUevent>(look->event, HandleKind::kEvent);
    return call.process().channel.event_board.look_at(look->event, look->recorded, native,
                                                      call.header().position);
}

/// The driver's word on an address that the guest does not know. Memory may go on in the next
/// mapping. Only memory of the device: the worker's own is nobody
/// else's.
CUresult find_memory(Call& call) {
    constexpr int kMostMappings = 1 << 16;
    const auto find = call.arguments<gantry::wire::FindMemoryCall>();
    const driver::DriverApi& api = call.api();
    if (!find) {
        return refuse(call, "size of the arguments");
    }
    if (find->bytes == 0 || find->bytes > ~find->address) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (api.cuMemGetAddressRange_v2 == nullptr || api.cuPointerGetAttribute == nullptr) {
        return call.unsupported(call.op());
    }
    const std::uint64_t end = find->address + find->bytes;
    std::uint64_t at = find->address;
    for (int i = 0; at < end && i < kMostMappings; ++i) {
        unsigned type = 0;
        CUdeviceptr base = 0;
        std::size_t bytes = 0;
        if (api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) !=
                CUDA_SUCCESS ||
            type != CU_MEMORYTYPE_DEVICE ||
            api.cuMemGetAddressRange_v2(&base, &bytes, at) != CUDA_SUCCESS || base + bytes <= at) {
            break;
        }
        at = base + bytes;
    }
    return at >= end ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult goodbye(Call& call) {
    if (call.process().channel.on_goodbye) {
        call.process().channel.on_goodbye();
    }
    return CUDA_SUCCESS;
}

/// Commands beside those marked in the table that take long or wait inside the driver.
constexpr std::uint64_t kLegacyStreams = 1;  // Handles 0 and 1.

/// Whether the legacy stream's end takes that of blocking streams is for the driver to say, unless
/// they are idle.
bool is_legacy_alone(GuestProcess& process) {
    return process.streams.may_query() &&
           process.streams.query_all(GuestStreams::Which::kAllButLegacy).result == CUDA_SUCCESS;
}

CUresult profile(Call& call) {
    call.process().channel.profile.take(call.args(), call.trailing_bytes());
    return CUDA_SUCCESS;
}

/// Also notes the stream as awaited, where its end is all there is to wait for.
CUresult query_stream(Call& call, std::uint64_t handle) {
    GuestProcess& process = call.process();
    CUstream stream = nullptr;
    CUresult result = call.stream(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = process.streams.query(stream);
    }
    if (result == CUDA_ERROR_NOT_READY && (stream != nullptr || is_legacy_alone(process))) {
        call.set_awaited(stream);
    }
    return result;
}

CUresult query_event(Call& call, std::uint64_t handle) {
    const auto event = call.process().objects.native_as<CUevent>(handle, HandleKind::kEvent);
    return event != nullptr ? call.api().cuEventQuery(event) : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

Handler find_handler(std::uint16_t number) {
    static constexpr Handler kHandlers[] = {
        nullptr,       nullptr,      hello,        device_facts,  confirm,
        stage_image,   drop_image,   write_device, read_device,   wait_callback,
        callback_done, drain_output, goodbye,      look_at_event, write_from_bulk,
        read_to_bulk,  look_at_bulk, find_memory,  profile};
    return number < std::size(kHandlers) ? kHandlers[number] : nullptr;
}

bool is_pollable(const Call& call) {
    if (call.number() == static_cast<std::uint16_t>(ControlOp::kReadDevice)) {
        const auto read = call.arguments<gantry::wire::ReadDeviceCall>();
        return !read || read->bytes <= kInlineReadBytesMax;
    }
    switch (cuda::op_facts(call.op()).waits_for) {
        case cuda::OpWait::kStream:
        case cuda::OpWait::kEvent: return true;
        case cuda::OpWait::kContext: return call.process().streams.may_query();
        case cuda::OpWait::kNothing: return false;
    }
    return false;
}

bool may_wait_here(const Call& call) {
    return is_pollable(call) || cuda::op_facts(call.op()).waits_for == cuda::OpWait::kContext;
}

bool look_at_wait(Call& call) {
    if (!is_pollable(call)) {
        return false;
    }
    GuestProcess& process = call.process();
    CUresult result = process.contexts.enter(call.header().context);
    if (result != CUDA_SUCCESS) {
        return true;
    }
    if (call.number() == static_cast<std::uint16_t>(ControlOp::kReadDevice)) {
        const auto read = call.arguments<gantry::wire::ReadDeviceCall>();
        return !read || query_stream(call, read->stream) != CUDA_ERROR_NOT_READY;
    }
    const cuda::OpFacts& facts = cuda::op_facts(call.op());
    const std::uint64_t waited = facts.waited.read(call.args());
    switch (facts.waits_for) {
        case cuda::OpWait::kStream:
            result = query_stream(call, waited);
            if (result == CUDA_SUCCESS && waited <= kLegacyStreams && !is_legacy_alone(process)) {
                return true;
            }
            break;
        case cuda::OpWait::kEvent:
            result = query_event(call, waited);
            if (result == CUDA_ERROR_CAPTURED_EVENT) {  // The capture is lost, the event's too.
                call.saw_failure(result);
            }
            break;
        case cuda::OpWait::kContext: {
            const auto seen = process.streams.query_all();
            if (facts.waited.bytes != 0) {  // The context that it names is still to be checked.
                return seen.result != CUDA_ERROR_NOT_READY;
            }
            result = seen.result;
            if (result == CUDA_ERROR_NOT_READY && seen.busy) {
                call.set_awaited(*seen.busy);
            }
            break;
        }
        case cuda::OpWait::kNothing: return false;
    }
    if (result == CUDA_SUCCESS && process.streams.may_skip_waits()) {
        call.saw_end();
    }
    return result != CUDA_ERROR_NOT_READY;
}

}  // namespace gantry::worker
