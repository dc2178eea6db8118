#include "host-daemon/softgpu/memory/array.h"

#include <algorithm>

#include "host-daemon/softgpu/memory/allocate.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kRowAlign = 64;
constexpr std::uint64_t kExtentMax = 1U << 28;

struct FormatFacts {
    CUarray_format format;
    TexelKind kind;
    std::uint8_t bits;
    std::uint8_t channels;  ///< 0: as many as the descriptor says.
    bool normalized;
};

constexpr FormatFacts kFormats[] = {
    {CU_AD_FORMAT_UNSIGNED_INT8, TexelKind::kUnsigned, 8, 0, false},
    {CU_AD_FORMAT_UNSIGNED_INT16, TexelKind::kUnsigned, 16, 0, false},
    {CU_AD_FORMAT_UNSIGNED_INT32, TexelKind::kUnsigned, 32, 0, false},
    {CU_AD_FORMAT_SIGNED_INT8, TexelKind::kSigned, 8, 0, false},
    {CU_AD_FORMAT_SIGNED_INT16, TexelKind::kSigned, 16, 0, false},
    {CU_AD_FORMAT_SIGNED_INT32, TexelKind::kSigned, 32, 0, false},
    {CU_AD_FORMAT_HALF, TexelKind::kFloat, 16, 0, false},
    {CU_AD_FORMAT_FLOAT, TexelKind::kFloat, 32, 0, false},
    {CU_AD_FORMAT_UNORM_INT8X1, TexelKind::kUnsigned, 8, 1, true},
    {CU_AD_FORMAT_UNORM_INT8X2, TexelKind::kUnsigned, 8, 2, true},
    {CU_AD_FORMAT_UNORM_INT8X4, TexelKind::kUnsigned, 8, 4, true},
    {CU_AD_FORMAT_UNORM_INT16X1, TexelKind::kUnsigned, 16, 1, true},
    {CU_AD_FORMAT_UNORM_INT16X2, TexelKind::kUnsigned, 16, 2, true},
    {CU_AD_FORMAT_UNORM_INT16X4, TexelKind::kUnsigned, 16, 4, true},
    {CU_AD_FORMAT_SNORM_INT8X1, TexelKind::kSigned, 8, 1, true},
    {CU_AD_FORMAT_SNORM_INT8X2, TexelKind::kSigned, 8, 2, true},
    {CU_AD_FORMAT_SNORM_INT8X4, TexelKind::kSigned, 8, 4, true},
    {CU_AD_FORMAT_SNORM_INT16X1, TexelKind::kSigned, 16, 1, true},
    {CU_AD_FORMAT_SNORM_INT16X2, TexelKind::kSigned, 16, 2, true},
    {CU_AD_FORMAT_SNORM_INT16X4, TexelKind::kSigned, 16, 4, true},
};

bool extents_valid(const CUDA_ARRAY3D_DESCRIPTOR& d) {
    const bool cube = (d.Flags & CUDA_ARRAY3D_CUBEMAP) != 0;
    const bool layered = (d.Flags & CUDA_ARRAY3D_LAYERED) != 0;
    if (d.Width == 0 || d.Width > kExtentMax || d.Height > kExtentMax || d.Depth > kExtentMax) {
        return false;
    }
    if (cube) {
        const bool faces = layered ? d.Depth != 0 && d.Depth % 6 == 0 : d.Depth == 6;
        return d.Width == d.Height && faces;
    }
    // Depth without height is a plain 3D array's mistake, but a layered 1D array's rule.
    return layered ? d.Depth != 0 : d.Height != 0 || d.Depth == 0;
}

}  // namespace

bool texel_format(CUarray_format format, unsigned channels, TexelFormat& out, bool& normalized) {
    for (const FormatFacts& facts : kFormats) {
        if (facts.format != format) {
            continue;
        }
        const unsigned count = facts.channels != 0 ? facts.channels : channels;
        if (count != 1 && count != 2 && count != 4) {
            return false;
        }
        out = {facts.kind, facts.bits, static_cast<std::uint8_t>(count)};
        normalized = facts.normalized;
        return true;
    }
    return false;
}

Array::~Array() {
    if (address != 0) {
        free_device(address, MemoryKind::kDriver);
    }
}

CUresult Array::create(Context& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                       std::shared_ptr<Array>& array) {
    auto made = std::make_shared<Array>();
    made->descriptor = descriptor;
    if (!extents_valid(descriptor) || !texel_format(descriptor.Format, descriptor.NumChannels,
                                                    made->format, made->normalized_format)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t row = descriptor.Width * made->format.texel_bytes();
    made->row_pitch = (row + kRowAlign - 1) / kRowAlign * kRowAlign;
    if (__builtin_mul_overflow(made->row_pitch, made->rows(), &made->bytes) ||
        __builtin_mul_overflow(made->bytes, made->slices(), &made->bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint64_t address = 0;
    const CUresult error =
        allocate_device(context, MemoryKind::kDriver, made->bytes, 0, nullptr, address);
    if (error != CUDA_SUCCESS) {
        return error;
    }
    made->address = address;
    array = std::move(made);
    return CUDA_SUCCESS;
}

std::uint64_t Array::slices() const { return std::max<std::uint64_t>(descriptor.Depth, 1); }

TextureShape Array::shape() const {
    if ((descriptor.Flags & CUDA_ARRAY3D_CUBEMAP) != 0) {
        return TextureShape::kCubemap;
    }
    const bool layered = (descriptor.Flags & CUDA_ARRAY3D_LAYERED) != 0;
    if (descriptor.Height == 0) {
        return TextureShape::kArray1d;
    }
    return layered || descriptor.Depth == 0 ? TextureShape::kArray2d : TextureShape::kArray3d;
}

std::uint32_t Array::layers() const {
    const bool layered = (descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    return layered ? static_cast<std::uint32_t>(slices()) : 1;
}

TexelLevel Array::level() const {
    TexelLevel out;
    out.base = address;
    out.width = static_cast<std::uint32_t>(descriptor.Width);
    out.height = static_cast<std::uint32_t>(rows());
    out.depth = layers() > 1 || shape() != TextureShape::kArray3d
                    ? 1
                    : static_cast<std::uint32_t>(slices());
    out.row_pitch_bytes = row_pitch;
    out.slice_pitch_bytes = row_pitch * rows();
    return out;
}

}  // namespace gantry::softgpu
