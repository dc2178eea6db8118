// Texture and surface objects. Kernels receive the driver's own 64-bit value, so the guest holds
// that value and a restore must reproduce it: by the driver's extension, or by luck, or not at all.
#include "host-daemon/execution/dispatch/handlers.h"

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

/// The handle under which the object table knows a texture or surface.
std::uint64_t table_handle(HandleKind kind, std::uint64_t native) {
    return cuda::make_handle(kind, native);
}

/// Puts the driver's handles and checked addresses where the guest's are.
CUresult to_native(Call& call, CUDA_RESOURCE_DESC_v1* resource) {
    auto& res = resource->res;
    ObjectTable& objects = call.process().objects;
    switch (resource->resType) {
        case CU_RESOURCE_TYPE_ARRAY:
            res.array.hArray = objects.native_as<CUarray>(
                reinterpret_cast<std::uint64_t>(res.array.hArray), HandleKind::kArray);
            return res.array.hArray != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
        case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
            res.mipmap.hMipmappedArray = objects.native_as<CUmipmappedArray>(
                reinterpret_cast<std::uint64_t>(res.mipmap.hMipmappedArray),
                HandleKind::kMipmappedArray);
            return res.mipmap.hMipmappedArray != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
        case CU_RESOURCE_TYPE_LINEAR:
        case CU_RESOURCE_TYPE_PITCH2D:
            return CUDA_SUCCESS;  // Device addresses are the same on both sides.
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/// Gives the guest what lies in the driver's description, as far as it can hold it.
void to_guest(Call& call, CUDA_RESOURCE_DESC_v1* resource) {
    auto& res = resource->res;
    ObjectTable& objects = call.process().objects;
    if (resource->resType == CU_RESOURCE_TYPE_ARRAY) {
        res.array.hArray = reinterpret_cast<CUarray>(objects.handle_of(
            reinterpret_cast<std::uint64_t>(res.array.hArray), HandleKind::kArray));
    } else if (resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
        res.mipmap.hMipmappedArray = reinterpret_cast<CUmipmappedArray>(
            objects.handle_of(reinterpret_cast<std::uint64_t>(res.mipmap.hMipmappedArray),
                              HandleKind::kMipmappedArray));
    }
}

/// Outside a restore any value will do; inside one only the value of old.
CUresult check_value(Call& call, std::uint64_t native) {
    const std::uint64_t wanted = call.wanted_native();
    return !call.is_replay() || wanted == 0 || wanted == native ? CUDA_SUCCESS
                                                                : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult on_cuTexObjectCreate(CallContext& context, const wire::cuTexObjectCreate_call& create,
                              std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (call.api().cuTexObjectCreate == nullptr || call.api().cuTexObjectDestroy == nullptr) {
        return call.unsupported(call.op());
    }
    CUDA_RESOURCE_DESC_v1 resource = create.pResDesc;
    if (const CUresult result = to_native(call, &resource); result != CUDA_SUCCESS) {
        return result;
    }
    const CUDA_TEXTURE_DESC_v1* texture = create.has_pTexDesc != 0 ? &create.pTexDesc : nullptr;
    const CUDA_RESOURCE_VIEW_DESC_v1* view =
        create.has_pResViewDesc != 0 ? &create.pResViewDesc : nullptr;
    const GantrySoftExtension* extension = call.process().device.extension();
    CUtexObject object = call.wanted_native();
    CUresult result = CUDA_SUCCESS;
    if (call.is_replay() && object != 0 && extension != nullptr) {
        result = extension->create_texture_at(object, &resource, texture, view);
    } else {
        result = call.api().cuTexObjectCreate(&object, &resource, texture, view);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = check_value(call, object);
    if (result == CUDA_SUCCESS) {
        result = call.add_object(table_handle(HandleKind::kTexObject, object), object);
    }
    if (result != CUDA_SUCCESS) {
        call.api().cuTexObjectDestroy(object);
        return result;
    }
    reply.put(wire::cuTexObjectCreate_reply{object});
    return CUDA_SUCCESS;
}

CUresult on_cuTexObjectDestroy(CallContext& context, const wire::cuTexObjectDestroy_call& destroy,
                               std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    const std::uint64_t handle = table_handle(HandleKind::kTexObject, destroy.texObject);
    if (call.process().objects.native(handle, HandleKind::kTexObject) != destroy.texObject ||
        destroy.texObject == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    call.process().objects.erase(handle);
    return call.api().cuTexObjectDestroy(destroy.texObject);
}

CUresult on_cuTexObjectGetResourceDesc(CallContext& context,
                                       const wire::cuTexObjectGetResourceDesc_call& get,
                                       std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (call.api().cuTexObjectGetResourceDesc == nullptr) {
        return call.unsupported(call.op());
    }
    wire::cuTexObjectGetResourceDesc_reply answer{};
    const CUresult result = call.api().cuTexObjectGetResourceDesc(&answer.pResDesc, get.texObject);
    to_guest(call, &answer.pResDesc);
    reply.put(answer);
    return result;
}

CUresult on_cuTexObjectGetTextureDesc(CallContext& context,
                                      const wire::cuTexObjectGetTextureDesc_call& get,
                                      std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (call.api().cuTexObjectGetTextureDesc == nullptr) {
        return call.unsupported(call.op());
    }
    wire::cuTexObjectGetTextureDesc_reply answer{};
    const CUresult result = call.api().cuTexObjectGetTextureDesc(&answer.pTexDesc, get.texObject);
    reply.put(answer);
    return result;
}

CUresult on_cuTexObjectGetResourceViewDesc(CallContext& context,
                                           const wire::cuTexObjectGetResourceViewDesc_call& get,
                                           std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (call.api().cuTexObjectGetResourceViewDesc == nullptr) {
        return call.unsupported(call.op());
    }
    wire::cuTexObjectGetResourceViewDesc_reply answer{};
    const CUresult result =
        call.api().cuTexObjectGetResourceViewDesc(&answer.pResViewDesc, get.texObject);
    reply.put(answer);
    return result;
}

CUresult on_cuSurfObjectCreate(CallContext& context, const wire::cuSurfObjectCreate_call& create,
                               std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (call.api().cuSurfObjectCreate == nullptr || call.api().cuSurfObjectDestroy == nullptr) {
        return call.unsupported(call.op());
    }
    CUDA_RESOURCE_DESC_v1 resource = create.pResDesc;
    if (const CUresult result = to_native(call, &resource); result != CUDA_SUCCESS) {
        return result;
    }
    const GantrySoftExtension* extension = call.process().device.extension();
    CUsurfObject object = call.wanted_native();
    CUresult result = CUDA_SUCCESS;
    if (call.is_replay() && object != 0 && extension != nullptr) {
        result = extension->create_surface_at(object, &resource);
    } else {
        result = call.api().cuSurfObjectCreate(&object, &resource);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = check_value(call, object);
    if (result == CUDA_SUCCESS) {
        result = call.add_object(table_handle(HandleKind::kSurfObject, object), object);
    }
    if (result != CUDA_SUCCESS) {
        call.api().cuSurfObjectDestroy(object);
        return result;
    }
    reply.put(wire::cuSurfObjectCreate_reply{object});
    return CUDA_SUCCESS;
}

CUresult on_cuSurfObjectDestroy(CallContext& context, const wire::cuSurfObjectDestroy_call& destroy,
                                std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    const std::uint64_t handle = table_handle(HandleKind::kSurfObject, destroy.surfObject);
    if (call.process().objects.native(handle, HandleKind::kSurfObject) != destroy.surfObject ||
        destroy.surfObject == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    call.process().objects.erase(handle);
    return call.api().cuSurfObjectDestroy(destroy.surfObject);
}

CUresult on_cuSurfObjectGetResourceDesc(CallContext& context,
                                        const wire::cuSurfObjectGetResourceDesc_call& get,
                                        std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (call.api().cuSurfObjectGetResourceDesc == nullptr) {
        return call.unsupported(call.op());
    }
    wire::cuSurfObjectGetResourceDesc_reply answer{};
    const CUresult result =
        call.api().cuSurfObjectGetResourceDesc(&answer.pResDesc, get.surfObject);
    to_guest(call, &answer.pResDesc);
    reply.put(answer);
    return result;
}

}  // namespace gantry::worker
