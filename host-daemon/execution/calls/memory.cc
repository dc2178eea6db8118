// Device memory from the arena, page-locked memory of the pool, and stream-ordered allocation.
#include "host-daemon/execution/dispatch/handlers.h"

#include <algorithm>

#include "host-daemon/execution/base/log.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

constexpr std::uint64_t kPitchAlignBytes = 512;

}  // namespace

CUresult allocate_memory(Call& call, std::uint64_t bytes, std::uint64_t* address) {
    if (bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    DeviceMemory& memory = call.process().memory.device;
    auto made = memory.allocate(bytes);
    if (!made.ok() && made.error().code == Code::kResourceExhausted) {
        if (memory.has_parked()) {  // Asked once: another thread may reap at any time.
            if (!call.may_wait()) {
                call.defer();
                return CUDA_SUCCESS;
            }
            if (const CUresult idle = call.process().streams.synchronise_device();
                idle != CUDA_SUCCESS) {
                return idle;
            }
            memory.reap(true);
        }
        made = memory.allocate(bytes);
    }
    if (!made.ok()) {
        log_limited("%s", made.error().to_string().c_str());
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = made->value;
    return CUDA_SUCCESS;
}

CUresult charge_memory(Call& call, std::uint64_t bytes) {
    if (call.charge(bytes)) {
        return CUDA_SUCCESS;
    }
    DeviceMemory& memory = call.process().memory.device;
    if (memory.has_parked()) {
        if (!call.may_wait()) {
            call.defer();
            return CUDA_ERROR_NOT_READY;
        }
        if (const CUresult idle = call.process().streams.synchronise_device();
            idle != CUDA_SUCCESS) {
            return idle;
        }
        memory.reap(true);
    }
    memory.drop_spare();
    if (call.charge(bytes)) {
        return CUDA_SUCCESS;
    }
    const char* name = cuda::op_name(call.op());
    log_limited("%s: %llu bytes more would exceed the VM's quota of device memory",
                name != nullptr ? name : "a command", static_cast<unsigned long long>(bytes));
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult on_cuMemAllocPitch_v2(CallContext& context, const wire::cuMemAllocPitch_v2_call& call,
                               std::span<const std::byte>, Reply& reply) {
    wire::cuMemAllocPitch_v2_reply answer{};
    if (call.WidthInBytes == 0 || call.Height == 0 ||
        call.WidthInBytes > gantry::wire::kArenaBytes || call.Height > gantry::wire::kArenaBytes ||
        (call.ElementSizeBytes != 4 && call.ElementSizeBytes != 8 && call.ElementSizeBytes != 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    answer.pPitch = gantry::wire::align_up(call.WidthInBytes, kPitchAlignBytes);
    if (answer.pPitch > gantry::wire::kArenaBytes / call.Height) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUresult result =
        allocate_memory(as_call(context), answer.pPitch * call.Height, &answer.dptr);
    reply.put(answer);
    return result;
}

CUresult on_cuMemFree_v2(CallContext& context, const wire::cuMemFree_v2_call& call,
                         std::span<const std::byte>, Reply&) {
    if (call.dptr == 0) {
        return CUDA_SUCCESS;
    }
    GuestProcess& process = as_call(context).process();
    if (!process.memory.device.free_later(DeviceVa{call.dptr}, std::nullopt)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    process.memory.pools.freed(call.dptr);
    process.schedule_reap();
    return CUDA_SUCCESS;
}

CUresult on_cuMemHostAlloc(CallContext& context, const wire::cuMemHostAlloc_call& call,
                           std::span<const std::byte>, Reply&) {
    return as_call(context).process().memory.device.register_pinned(
        {call.address, call.bytes, call.flags});
}

CUresult on_cuMemFreeHost(CallContext& context, const wire::cuMemFreeHost_call& call,
                          std::span<const std::byte>, Reply&) {
    GuestProcess& process = as_call(context).process();
    process.streams
        .synchronise_device();  // Kernels may still use it; an error is the next call's to tell.
    return process.memory.device.unregister_pinned(call.address);
}

CUresult on_cuMemHostRegister_v2(CallContext& context, const wire::cuMemHostRegister_v2_call& call,
                                 std::span<const std::byte>, Reply&) {
    return as_call(context).process().memory.device.register_pinned(
        {call.p, call.bytesize, call.Flags});
}

CUresult on_cuMemHostUnregister(CallContext& context, const wire::cuMemHostUnregister_call& call,
                                std::span<const std::byte>, Reply&) {
    GuestProcess& process = as_call(context).process();
    process.streams.synchronise_device();
    return process.memory.device.unregister_pinned(call.p);
}

namespace served {

CUresult cuMemAlloc_v2(CallContext& context, CUdeviceptr* address, std::size_t bytes) {
    std::uint64_t made = 0;
    const CUresult result = allocate_memory(as_call(context), bytes, &made);
    *address = made;
    return result;
}

CUresult cuMemGetInfo_v2(CallContext& context, std::size_t* free, std::size_t* total) {
    GuestProcess& process = as_call(context).process();
    *total = process.facts.total_memory_bytes;
    *free = process.memory.device.free_bytes(*total);
    return CUDA_SUCCESS;
}

}  // namespace served

}  // namespace gantry::worker
