// CUDA arrays: texels in device memory, row after row, slice after slice, no hidden order.
// A mipmapped array owns one array per level; a level keeps the whole alive.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/core/objects.h"
#include "host-daemon/softgpu/engine/texture.h"
#include "proto/cuda/abi.h"

namespace gantry::softgpu {

class MipmappedArray;

/// The engine's format for an array format; false when the soft GPU has no such format.
bool texel_format(CUarray_format format, unsigned channels, TexelFormat& out, bool& normalized);

class Array : public Object {
public:
    static constexpr ObjectKind kKind = ObjectKind::kArray;
    Array() : Object(kKind) {}
    ~Array() override;

    static CUresult create(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                           std::shared_ptr<Array>& array);

    [[nodiscard]] TexelLevel level() const;
    [[nodiscard]] TextureShape shape() const;
    /// Number of layers (cube faces included), 1 when not layered.
    [[nodiscard]] std::uint32_t layers() const;
    /// Slices in memory: layers or depth, at least 1.
    [[nodiscard]] std::uint64_t slices() const;
    [[nodiscard]] std::uint64_t rows() const {
        return descriptor.Height == 0 ? 1 : descriptor.Height;
    }

    CUDA_ARRAY3D_DESCRIPTOR descriptor{};
    TexelFormat format;
    bool normalized_format = false;  ///< UNORM or SNORM: read as floats.
    std::uint64_t address = 0;
    std::uint64_t row_pitch = 0;
    std::uint64_t bytes = 0;
    std::shared_ptr<MipmappedArray> whole;  ///< Set for a level of a mipmapped array.
};

class MipmappedArray : public Object {
public:
    static constexpr ObjectKind kKind = ObjectKind::kMipmappedArray;
    MipmappedArray() : Object(kKind) {}

    CUDA_ARRAY3D_DESCRIPTOR descriptor{};
    std::vector<std::shared_ptr<Array>> levels;
};

}  // namespace gantry::softgpu
