// Arrays, mipmapped arrays, texture and surface objects.
#include <algorithm>
#include <cstring>

#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/memory/array.h"
#include "host-daemon/softgpu/memory/texture_create.h"
#include "host-daemon/softgpu/memory/texture_table.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::Array;
using softgpu::Context;
using softgpu::MipmappedArray;
using softgpu::Scheduler;
using softgpu::TextureTable;

void drain(const std::shared_ptr<Context>& context) {
    Scheduler::instance().wait(Scheduler::instance().points_of(*context));
}

unsigned levels_max(const CUDA_ARRAY3D_DESCRIPTOR& d) {
    const bool layered = (d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    std::uint64_t extent = std::max<std::uint64_t>({d.Width, d.Height, layered ? 1 : d.Depth});
    unsigned levels = 1;
    for (; extent > 1; extent /= 2) {
        ++levels;
    }
    return levels;
}

CUDA_ARRAY3D_DESCRIPTOR level_descriptor(const CUDA_ARRAY3D_DESCRIPTOR& whole, unsigned level) {
    const bool layered = (whole.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    const auto shrink = [level](std::size_t extent) {
        return extent == 0 ? extent : std::max<std::size_t>(extent >> level, 1);
    };
    CUDA_ARRAY3D_DESCRIPTOR d = whole;
    d.Width = shrink(whole.Width);
    d.Height = shrink(whole.Height);
    d.Depth = layered ? whole.Depth : shrink(whole.Depth);
    return d;
}

CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS_v1* out, std::uint64_t bytes) {
    GANTRY_REFUSE_IF(out == nullptr, CUDA_ERROR_INVALID_VALUE);
    *out = {};
    out->size = bytes;
    out->alignment = 512;
    return CUDA_SUCCESS;
}

template <typename T>
CUresult give(T* out, const T& value) {
    GANTRY_REFUSE_IF(out == nullptr, CUDA_ERROR_INVALID_VALUE);
    *out = value;
    return CUDA_SUCCESS;
}

}  // namespace

CUresult cuArray3DCreate_v2(CUarray* pHandle,
                            const CUDA_ARRAY3D_DESCRIPTOR_v2* pAllocateArray) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(pHandle == nullptr || pAllocateArray == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF((pAllocateArray->Flags & CUDA_ARRAY3D_SPARSE) != 0, CUDA_ERROR_NOT_SUPPORTED);
    std::shared_ptr<Array> array;
    GANTRY_CU(Array::create(*context, *pAllocateArray, array));
    *pHandle = softgpu::publish<CUarray>(array);
    return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray* pHandle,
                          const CUDA_ARRAY_DESCRIPTOR_v2* pAllocateArray) noexcept {
    GANTRY_REFUSE_IF(pAllocateArray == nullptr, CUDA_ERROR_INVALID_VALUE);
    const CUDA_ARRAY3D_DESCRIPTOR descriptor = {
        pAllocateArray->Width,  pAllocateArray->Height,      0,
        pAllocateArray->Format, pAllocateArray->NumChannels, 0};
    return cuArray3DCreate_v2(pHandle, &descriptor);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR_v2* pArrayDescriptor,
                                   CUarray hArray) noexcept {
    GANTRY_CURRENT(context);
    const auto array = softgpu::find<Array>(hArray);
    return array == nullptr ? CUDA_ERROR_INVALID_HANDLE : give(pArrayDescriptor, array->descriptor);
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR_v2* pArrayDescriptor,
                                 CUarray hArray) noexcept {
    GANTRY_CURRENT(context);
    const auto array = softgpu::find<Array>(hArray);
    GANTRY_REFUSE_IF(array == nullptr, CUDA_ERROR_INVALID_HANDLE);
    const auto& d = array->descriptor;
    return give(pArrayDescriptor, {d.Width, d.Height, d.Format, d.NumChannels});
}

CUresult cuArrayDestroy(CUarray hArray) noexcept {
    GANTRY_CURRENT(context);
    const auto array = softgpu::find<Array>(hArray);
    GANTRY_REFUSE_IF(array == nullptr || array->whole != nullptr, CUDA_ERROR_INVALID_HANDLE);
    drain(context);
    softgpu::retract(*array);
    return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS_v1* memoryRequirements,
                                      CUarray array, CUdevice) noexcept {
    const auto found = softgpu::find<Array>(array);
    return found == nullptr ? CUDA_ERROR_INVALID_HANDLE
                            : requirements(memoryRequirements, found->bytes);
}

CUresult cuMipmappedArrayGetMemoryRequirements(
    CUDA_ARRAY_MEMORY_REQUIREMENTS_v1* memoryRequirements, CUmipmappedArray mipmap,
    CUdevice) noexcept {
    const auto found = softgpu::find<MipmappedArray>(mipmap);
    GANTRY_REFUSE_IF(found == nullptr, CUDA_ERROR_INVALID_HANDLE);
    std::uint64_t bytes = 0;
    for (const auto& level : found->levels) {
        bytes += level->bytes;
    }
    return requirements(memoryRequirements, bytes);
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES_v1*, CUarray) noexcept {
    return CUDA_ERROR_INVALID_VALUE;  // No array here is sparse.
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES_v1*,
                                             CUmipmappedArray) noexcept {
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuArrayGetPlane(CUarray*, CUarray, unsigned int) noexcept {
    return CUDA_ERROR_INVALID_VALUE;  // No array here has planes.
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* pHandle,
                                const CUDA_ARRAY3D_DESCRIPTOR_v2* pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(pHandle == nullptr || pMipmappedArrayDesc == nullptr || numMipmapLevels == 0,
                     CUDA_ERROR_INVALID_VALUE);
    const unsigned levels = std::min({numMipmapLevels, levels_max(*pMipmappedArrayDesc),
                                      static_cast<unsigned>(softgpu::kMaxMipLevels)});
    const auto mipmap = std::make_shared<MipmappedArray>();
    mipmap->descriptor = *pMipmappedArrayDesc;
    for (unsigned level = 0; level < levels; ++level) {
        std::shared_ptr<Array> array;
        GANTRY_CU(Array::create(*context, level_descriptor(*pMipmappedArrayDesc, level), array));
        mipmap->levels.push_back(std::move(array));
    }
    *pHandle = softgpu::publish<CUmipmappedArray>(mipmap);
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(CUarray* pLevelArray, CUmipmappedArray hMipmappedArray,
                                  unsigned int level) noexcept {
    GANTRY_CURRENT(context);
    const auto mipmap = softgpu::find<MipmappedArray>(hMipmappedArray);
    GANTRY_REFUSE_IF(mipmap == nullptr, CUDA_ERROR_INVALID_HANDLE);
    GANTRY_REFUSE_IF(pLevelArray == nullptr || level >= mipmap->levels.size(),
                     CUDA_ERROR_INVALID_VALUE);
    const auto& array = mipmap->levels[level];
    if (array->handle() == nullptr) {
        softgpu::publish<CUarray>(array);
    }
    *pLevelArray = array->as<CUarray>();
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) noexcept {
    GANTRY_CURRENT(context);
    const auto mipmap = softgpu::find<MipmappedArray>(hMipmappedArray);
    GANTRY_REFUSE_IF(mipmap == nullptr, CUDA_ERROR_INVALID_HANDLE);
    drain(context);
    for (const auto& level : mipmap->levels) {
        softgpu::retract(*level);
    }
    softgpu::retract(*mipmap);
    return CUDA_SUCCESS;
}

CUresult cuTexObjectCreate(CUtexObject_v1* pTexObject, const CUDA_RESOURCE_DESC_v1* pResDesc,
                           const CUDA_TEXTURE_DESC_v1* pTexDesc,
                           const CUDA_RESOURCE_VIEW_DESC_v1* pResViewDesc) noexcept {
    GANTRY_CURRENT(context);
    CUtexObject made = 0;
    GANTRY_REFUSE_IF(pTexObject == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_CU(softgpu::create_texture(*context, pResDesc, pTexDesc, pResViewDesc, 0, made));
    *pTexObject = made;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectDestroy(CUtexObject_v1 texObject) noexcept {
    GANTRY_CURRENT(context);
    if (texObject == 0) {
        return CUDA_SUCCESS;
    }
    drain(context);
    return TextureTable::instance().remove(texObject, false) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC_v1* pResDesc,
                                    CUtexObject_v1 texObject) noexcept {
    const auto entry = TextureTable::instance().find(texObject, false);
    return entry == nullptr ? CUDA_ERROR_INVALID_VALUE : give(pResDesc, entry->resource);
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC_v1* pTexDesc,
                                   CUtexObject_v1 texObject) noexcept {
    const auto entry = TextureTable::instance().find(texObject, false);
    return entry == nullptr ? CUDA_ERROR_INVALID_VALUE : give(pTexDesc, entry->description);
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC_v1* pResViewDesc,
                                        CUtexObject_v1 texObject) noexcept {
    const auto entry = TextureTable::instance().find(texObject, false);
    return entry == nullptr || !entry->has_view ? CUDA_ERROR_INVALID_VALUE
                                                : give(pResViewDesc, entry->view);
}

CUresult cuSurfObjectCreate(CUsurfObject_v1* pSurfObject,
                            const CUDA_RESOURCE_DESC_v1* pResDesc) noexcept {
    GANTRY_CURRENT(context);
    CUsurfObject made = 0;
    GANTRY_REFUSE_IF(pSurfObject == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_CU(softgpu::create_surface(*context, pResDesc, 0, made));
    *pSurfObject = made;
    return CUDA_SUCCESS;
}

CUresult cuSurfObjectDestroy(CUsurfObject_v1 surfObject) noexcept {
    GANTRY_CURRENT(context);
    if (surfObject == 0) {
        return CUDA_SUCCESS;
    }
    drain(context);
    return TextureTable::instance().remove(surfObject, true) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC_v1* pResDesc,
                                     CUsurfObject_v1 surfObject) noexcept {
    const auto entry = TextureTable::instance().find(surfObject, true);
    return entry == nullptr ? CUDA_ERROR_INVALID_VALUE : give(pResDesc, entry->resource);
}

}  // namespace gantry::cuda_impl
