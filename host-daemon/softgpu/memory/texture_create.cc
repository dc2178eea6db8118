#include "host-daemon/softgpu/memory/texture_create.h"

#include <algorithm>
#include <cstring>

#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/memory/map.h"
#include "host-daemon/softgpu/memory/texture_table.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kLinearTexelsMax = std::uint64_t{1} << 31;

using Entry = TextureTable::Entry;

void describe_array(const Array& array, TextureDescription& out) {
    out.shape = array.shape();
    out.format = array.format;
    out.layers = array.layers();
    out.level_count = 1;
    out.levels[0] = array.level();
}

/// A texture that is made again as it was may outlive its memory, as the one before it did: what is
/// freed takes no texture along.
enum class Memory : bool { kMustBeThere, kMayBeGone };

bool is_there(std::uint64_t address, std::uint64_t bytes, Memory memory) {
    return memory == Memory::kMayBeGone || MemoryMap::instance().covers(address, bytes);
}

CUresult resource_linear(const CUDA_RESOURCE_DESC& resource, Memory memory, TextureDescription& out,
                         bool& normalized) {
    const auto& linear = resource.res.linear;
    if (!texel_format(linear.format, linear.numChannels, out.format, normalized) ||
        linear.sizeInBytes == 0 || !is_there(linear.devPtr, linear.sizeInBytes, memory)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t texels = linear.sizeInBytes / out.format.texel_bytes();
    out.shape = TextureShape::kLinear1d;
    out.levels[0].base = linear.devPtr;
    out.levels[0].width = static_cast<std::uint32_t>(std::min(texels, kLinearTexelsMax));
    out.levels[0].row_pitch_bytes = linear.sizeInBytes;
    out.levels[0].slice_pitch_bytes = linear.sizeInBytes;
    return CUDA_SUCCESS;
}

CUresult resource_pitch(const CUDA_RESOURCE_DESC& resource, Memory memory, TextureDescription& out,
                        bool& normalized) {
    const auto& pitch = resource.res.pitch2D;
    if (!texel_format(pitch.format, pitch.numChannels, out.format, normalized) ||
        pitch.width == 0 || pitch.height == 0 ||
        pitch.pitchInBytes < pitch.width * out.format.texel_bytes()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t bytes =
        pitch.pitchInBytes * (pitch.height - 1) + pitch.width * out.format.texel_bytes();
    GANTRY_REFUSE_IF(!is_there(pitch.devPtr, bytes, memory), CUDA_ERROR_INVALID_VALUE);
    out.shape = TextureShape::kArray2d;
    out.levels[0].base = pitch.devPtr;
    out.levels[0].width = static_cast<std::uint32_t>(pitch.width);
    out.levels[0].height = static_cast<std::uint32_t>(pitch.height);
    out.levels[0].row_pitch_bytes = pitch.pitchInBytes;
    out.levels[0].slice_pitch_bytes = pitch.pitchInBytes * pitch.height;
    return CUDA_SUCCESS;
}

CUresult describe_resource(const CUDA_RESOURCE_DESC& resource, Memory memory, Entry& entry,
                           bool& normalized) {
    TextureDescription& out = entry.texture;
    switch (resource.resType) {
        case CU_RESOURCE_TYPE_ARRAY: {
            const auto array = find<Array>(resource.res.array.hArray);
            GANTRY_REFUSE_IF(array == nullptr, CUDA_ERROR_INVALID_HANDLE);
            describe_array(*array, out);
            normalized = array->normalized_format;
            entry.keeps = array;
            return CUDA_SUCCESS;
        }
        case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
            const auto mipmap = find<MipmappedArray>(resource.res.mipmap.hMipmappedArray);
            GANTRY_REFUSE_IF(mipmap == nullptr, CUDA_ERROR_INVALID_HANDLE);
            describe_array(*mipmap->levels[0], out);
            out.level_count = static_cast<std::uint32_t>(mipmap->levels.size());
            for (std::size_t i = 0; i < mipmap->levels.size(); ++i) {
                out.levels[i] = mipmap->levels[i]->level();
            }
            normalized = mipmap->levels[0]->normalized_format;
            entry.keeps = mipmap;
            return CUDA_SUCCESS;
        }
        case CU_RESOURCE_TYPE_LINEAR: return resource_linear(resource, memory, out, normalized);
        case CU_RESOURCE_TYPE_PITCH2D: return resource_pitch(resource, memory, out, normalized);
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

bool texture_valid(const CUDA_TEXTURE_DESC& texture) {
    for (const CUaddress_mode mode : texture.addressMode) {
        if (mode < CU_TR_ADDRESS_MODE_WRAP || mode > CU_TR_ADDRESS_MODE_BORDER) {
            return false;
        }
    }
    return texture.filterMode >= CU_TR_FILTER_MODE_POINT &&
           texture.filterMode <= CU_TR_FILTER_MODE_LINEAR;
}

void apply_sampling(const CUDA_TEXTURE_DESC& texture, bool normalized_format,
                    TextureDescription& out) {
    for (std::size_t i = 0; i < 3; ++i) {
        out.address_mode[i] = static_cast<AddressMode>(texture.addressMode[i]);
        out.border_color[i] = texture.borderColor[i];
    }
    out.border_color[3] = texture.borderColor[3];
    out.filter_mode = static_cast<FilterMode>(texture.filterMode);
    out.mipmap_filter_mode = static_cast<FilterMode>(texture.mipmapFilterMode);
    out.normalized_coordinates = (texture.flags & CU_TRSF_NORMALIZED_COORDINATES) != 0;
    out.srgb = (texture.flags & CU_TRSF_SRGB) != 0;
    out.mipmap_level_bias = texture.mipmapLevelBias;
    out.min_mipmap_level_clamp = texture.minMipmapLevelClamp;
    out.max_mipmap_level_clamp = texture.maxMipmapLevelClamp;
    // Integers of 8 and 16 bits read as floats in [0,1] or [-1,1] unless asked as integers.
    const bool integer = out.format.kind != TexelKind::kFloat && out.format.channel_bits < 32;
    const bool as_integer = (texture.flags & CU_TRSF_READ_AS_INTEGER) != 0;
    out.read_mode = normalized_format || (integer && !as_integer) ? ReadMode::kNormalizedFloat
                                                                  : ReadMode::kElement;
}

void apply_view(const CUDA_RESOURCE_VIEW_DESC& view, TextureDescription& out) {
    const std::uint32_t first = std::min(view.firstMipmapLevel, out.level_count - 1);
    const std::uint32_t last = std::clamp(view.lastMipmapLevel, first, out.level_count - 1);
    std::rotate(out.levels.begin(), out.levels.begin() + first, out.levels.end());
    out.level_count = last - first + 1;
    if (view.lastLayer >= view.firstLayer && out.layers > 1 && view.lastLayer < out.layers) {
        for (std::uint32_t i = 0; i < out.level_count; ++i) {
            out.levels[i].base += view.firstLayer * out.levels[i].slice_pitch_bytes;
        }
        out.layers = view.lastLayer - view.firstLayer + 1;
    }
}

}  // namespace

CUresult create_texture(Context& context, const CUDA_RESOURCE_DESC* resource,
                        const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view,
                        CUtexObject wanted, CUtexObject& made) {
    GANTRY_REFUSE_IF(resource == nullptr || texture == nullptr || !texture_valid(*texture),
                     CUDA_ERROR_INVALID_VALUE);
    auto entry = std::make_shared<Entry>();
    bool normalized_format = false;
    const Memory memory = wanted != 0 ? Memory::kMayBeGone : Memory::kMustBeThere;
    const CUresult error = describe_resource(*resource, memory, *entry, normalized_format);
    if (error != CUDA_SUCCESS) {
        return error;
    }
    apply_sampling(*texture, normalized_format, entry->texture);
    const TexelFormat& format = entry->texture.format;
    const bool wide_integer = format.kind != TexelKind::kFloat && format.channel_bits == 32;
    const bool element_integer =
        format.kind != TexelKind::kFloat && entry->texture.read_mode == ReadMode::kElement;
    if (texture->filterMode == CU_TR_FILTER_MODE_LINEAR && (wide_integer || element_integer)) {
        return CUDA_ERROR_INVALID_VALUE;  // Only what reads as a float can be interpolated.
    }
    if (view != nullptr) {
        const bool of_array = resource->resType == CU_RESOURCE_TYPE_ARRAY ||
                              resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
        GANTRY_REFUSE_IF(!of_array, CUDA_ERROR_INVALID_VALUE);
        apply_view(*view, entry->texture);
        entry->view = *view;
        entry->has_view = true;
    }
    entry->resource = *resource;
    entry->description = *texture;
    entry->context = context.handle();
    made = TextureTable::instance().add(std::move(entry), wanted);
    return made != 0 ? CUDA_SUCCESS
                     : (wanted != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult create_surface(Context& context, const CUDA_RESOURCE_DESC* resource, CUsurfObject wanted,
                        CUsurfObject& made) {
    GANTRY_REFUSE_IF(resource == nullptr || resource->resType != CU_RESOURCE_TYPE_ARRAY,
                     CUDA_ERROR_INVALID_VALUE);
    const auto array = find<Array>(resource->res.array.hArray);
    GANTRY_REFUSE_IF(array == nullptr, CUDA_ERROR_INVALID_HANDLE);
    GANTRY_REFUSE_IF((array->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST) == 0,
                     CUDA_ERROR_INVALID_VALUE);
    auto entry = std::make_shared<Entry>();
    entry->is_surface = true;
    entry->surface.shape = array->shape();
    entry->surface.format = array->format;
    entry->surface.layers = array->layers();
    entry->surface.level = array->level();
    entry->resource = *resource;
    entry->keeps = array;
    entry->context = context.handle();
    made = TextureTable::instance().add(std::move(entry), wanted);
    return made != 0 ? CUDA_SUCCESS
                     : (wanted != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY);
}

}  // namespace gantry::softgpu
