// Arrays, which count against the quota, and texture and surface objects. Kernels receive the
// driver's own 64-bit value, so the guest holds that value and a restore must reproduce it: by the
// driver's extension, or by luck, or not at all.
#include "host-daemon/execution/dispatch/handlers.h"

#include <cstring>

#include "host-daemon/execution/memory/charged_bytes.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

/// Makes an object with `make(extension, value)`, and enters it under a handle of its value.
/// Outside a restore any value will do; inside one only the value of old, which `extension` (null
/// where it is not needed) can give.
template <typename Object, typename Make>
CUresult create(Call& call, HandleKind kind, CUresult (*destroy)(Object), Object* object,
                Make make) {
    if (destroy == nullptr) {
        return call.unsupported(call.op());
    }
    const std::uint64_t wanted = call.wanted_native();
    const GantrySoftExtension* extension =
        call.is_replay() && wanted != 0 ? call.process().device.extension() : nullptr;
    *object = wanted;
    CUresult result = make(extension, wanted);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = !call.is_replay() || wanted == 0 || wanted == *object ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS) {
        result = call.add_object(cuda::make_handle(kind, *object), *object);
    }
    if (result != CUDA_SUCCESS) {
        destroy(*object);
    }
    return result;
}

}  // namespace

CUresult on_cuArrayCreate_v2(CallContext& context, const wire::cuArrayCreate_v2_call& call,
                             std::span<const std::byte> trailing, Reply& reply) {
    CUDA_ARRAY_DESCRIPTOR_v2 flat{};
    std::memcpy(&flat, &call.pAllocateArray, sizeof(flat));
    CUDA_ARRAY3D_DESCRIPTOR_v2 descriptor{};
    descriptor.Width = flat.Width;
    descriptor.Height = flat.Height;
    descriptor.Format = flat.Format;
    descriptor.NumChannels = flat.NumChannels;
    const CUresult charged = charge_memory(as_call(context), array_bytes(descriptor));
    return charged == CUDA_SUCCESS ? generated::on_cuArrayCreate_v2(context, call, trailing, reply)
                                   : charged;
}

CUresult on_cuArray3DCreate_v2(CallContext& context, const wire::cuArray3DCreate_v2_call& call,
                               std::span<const std::byte> trailing, Reply& reply) {
    CUDA_ARRAY3D_DESCRIPTOR_v2 descriptor{};
    std::memcpy(&descriptor, &call.pAllocateArray, sizeof(descriptor));
    const CUresult charged = charge_memory(as_call(context), array_bytes(descriptor));
    return charged == CUDA_SUCCESS
               ? generated::on_cuArray3DCreate_v2(context, call, trailing, reply)
               : charged;
}

CUresult on_cuMipmappedArrayCreate(CallContext& context,
                                   const wire::cuMipmappedArrayCreate_call& call,
                                   std::span<const std::byte> trailing, Reply& reply) {
    CUDA_ARRAY3D_DESCRIPTOR_v2 descriptor{};
    std::memcpy(&descriptor, &call.pMipmappedArrayDesc, sizeof(descriptor));
    const CUresult charged =
        charge_memory(as_call(context), mipmapped_array_bytes(descriptor, call.numMipmapLevels));
    return charged == CUDA_SUCCESS
               ? generated::on_cuMipmappedArrayCreate(context, call, trailing, reply)
               : charged;
}

namespace served {

CUresult cuTexObjectCreate(CallContext& context, CUtexObject* object,
                           const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC* texture,
                           const CUDA_RESOURCE_VIEW_DESC* view) {
    Call& call = as_call(context);
    const driver::DriverApi& api = call.api();
    return create(call, HandleKind::kTexObject, api.cuTexObjectDestroy, object,
                  [&](const GantrySoftExtension* extension, std::uint64_t wanted) {
                      return extension != nullptr
                                 ? extension->create_texture_at(wanted, resource, texture, view)
                             : api.cuTexObjectCreate != nullptr
                                 ? api.cuTexObjectCreate(object, resource, texture, view)
                                 : call.unsupported(call.op());
                  });
}

CUresult cuSurfObjectCreate(CallContext& context, CUsurfObject* object,
                            const CUDA_RESOURCE_DESC* resource) {
    Call& call = as_call(context);
    const driver::DriverApi& api = call.api();
    return create(call, HandleKind::kSurfObject, api.cuSurfObjectDestroy, object,
                  [&](const GantrySoftExtension* extension, std::uint64_t wanted) {
                      return extension != nullptr ? extension->create_surface_at(wanted, resource)
                             : api.cuSurfObjectCreate != nullptr
                                 ? api.cuSurfObjectCreate(object, resource)
                                 : call.unsupported(call.op());
                  });
}

}  // namespace served

}  // namespace gantry::worker
