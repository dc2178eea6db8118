// Building texture and surface objects from CUDA's descriptions.
#pragma once

#include "host-daemon/softgpu/core/context.h"
#include "proto/cuda/abi.h"

namespace gantry::softgpu {

/// `wanted` 0 lets the driver choose the handle.
CUresult create_texture(Context& context, const CUDA_RESOURCE_DESC* resource,
                        const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view,
                        CUtexObject wanted, CUtexObject& made);
CUresult create_surface(Context& context, const CUDA_RESOURCE_DESC* resource, CUsurfObject wanted,
                        CUsurfObject& made);

}  // namespace gantry::softgpu
