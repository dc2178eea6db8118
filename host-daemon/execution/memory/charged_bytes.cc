#include "host-daemon/execution/memory/charged_bytes.h"

#include <algorithm>

#include "proto/base/saturating.h"

namespace gantry::worker {
namespace {

struct Texel {
    std::uint64_t bytes = 0;
    std::uint64_t side = 1;  ///< A block of side * side texels has these bytes.
};

/// Formats that name their channels, and planar ones, count as the most that any has of theirs.
Texel texel_of(CUarray_format format, std::uint64_t channels) {
    channels = std::max<std::uint64_t>(channels, 1);
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8: return {channels};
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF: return {2 * channels};
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT: return {product(4, channels)};
        case CU_AD_FORMAT_UNORM_INT8X1:
        case CU_AD_FORMAT_SNORM_INT8X1: return {1};
        case CU_AD_FORMAT_UNORM_INT8X2:
        case CU_AD_FORMAT_SNORM_INT8X2:
        case CU_AD_FORMAT_UNORM_INT16X1:
        case CU_AD_FORMAT_SNORM_INT16X1: return {2};
        case CU_AD_FORMAT_UNORM_INT8X4:
        case CU_AD_FORMAT_SNORM_INT8X4:
        case CU_AD_FORMAT_UNORM_INT16X2:
        case CU_AD_FORMAT_SNORM_INT16X2:
        case CU_AD_FORMAT_UNORM_INT_101010_2: return {4};
        case CU_AD_FORMAT_BC1_UNORM:
        case CU_AD_FORMAT_BC1_UNORM_SRGB:
        case CU_AD_FORMAT_BC4_UNORM:
        case CU_AD_FORMAT_BC4_SNORM: return {8, 4};
        case CU_AD_FORMAT_BC2_UNORM:
        case CU_AD_FORMAT_BC2_UNORM_SRGB:
        case CU_AD_FORMAT_BC3_UNORM:
        case CU_AD_FORMAT_BC3_UNORM_SRGB:
        case CU_AD_FORMAT_BC5_UNORM:
        case CU_AD_FORMAT_BC5_SNORM:
        case CU_AD_FORMAT_BC6H_UF16:
        case CU_AD_FORMAT_BC6H_SF16:
        case CU_AD_FORMAT_BC7_UNORM:
        case CU_AD_FORMAT_BC7_UNORM_SRGB: return {16, 4};
        default: return {8};  // 16 bits of four channels, three planes of 16.
    }
}

std::uint64_t blocks(std::uint64_t texels, std::uint64_t side) {
    return sum(std::max<std::uint64_t>(texels, 1), side - 1) / side;
}

}  // namespace

std::uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR_v2& descriptor) {
    const Texel texel = texel_of(descriptor.Format, descriptor.NumChannels);
    const std::uint64_t row = product(blocks(descriptor.Width, texel.side), texel.bytes);
    return product(product(row, blocks(descriptor.Height, texel.side)),
                   std::max<std::uint64_t>(descriptor.Depth, 1));
}

std::uint64_t mipmapped_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR_v2& descriptor, unsigned levels) {
    CUDA_ARRAY3D_DESCRIPTOR_v2 level = descriptor;
    const bool has_layers = (descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    std::uint64_t bytes = 0;
    for (unsigned i = 0; i < levels; ++i) {
        bytes = sum(bytes, array_bytes(level));
        if (level.Width <= 1 && level.Height <= 1 && (has_layers || level.Depth <= 1)) {
            break;  // No driver makes levels behind that one.
        }
        level.Width /= 2;
        level.Height /= 2;
        level.Depth = has_layers ? level.Depth : level.Depth / 2;
    }
    return bytes;
}

std::uint64_t limit_bytes(CUlimit limit, std::uint64_t value, std::uint64_t initial,
                          std::uint64_t threads) {
    constexpr std::uint64_t kSyncLevelBytes = std::uint64_t{150}
                                              << 20;  // CUDA's guide: about that.
    const std::uint64_t more = value - std::min(value, initial);
    switch (limit) {
        case CU_LIMIT_STACK_SIZE: return product(more, threads);
        case CU_LIMIT_PRINTF_FIFO_SIZE:
        case CU_LIMIT_MALLOC_HEAP_SIZE: return more;
        case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: return product(more, kSyncLevelBytes);
        default: return 0;
    }
}

std::uint64_t context_bytes_seen(std::uint64_t figure, std::optional<std::uint64_t> free_before,
                                 std::optional<std::uint64_t> free_behind) {
    if (!free_before || !free_behind) {
        return figure;
    }
    const std::uint64_t taken = *free_before - std::min(*free_before, *free_behind);
    return std::clamp(taken, figure / 8, figure * 2);
}

}  // namespace gantry::worker
