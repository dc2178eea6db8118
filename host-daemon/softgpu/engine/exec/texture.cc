// Texture sampling, surface access and queries, lane by lane, from TextureUnit's descriptions.
//
// Linear filtering uses weights with 8 bits of fraction, as NVIDIA documents. Out-of-range
// behaviour is the address mode's; unnormalised coordinates clamp for wrap and mirror.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "host-daemon/softgpu/engine/exec/texel.h"
#include "host-daemon/softgpu/engine/exec/touch.h"
#include "host-daemon/softgpu/engine/kernel_code.h"
#include "host-daemon/softgpu/engine/numbers.h"
#include "host-daemon/softgpu/engine/run/launch_state.h"
#include "host-daemon/softgpu/engine/texture_site.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s64 = std::int64_t;

/// A texel's channels: as floats, or as the raw integers of an element read.
struct Texel {
    double channel[4] = {0, 0, 0, 0};
};

std::uint32_t geometry_dimensions(TextureGeometry geometry) {
    switch (geometry) {
        case TextureGeometry::k1d:
        case TextureGeometry::kArray1d: return 1;
        case TextureGeometry::k2d:
        case TextureGeometry::kArray2d: return 2;
        default: return 3;
    }
}

double from_srgb(double value) {
    return value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
}

class Sampler {
public:
    Sampler(const TextureDescription& texture, u32 layer, Warp& warp, const Inst* inst, u32 lane)
        : texture_(texture),
          warp_(warp),
          inst_(inst),
          lane_(lane),
          layer_(std::min(layer, texture.layers - 1)) {}

    [[nodiscard]] Texel fetch(const TexelLevel& level, const s64* index) const {
        const s64 sizes[3] = {level.width, level.height, level.depth};
        s64 at[3] = {0, 0, 0};
        for (u32 axis = 0; axis < dimensions_; ++axis) {
            const AddressMode mode =
                texture_.shape == TextureShape::kLinear1d ? AddressMode::kBorder : mode_of(axis);
            at[axis] = address_texel(index[axis], sizes[axis], mode,
                                     texture_.normalized_coordinates || cube_);
            if (at[axis] < 0) {
                return border();
            }
            if (whole_ && at[axis] != index[axis]) {
                return Texel{};
            }
        }
        const u64 slice = dimensions_ == 3 ? static_cast<u64>(at[2]) : layer_;
        // The object may have outlived its memory.
        const u64 address = flat_address(
            warp_, inst_, Touch::kRead, lane_,
            level.base + static_cast<u64>(at[0]) * texture_.format.texel_bytes() +
                static_cast<u64>(at[1]) * level.row_pitch_bytes + slice * level.slice_pitch_bytes,
            texture_.format.texel_bytes());
        Texel texel;
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(address);
        for (u32 i = 0; i < texture_.format.channels; ++i) {
            texel.channel[i] =
                channel_value(bytes + i * texture_.format.channel_bits / 8U, texture_.format,
                              texture_.read_mode == ReadMode::kNormalizedFloat);
            if (texture_.srgb && i < 3) {
                texel.channel[i] = from_srgb(texel.channel[i]);
            }
        }
        return texel;
    }

    void set_dimensions(u32 dimensions) { dimensions_ = dimensions; }
    void set_layer(u32 layer) { layer_ = layer; }
    void set_cube() { cube_ = true; }
    /// Integer coordinates: what lies outside is zero, whatever the address mode is.
    void set_whole() { whole_ = true; }

    /// `coordinate` in the object's own units (normalised or texels).
    [[nodiscard]] Texel sample_level(const TexelLevel& level, const double* coordinate) const {
        const s64 sizes[3] = {level.width, level.height, level.depth};
        double position[3] = {0, 0, 0};
        for (u32 axis = 0; axis < dimensions_; ++axis) {
            position[axis] = coordinate[axis];
            if (texture_.normalized_coordinates || cube_) {
                position[axis] *= static_cast<double>(sizes[axis]);
            }
            // Far outside, only the direction matters; NaN reads texel 0.
            position[axis] =
                std::isnan(position[axis]) ? 0.0 : std::clamp(position[axis], -1e15, 1e15);
        }
        s64 low[3] = {0, 0, 0};
        if (texture_.filter_mode == FilterMode::kPoint) {
            for (u32 axis = 0; axis < dimensions_; ++axis) {
                low[axis] = whole_part(position[axis]);
            }
            return fetch(level, low);
        }
        double weight[3] = {0, 0, 0};
        for (u32 axis = 0; axis < dimensions_; ++axis) {
            const double shifted = position[axis] - 0.5;
            low[axis] = whole_part(shifted);
            const double fraction = shifted - static_cast<double>(low[axis]);
            weight[axis] = static_cast<double>(whole_part(fraction * 256.0 + 0.5)) / 256.0;
        }
        Texel sum;
        for (u32 corner = 0; corner < 1U << dimensions_; ++corner) {
            double part = 1.0;
            s64 index[3] = {0, 0, 0};
            for (u32 axis = 0; axis < dimensions_; ++axis) {
                const bool upper = ((corner >> axis) & 1U) != 0;
                part *= upper ? weight[axis] : 1.0 - weight[axis];
                index[axis] = low[axis] + (upper ? 1 : 0);
            }
            if (part != 0.0) {
                const Texel texel = fetch(level, index);
                for (u32 i = 0; i < 4; ++i) {
                    sum.channel[i] += part * texel.channel[i];
                }
            }
        }
        return sum;
    }

    /// The bias is for levels that the instruction brings, not for that of the base.
    [[nodiscard]] Texel sample(const double* coordinate, double lod, LevelMode mode) const {
        if (texture_.level_count <= 1) {
            return sample_level(texture_.levels[0], coordinate);
        }
        lod += mode == LevelMode::kBase ? 0.0 : static_cast<double>(texture_.mipmap_level_bias);
        lod = std::clamp(lod, static_cast<double>(texture_.min_mipmap_level_clamp),
                         static_cast<double>(texture_.max_mipmap_level_clamp));
        lod = std::clamp(lod, 0.0, static_cast<double>(texture_.level_count - 1));
        if (texture_.mipmap_filter_mode == FilterMode::kPoint) {
            return sample_level(level_at(std::floor(lod + 0.5)), coordinate);
        }
        const double fraction = std::floor((lod - std::floor(lod)) * 256.0 + 0.5) / 256.0;
        Texel low = sample_level(level_at(std::floor(lod)), coordinate);
        if (fraction > 0) {
            const Texel high = sample_level(level_at(std::floor(lod) + 1), coordinate);
            for (u32 i = 0; i < 4; ++i) {
                low.channel[i] += fraction * (high.channel[i] - low.channel[i]);
            }
        }
        return low;
    }

    /// tld4: one component of the four texels that linear filtering would blend, in the order
    /// (x0,y1), (x1,y1), (x1,y0), (x0,y0).
    [[nodiscard]] Texel gather(const double* coordinate, u32 component) const {
        const TexelLevel& level = texture_.levels[0];
        const s64 sizes[2] = {level.width, level.height};
        s64 low[2] = {0, 0};
        for (u32 axis = 0; axis < 2; ++axis) {
            double position = coordinate[axis];
            if (texture_.normalized_coordinates) {
                position *= static_cast<double>(sizes[axis]);
            }
            low[axis] = texel_256ths(std::clamp(position, -1e12, 1e12) - 0.5) >> 8;
        }
        static constexpr int kOrder[4][2] = {{0, 1}, {1, 1}, {1, 0}, {0, 0}};
        Texel result;
        for (u32 i = 0; i < 4; ++i) {
            const s64 index[3] = {low[0] + kOrder[i][0], low[1] + kOrder[i][1], 0};
            result.channel[i] = fetch(level, index).channel[component];
        }
        return result;
    }

private:
    [[nodiscard]] AddressMode mode_of(u32 axis) const { return texture_.address_mode[axis]; }
    [[nodiscard]] const TexelLevel& level_at(double level) const {
        const auto index =
            std::min<u64>(static_cast<u64>(std::max(level, 0.0)), texture_.level_count - 1);
        return texture_.levels[index];
    }
    [[nodiscard]] Texel border() const {
        Texel texel;
        const bool none = whole_ || texture_.shape == TextureShape::kLinear1d;
        for (u32 i = 0; i < 4 && !none; ++i) {
            texel.channel[i] = border_value(texture_, i);
        }
        return texel;
    }

    const TextureDescription& texture_;
    Warp& warp_;
    const Inst* inst_;
    u32 lane_;
    u32 layer_;
    u32 dimensions_ = 2;
    bool cube_ = false;
    bool whole_ = false;
};

/// Face and in-face coordinates (0..1) of a direction.
u32 cube_face(const double* direction, double* st) {
    const double x = direction[0], y = direction[1], z = direction[2];
    const double ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z);
    u32 face = 0;
    double s = 0, t = 0, m = 1;
    if (az >= ax && az >= ay) {
        face = z >= 0 ? 4 : 5;
        m = az, s = z >= 0 ? x : -x, t = -y;
    } else if (ay >= ax) {
        face = y >= 0 ? 2 : 3;
        m = ay, s = x, t = y >= 0 ? z : -z;
    } else {
        face = x >= 0 ? 0 : 1;
        m = ax, s = x >= 0 ? -z : z, t = -y;
    }
    // In single precision, as the hardware divides.
    const float scale = m == 0 ? 1.0F : 1.0F / static_cast<float>(m);
    st[0] = static_cast<double>((static_cast<float>(s) * scale + 1.0F) / 2.0F);
    st[1] = static_cast<double>((static_cast<float>(t) * scale + 1.0F) / 2.0F);
    return face;
}

const TextureUnit& unit_of(Warp& warp, const Inst* inst, u32 lane, u64 handle) {
    const TextureUnit* unit = warp.block->launch->services->textures();
    if (unit == nullptr) {
        raise_fault(warp, inst, LaunchError::kIllegalInstruction, lane, handle,
                    "unknown texture or surface object");
    }
    return *unit;
}

double gradient_level(const TextureDescription& texture, Warp& warp, const TextureSite& site,
                      u32 lane) {
    const u32 half = static_cast<u32>(site.gradients.size()) / 2;
    double longest = 0;
    for (u32 side = 0; side < 2; ++side) {
        double sum = 0;
        for (u32 axis = 0; axis < std::min(half, geometry_dimensions(site.geometry)); ++axis) {
            const double size = axis == 0   ? texture.levels[0].width
                                : axis == 1 ? texture.levels[0].height
                                            : texture.levels[0].depth;
            const double d = static_cast<double>(
                std::bit_cast<float>(warp.slot<u32>(site.gradients[side * half + axis])[lane]));
            sum += d * d * (texture.normalized_coordinates ? size * size : 1.0);
        }
        longest = std::max(longest, std::sqrt(sum));
    }
    return longest <= 0 ? 0.0 : std::log2(longest);
}

Texel sample_lane(Warp& warp, const Inst* inst, const TextureSite& site,
                  const TextureDescription& texture, u32 lane) {
    const u32 layer = site.geometry == TextureGeometry::kArray1d ||
                              site.geometry == TextureGeometry::kArray2d ||
                              site.geometry == TextureGeometry::kCubeArray
                          ? warp.slot<u32>(site.layer_slot)[lane]
                          : 0U;
    Sampler sampler(texture, layer, warp, inst, lane);
    double coordinate[3] = {0, 0, 0};
    s64 whole[3] = {0, 0, 0};
    const u32 dimensions = geometry_dimensions(site.geometry);
    for (u32 axis = 0; axis < dimensions && axis < site.coordinates.size(); ++axis) {
        const u32 bits = warp.slot<u32>(site.coordinates[axis])[lane];
        whole[axis] = static_cast<std::int32_t>(bits);
        coordinate[axis] = static_cast<double>(std::bit_cast<float>(bits));
    }
    sampler.set_dimensions(dimensions);
    if (site.integer_coordinates) {
        sampler.set_whole();
        return sampler.fetch(texture.levels[0], whole);
    }
    if (site.geometry == TextureGeometry::kCube || site.geometry == TextureGeometry::kCubeArray) {
        double st[3] = {0, 0, 0};
        const u32 face = cube_face(coordinate, st);
        sampler.set_layer(std::min(layer * 6 + face, std::max(texture.layers, 6U) - 1));
        sampler.set_dimensions(2);
        sampler.set_cube();
        const double level =
            site.level_mode == LevelMode::kLevel
                ? static_cast<double>(std::bit_cast<float>(warp.slot<u32>(site.level_slot)[lane]))
                : 0.0;
        return sampler.sample(st, level, site.level_mode);
    }
    if (site.gather) {
        return sampler.gather(coordinate, site.component);
    }
    double level = 0;
    if (site.level_mode == LevelMode::kLevel) {
        level = static_cast<double>(std::bit_cast<float>(warp.slot<u32>(site.level_slot)[lane]));
    } else if (site.level_mode == LevelMode::kGradient) {
        level = gradient_level(texture, warp, site, lane);
    }
    return sampler.sample(coordinate, level, site.level_mode);
}

const Inst* do_sample(Warp& warp, const Inst* inst) {
    const auto& site = *static_cast<const TextureSite*>(inst->table);
    warp.thread->set_fp_mode(kFpNearest);
    warp.thread->inst = inst;
    const u64* handles = warp.slot<u64>(inst->a);
    u64 known = 0;
    const TextureDescription* texture = nullptr;
    if (sample_plane(warp, inst, site)) {
        return inst + 1;
    }
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const auto lane = static_cast<u32>(__builtin_ctz(mask));
        if (texture == nullptr || handles[lane] != known) {
            known = handles[lane];
            texture = unit_of(warp, inst, lane, known).texture(known);
            if (texture == nullptr) {
                raise_fault(warp, inst, LaunchError::kIllegalInstruction, lane, known,
                            "unknown texture object");
            }
        }
        const Texel texel = sample_lane(warp, inst, site, *texture, lane);
        const bool as_float = texture->format.kind == TexelKind::kFloat ||
                              texture->read_mode == ReadMode::kNormalizedFloat;
        for (u32 i = 0; i < site.results.size(); ++i) {
            warp.slot<u32>(site.results[i])[lane] =
                as_float ? std::bit_cast<u32>(static_cast<float>(texel.channel[i]))
                         : static_cast<u32>(static_cast<s64>(texel.channel[i]));
        }
    }
    return inst + 1;
}

/// Address of a surface access, or 0 if it is outside (after clamping, or for .zero).
u64 surface_address(Warp& warp, const Inst* inst, const TextureSite& site,
                    const SurfaceDescription& surface, Touch touch, u32 lane, u32 bytes) {
    const u32 dimensions = geometry_dimensions(site.geometry);
    const s64 unit = site.formatted ? surface.format.texel_bytes() : 1;
    const s64 width = static_cast<s64>(surface.level.width) * surface.format.texel_bytes();
    const s64 sizes[3] = {width - bytes + 1, surface.level.height, surface.level.depth};
    s64 at[3] = {0, 0, 0};
    for (u32 axis = 0; axis < dimensions && axis < site.coordinates.size(); ++axis) {
        at[axis] = static_cast<std::int32_t>(warp.slot<u32>(site.coordinates[axis])[lane]);
        at[axis] *= axis == 0 ? unit : 1;
        if (at[axis] >= 0 && at[axis] < sizes[axis]) {
            continue;
        }
        if (site.bounds == 0) {
            raise_fault(warp, inst, LaunchError::kIllegalAddress, lane, static_cast<u64>(at[axis]),
                        "surface access out of bounds");
        }
        if (site.bounds == 2) {
            return 0;
        }
        if (sizes[axis] <= 0) {
            return 0;  // Even the first texel is smaller than the access.
        }
        at[axis] = std::clamp<s64>(at[axis], 0, sizes[axis] - 1);
    }
    u64 slice = static_cast<u64>(at[2]);
    if (site.geometry == TextureGeometry::kArray1d || site.geometry == TextureGeometry::kArray2d) {
        slice = warp.slot<u32>(site.layer_slot)[lane];
        if (slice >= surface.layers) {
            if (site.bounds == 0) {
                raise_fault(warp, inst, LaunchError::kIllegalAddress, lane, slice,
                            "surface layer out of bounds");
            }
            if (site.bounds == 2) {
                return 0;
            }
            slice = surface.layers - 1;
        }
    }
    const u64 address = surface.level.base + static_cast<u64>(at[0]) +
                        static_cast<u64>(at[1]) * surface.level.row_pitch_bytes +
                        slice * surface.level.slice_pitch_bytes;
    if (address % std::max(1U, std::min(bytes, 16U)) != 0) {
        raise_fault(warp, inst, LaunchError::kMisalignedAddress, lane, address,
                    "misaligned surface access");
    }
    return flat_address(warp, inst, touch, lane, address, bytes);
}

const SurfaceDescription& surface_of(Warp& warp, const Inst* inst, u32 lane, u64 handle) {
    const SurfaceDescription* found = unit_of(warp, inst, lane, handle).surface(handle);
    if (found == nullptr) {
        raise_fault(warp, inst, LaunchError::kIllegalInstruction, lane, handle,
                    "unknown surface object");
    }
    return *found;
}

/// sust.p: 32-bit values converted to the surface's own format.
void store_formatted(Warp& warp, const TextureSite& site, const SurfaceDescription& surface,
                     u32 lane, u64 address) {
    const u32 bytes = surface.format.channel_bits / 8U;
    for (u32 i = 0; i < surface.format.channels && i < site.results.size(); ++i) {
        u32 bits = warp.slot<u32>(site.results[i])[lane];
        if (surface.format.kind == TexelKind::kFloat && bytes == 2) {
            const u32 payload =
                (bits >> 16 & 0x8000U) | 0x7c00U | std::max(1U, bits >> 13 & 0x3ffU);
            const float value = std::bit_cast<float>(bits);
            bits = std::isnan(value) ? payload
                                     : small_from_double(static_cast<double>(value), kHalf, false,
                                                         SmallRounding::kZero);
        } else if (surface.format.kind == TexelKind::kUnsigned) {
            bits = std::min(bits, ~0U >> (32U - 8 * bytes));
        } else if (surface.format.kind == TexelKind::kSigned) {
            const auto top = static_cast<std::int32_t>(0x7fffffffU >> (32U - 8 * bytes));
            bits = static_cast<u32>(std::clamp(static_cast<std::int32_t>(bits), -top - 1, top));
        }
        std::memcpy(reinterpret_cast<void*>(address + i * bytes), &bits, bytes);
    }
}

template <bool Store>
const Inst* do_surface(Warp& warp, const Inst* inst) {
    const auto& site = *static_cast<const TextureSite*>(inst->table);
    warp.thread->set_fp_mode(kFpNearest);
    warp.thread->inst = inst;
    const u64* handles = warp.slot<u64>(inst->a);
    const u32 element = site.element_bytes;
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const auto lane = static_cast<u32>(__builtin_ctz(mask));
        const SurfaceDescription& surface = surface_of(warp, inst, lane, handles[lane]);
        const u32 bytes = site.formatted ? surface.format.texel_bytes()
                                         : element * static_cast<u32>(site.results.size());
        const u64 address = surface_address(warp, inst, site, surface,
                                            Store ? Touch::kWrite : Touch::kRead, lane, bytes);
        if (Store && site.formatted) {
            if (address != 0) {
                store_formatted(warp, site, surface, lane, address);
            }
            continue;
        }
        for (u32 i = 0; i < site.results.size(); ++i) {
            void* const at = reinterpret_cast<void*>(address + i * element);
            u64 value = 0;
            if (Store) {
                value = element == 8 ? warp.slot<u64>(site.results[i])[lane]
                                     : warp.slot<u32>(site.results[i])[lane];
                if (address != 0) {
                    std::memcpy(at, &value, element);
                }
                continue;
            }
            if (address != 0) {
                std::memcpy(&value, at, element);
            }
            if (element == 8) {
                warp.slot<u64>(site.results[i])[lane] = value;
            } else {
                warp.slot<u32>(site.results[i])[lane] = static_cast<u32>(value);
            }
        }
    }
    return inst + 1;
}

u32 channel_order(u32 channels) { return channels == 1 ? 0 : channels == 2 ? 4 : 9; }

const Inst* do_query(Warp& warp, const Inst* inst) {
    const u64* handles = warp.slot<u64>(inst->a);
    u32* out = warp.slot<u32>(inst->dst);
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const auto lane = static_cast<u32>(__builtin_ctz(mask));
        const TexelLevel* level = nullptr;
        const TexelFormat* format = nullptr;
        u32 layers = 1;
        u32 levels = 1;
        bool normalized = false;
        TextureShape shape = TextureShape::kArray2d;
        if ((inst->flags & 1U) != 0) {
            const SurfaceDescription& surface = surface_of(warp, inst, lane, handles[lane]);
            level = &surface.level;
            format = &surface.format;
            layers = surface.layers;
            shape = surface.shape;
        } else {
            const TextureDescription* texture =
                unit_of(warp, inst, lane, handles[lane]).texture(handles[lane]);
            if (texture == nullptr) {
                raise_fault(warp, inst, LaunchError::kIllegalInstruction, lane, handles[lane],
                            "unknown texture object");
            }
            level = &texture->levels[0];
            format = &texture->format;
            layers = texture->layers;
            shape = texture->shape;
            levels = texture->level_count;
            normalized = texture->normalized_coordinates;
        }
        // Layers count as the next dimension.
        const bool is_line = shape == TextureShape::kArray1d;
        const u32 lines = layers > 1 ? layers : (inst->flags & 1U) != 0 ? 0 : 1;
        const u32 sheets = layers > 1 && !is_line ? layers : 0;
        switch (inst->aux) {
            case 0: out[lane] = level->width; break;
            case 1: out[lane] = is_line ? lines : level->height; break;
            case 2: out[lane] = shape == TextureShape::kArray3d ? level->depth : sheets; break;
            case 3: out[lane] = layers; break;
            case 4: out[lane] = levels; break;
            case 5: out[lane] = normalized ? 1 : 0; break;
            case 6: out[lane] = channel_order(format->channels); break;
            default: out[lane] = format->channel_bits; break;
        }
    }
    return inst + 1;
}

}  // namespace

Handler sample_texture() { return &do_sample; }
Handler load_surface() { return &do_surface<false>; }
Handler store_surface() { return &do_surface<true>; }
Handler query_object() { return &do_query; }

}  // namespace gantry::softgpu::exec
