// Contexts. The primary context exists as long as the worker does; the guest's retain and release
// only decide which objects live in it. What memory is a context's the guest knows, and frees it
// before it ends the context.
#include "host-daemon/execution/dispatch/handlers.h"
#include "host-daemon/execution/dispatch/run_call.h"

#include <cstring>
#include <map>

#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/memory/charged_bytes.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

/// Libraries belong to the process, not to a context, and so do their kernels.
bool is_of_library(GuestProcess& process, std::uint64_t handle) {
    return cuda::handle_kind(process.objects.root_of(handle)) == HandleKind::kLibrary;
}

/// Ends every object of a context, in the reverse order of their making.
void end_objects(Call& call, std::uint64_t context) {
    GuestProcess& process = call.process();
    process.streams.synchronise_device();
    process.memory.device.reap(true);
    const auto objects = process.objects.list([context](const Object& object) {
        return object.context == context && object.kind() != HandleKind::kContext;
    });
    for (auto object = objects.rbegin(); object != objects.rend(); ++object) {
        if (!is_of_library(process, object->handle)) {
            process.destroy_object(*object);
        }
    }
}

CUresult make_again(GuestProcess& process, const Object& object) {
    CUresult result = replay(process, object.creation, Replay::kReset);
    for (const auto& [key, command] : object.configuration) {
        result = result == CUDA_SUCCESS ? replay(process, command) : result;
    }
    if (result != CUDA_SUCCESS) {
        log_line("object %llx of a library cannot be made again after a context's end: %d",
                 static_cast<unsigned long long>(object.handle), static_cast<int>(result));
        return result;
    }
    process.objects.restore_record(object.handle, object.order, object.parent,
                                   object.configuration);
    return CUDA_SUCCESS;
}

/// Variables of libraries are what they were at first again. Without any a library stays as it is.
CUresult reset_libraries(GuestProcess& process) {
    std::map<std::uint64_t, ImagePtr> images;
    for (const LoadedImage& loaded : process.code.modules.list()) {
        if (loaded.library && !loaded.variables.empty()) {
            images.emplace(loaded.handle, loaded.image);
        }
    }
    std::vector<Object> again = process.objects.list([](const Object&) { return true; });
    std::erase_if(again, [&](const Object& object) {
        return !images.contains(process.objects.root_of(object.handle));
    });
    for (const Object& object : again) {
        if (object.kind() == HandleKind::kLibrary) {
            process.destroy_object(object);  // Its kernels with it.
        }
    }
    CUresult worst = CUDA_SUCCESS;
    for (const Object& object : again) {
        cuda::wire_hand::LoadCall load{};
        if (object.kind() == HandleKind::kLibrary && object.creation.args.size() == sizeof(load)) {
            std::memcpy(&load, object.creation.args.data(), sizeof(load));
            (void)process.code.images.stage(load.image_id, load.image_bytes, 0,
                                            images[object.handle]->bytes);
        }
        const CUresult result = make_again(process, object);
        worst = worst == CUDA_SUCCESS ? result : worst;
    }
    return worst;
}

void reset_limits(Call& call) {
    const driver::DriverApi& api = call.api();
    const gantry::wire::DeviceFacts& facts = call.process().facts;
    if (api.cuCtxGetLimit == nullptr || call.process().contexts.enter(0) != CUDA_SUCCESS) {
        return;
    }
    for (std::uint32_t i = 0; i < gantry::wire::kMaxLimits; ++i) {
        const auto limit = static_cast<CUlimit>(i);
        std::size_t now = 0;
        if (facts.limit_status[i] == CUDA_SUCCESS &&
            api.cuCtxGetLimit(&now, limit) == CUDA_SUCCESS && now != facts.limits[i]) {
            api.cuCtxSetLimit(limit, facts.limits[i]);
        }
    }
}

CUresult end_primary(Call& call, const cuda::wire_hand::ContextEndCall& end) {
    GuestProcess& process = call.process();
    if (end.device != 0 || end.context != cuda::primary_context_handle(0)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (process.errors.sticky() != 0) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    end_objects(call, end.context);
    if (process.objects.count_kind(HandleKind::kContext) == 1) {
        // Also what belongs to the device: mappings, pools' memory, other processes' memory.
        process.memory.ranges.clear();
        process.shares.memory.close_all();
        process.memory.device.free_everything();
    }
    reset_limits(call);
    const CUresult result = reset_libraries(process);
    process.objects.erase(end.context);
    return result;
}

/// What libraries gave for a context that has ended is given for the primary one from now on.
CUresult move_to_primary(GuestProcess& process, std::vector<Object> twins) {
    CUresult worst = CUDA_SUCCESS;
    for (Object& twin : twins) {
        process.objects.erase(twin.handle);
        twin.creation.context = cuda::primary_context_handle(0);
        const CUresult result = make_again(process, twin);
        worst = worst == CUDA_SUCCESS ? result : worst;
    }
    return worst;
}

}  // namespace

CUresult on_cuDevicePrimaryCtxRetain(CallContext& context,
                                     const wire::cuDevicePrimaryCtxRetain_call& retain,
                                     std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    if (retain.device != 0 || retain.context != cuda::primary_context_handle(0)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (!call.process().objects.contains(retain.context)) {
        return call.add_object(retain.context,
                               reinterpret_cast<std::uint64_t>(call.process().device.context()));
    }
    return CUDA_SUCCESS;
}

CUresult on_cuDevicePrimaryCtxSetFlags_v2(CallContext& context,
                                          const wire::cuDevicePrimaryCtxSetFlags_v2_call& set,
                                          std::span<const std::byte> trailing, Reply&) {
    // How a thread of the application waits is the shim's business; the choice is kept for a move.
    as_call(context).configured(HandleKind::kContext, set.context,
                                Recipe{cuda::Op::cuDevicePrimaryCtxSetFlags_v2,
                                       std::as_bytes(std::span(&set, 1)), trailing});
    return CUDA_SUCCESS;
}

CUresult on_cuDevicePrimaryCtxRelease_v2(CallContext& context,
                                         const wire::cuDevicePrimaryCtxRelease_v2_call& end,
                                         std::span<const std::byte>, Reply&) {
    return end_primary(as_call(context), end);
}

CUresult on_cuDevicePrimaryCtxReset_v2(CallContext& context,
                                       const wire::cuDevicePrimaryCtxReset_v2_call& end,
                                       std::span<const std::byte>, Reply&) {
    return end_primary(as_call(context), end);
}

CUresult on_cuCtxCreate_v2(CallContext& context, const wire::cuCtxCreate_v2_call& create,
                           std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    if (create.device != 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (call.api().cuCtxCreate_v2 == nullptr || call.api().cuCtxPopCurrent_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    if (const CUresult result = call.reserve(HandleKind::kContext, create.context);
        result != CUDA_SUCCESS) {
        return result;
    }
    GuestProcess& process = call.process();
    const std::uint64_t figure = process.device.context_bytes();
    if (const CUresult charged = charge_memory(call, figure); charged != CUDA_SUCCESS) {
        return charged;
    }
    const bool is_figure_exact = process.device.extension() != nullptr;
    const auto free_before = is_figure_exact ? std::nullopt : process.device.memory_free_bytes();
    CUcontext native = nullptr;
    if (const CUresult result =
            call.api().cuCtxCreate_v2(&native, create.flags, call.process().device.ordinal());
        result != CUDA_SUCCESS) {
        return result;
    }
    CUcontext popped = nullptr;
    call.api().cuCtxPopCurrent_v2(&popped);  // The guest's stack decides what is current.
    const CUresult added = call.add_object(create.context, reinterpret_cast<std::uint64_t>(native));
    if (!is_figure_exact) {
        process.objects.set_charge(
            create.context, Object::kOwnMemory,
            context_bytes_seen(figure, free_before, process.device.memory_free_bytes()));
    }
    return added;
}

CUresult on_cuCtxSetLimit(CallContext& context, const wire::cuCtxSetLimit_call& set,
                          std::span<const std::byte> trailing, Reply& reply) {
    Call& call = as_call(context);
    GuestProcess& process = call.process();
    const std::uint64_t owner = call.header().context;
    if (!process.objects.contains(owner)) {
        return CUDA_ERROR_INVALID_CONTEXT;  // Nobody would have what it takes.
    }
    const auto limit = static_cast<std::uint32_t>(set.limit);
    if (limit >= gantry::wire::kMaxLimits) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t charged = process.objects.charged(owner, limit);
    const std::uint64_t bytes =
        limit_bytes(static_cast<CUlimit>(limit), set.value, process.facts.limits[limit],
                    process.device.resident_threads());
    if (bytes > charged) {
        if (const CUresult result = charge_memory(call, bytes - charged); result != CUDA_SUCCESS) {
            return result;
        }
    }
    const MutexLock lock(process.contexts.limits);  // Another lane may set it, too.
    const CUresult result = generated::on_cuCtxSetLimit(context, set, trailing, reply);
    if (result == CUDA_SUCCESS) {
        process.objects.charge(owner, limit, call.charged());
        process.objects.set_charge(owner, limit, bytes);
    }
    return result;
}

CUresult on_cuCtxDestroy_v2(CallContext& context, const wire::cuCtxDestroy_v2_call& end,
                            std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    const auto native =
        call.process().objects.native_as<CUcontext>(end.context, HandleKind::kContext);
    if (native == nullptr || native == call.process().device.context() ||
        call.api().cuCtxDestroy_v2 == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    GuestProcess& process = call.process();
    end_objects(call, end.context);
    const auto twins = process.objects.list([&](const Object& object) {
        return object.context == end.context &&
               (object.kind() == HandleKind::kFunction || object.kind() == HandleKind::kModule);
    });
    process.objects.erase(end.context);
    const CUresult result = process.streams.end_context(native);
    const CUresult moved = move_to_primary(process, twins);
    return result != CUDA_SUCCESS ? result : moved;
}

CUresult on_cuCtxSynchronize_v2(CallContext& context, const wire::cuCtxSynchronize_v2_call& call,
                                std::span<const std::byte>, Reply&) {
    std::uint64_t native = 0;
    if (call.ctx != 0) {
        if (const CUresult result = context.resolve(HandleKind::kContext, call.ctx, &native);
            result != CUDA_SUCCESS) {
            return result;
        }
    }
    // Drivers before 13.0 have only the form for the current context.
    GuestProcess& process = as_call(context).process();
    if (const CUresult result =
            process.contexts.enter(call.ctx != 0 ? call.ctx : as_call(context).header().context);
        result != CUDA_SUCCESS) {
        return result;
    }
    return process.streams.synchronise_context(as_call(context).busy());
}

namespace served {

CUresult cuCtxSynchronize(CallContext& context) {
    Call& call = as_call(context);
    return call.process().streams.synchronise_context(call.busy());
}

}  // namespace served

}  // namespace gantry::worker
