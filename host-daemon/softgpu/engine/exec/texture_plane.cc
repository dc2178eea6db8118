// The commonest textures, a warp at a time: one or two dimensions, one level, one handle. The
// arithmetic and its order are those of texture.cc, so the results are the same bits.
#include <bit>
#include <cmath>

#include "host-daemon/softgpu/engine/exec/texel.h"
#include "host-daemon/softgpu/engine/exec/touch.h"
#include "host-daemon/softgpu/engine/run/launch_state.h"
#include "host-daemon/softgpu/engine/texture_site.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s64 = std::int64_t;

constexpr u32 kChannels = 4;

/// What all lanes share, taken out of the description once.
struct Plane {
    Warp& warp;
    const Inst* inst;
    const TextureDescription& texture;
    const TexelLevel& level;
    AddressMode mode[2];
    s64 size[2];
    u32 texel_bytes;
    u32 channel_bytes;
    u32 channels;  ///< Of the texel.
    u32 wanted;    ///< Of the instruction.
    bool normalized;
    bool float32;
    bool linear1d;
};

void read_border(const Plane& plane, double* channel) {
    for (u32 i = 0; i < plane.wanted; ++i) {
        channel[i] = plane.linear1d ? 0.0 : border_value(plane.texture, i);
    }
}

/// The wanted channels of texel (x, y), after the address modes.
void read_texel(const Plane& plane, u32 lane, s64 x, s64 y, double* channel) {
    x = address_texel(x, plane.size[0], plane.mode[0], plane.normalized);
    y = address_texel(y, plane.size[1], plane.mode[1], plane.normalized);
    if (x < 0 || y < 0) {
        read_border(plane, channel);
        return;
    }
    // The object may have outlived its memory.
    const auto* at = reinterpret_cast<const std::uint8_t*>(
        flat_address(plane.warp, plane.inst, Touch::kRead, lane,
                     plane.level.base + static_cast<u64>(x) * plane.texel_bytes +
                         static_cast<u64>(y) * plane.level.row_pitch_bytes,
                     plane.texel_bytes));
    for (u32 i = 0; i < plane.wanted; ++i, at += plane.channel_bytes) {
        if (i >= plane.channels) {
            channel[i] = 0.0;
        } else if (plane.float32) {
            float value = 0;
            std::memcpy(&value, at, sizeof value);
            channel[i] = static_cast<double>(value);
        } else {
            channel[i] = channel_value(at, plane.texture.format,
                                       plane.texture.read_mode == ReadMode::kNormalizedFloat);
        }
    }
}

/// A float coordinate in texels.
double position(const Plane& plane, u32 axis, u32 bits) {
    double value = static_cast<double>(std::bit_cast<float>(bits));
    if (plane.normalized) {
        value *= static_cast<double>(plane.size[axis]);
    }
    // Far outside, only the direction matters; NaN reads texel 0.
    return std::isnan(value) ? 0.0 : std::clamp(value, -1e15, 1e15);
}

struct Place {
    s64 low;
    double weight;  ///< Of the upper neighbour; 8 bits of fraction.
};

Place blend_place(double at) {
    const double shifted = at - 0.5;
    const s64 low = whole_part(shifted);
    const double fraction = shifted - static_cast<double>(low);
    return {low, static_cast<double>(whole_part(fraction * 256.0 + 0.5)) / 256.0};
}

void blend(const Plane& plane, u32 lane, const Place& x, const Place& y, u32 rows, double* sum) {
    for (u32 i = 0; i < plane.wanted; ++i) {
        sum[i] = 0;
    }
    for (u32 corner = 0; corner < 2 * rows; ++corner) {
        double part = (corner & 1U) != 0 ? x.weight : 1.0 - x.weight;
        if (rows == 2) {
            part *= corner >= 2 ? y.weight : 1.0 - y.weight;
        }
        if (part != 0.0) {
            double channel[kChannels];
            read_texel(plane, lane, x.low + (corner & 1U), y.low + (corner >> 1U), channel);
            for (u32 i = 0; i < plane.wanted; ++i) {
                sum[i] += part * channel[i];
            }
        }
    }
}

const TextureDescription* one_texture(const Warp& warp, const Inst* inst) {
    const u64* handles = const_cast<Warp&>(warp).slot<u64>(inst->a);
    const u64 first = handles[static_cast<u32>(__builtin_ctz(warp.mask))];
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        if (handles[static_cast<u32>(__builtin_ctz(mask))] != first) {
            return nullptr;
        }
    }
    const TextureUnit* const unit = warp.block->launch->services->textures();
    return unit == nullptr ? nullptr : unit->texture(first);
}

}  // namespace

bool sample_plane(Warp& warp, const Inst* inst, const TextureSite& site) {
    const u32 dimensions = site.geometry == TextureGeometry::k1d   ? 1
                           : site.geometry == TextureGeometry::k2d ? 2
                                                                   : 0;
    if (warp.mask == 0 || dimensions == 0 || site.gather || site.coordinates.size() < dimensions ||
        site.results.size() > kChannels) {
        return false;
    }
    const TextureDescription* const texture = one_texture(warp, inst);
    if (texture == nullptr || texture->level_count > 1 || texture->srgb || texture->layers > 1) {
        return false;
    }
    const bool linear1d = texture->shape == TextureShape::kLinear1d;
    const TexelLevel& level = texture->levels[0];
    const AddressMode border = AddressMode::kBorder;
    // A one-dimensional fetch stays in row 0.
    const Plane plane{
        warp,
        inst,
        *texture,
        level,
        {linear1d ? border : texture->address_mode[0],
         linear1d ? border : texture->address_mode[1]},
        {level.width, dimensions == 2 ? s64{level.height} : 1},
        texture->format.texel_bytes(),
        texture->format.channel_bits / 8U,
        texture->format.channels,
        static_cast<u32>(site.results.size()),
        texture->normalized_coordinates,
        texture->format.kind == TexelKind::kFloat && texture->format.channel_bits == 32,
        linear1d};
    const bool as_float = texture->format.kind == TexelKind::kFloat ||
                          texture->read_mode == ReadMode::kNormalizedFloat;
    const bool linear = !site.integer_coordinates && texture->filter_mode == FilterMode::kLinear;
    const u32* const xs = warp.slot<u32>(site.coordinates[0]);
    const u32* const ys = dimensions == 2 ? warp.slot<u32>(site.coordinates[1]) : nullptr;
    u32* out[kChannels] = {};
    for (u32 i = 0; i < plane.wanted; ++i) {
        out[i] = warp.slot<u32>(site.results[i]);
    }
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const auto lane = static_cast<u32>(__builtin_ctz(mask));
        double channel[kChannels];
        if (site.integer_coordinates) {
            const s64 x = static_cast<std::int32_t>(xs[lane]);
            const s64 y = ys != nullptr ? static_cast<std::int32_t>(ys[lane]) : 0;
            if (x >= 0 && y >= 0 && x < plane.size[0] && y < plane.size[1]) {
                read_texel(plane, lane, x, y, channel);
            } else {
                std::fill_n(channel, kChannels, 0.0);  // Whatever the address mode is.
            }
        } else if (linear) {
            const Place x = blend_place(position(plane, 0, xs[lane]));
            const Place y = ys != nullptr ? blend_place(position(plane, 1, ys[lane])) : Place{};
            blend(plane, lane, x, y, dimensions, channel);
        } else {
            read_texel(plane, lane, whole_part(position(plane, 0, xs[lane])),
                       ys != nullptr ? whole_part(position(plane, 1, ys[lane])) : 0, channel);
        }
        for (u32 i = 0; i < plane.wanted; ++i) {
            out[i][lane] = as_float ? std::bit_cast<u32>(static_cast<float>(channel[i]))
                                    : static_cast<u32>(static_cast<s64>(channel[i]));
        }
    }
    return true;
}

}  // namespace gantry::softgpu::exec
