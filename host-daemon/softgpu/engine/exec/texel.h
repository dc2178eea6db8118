// Reading one texel, and the address of one: what the two ways of sampling have in common.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "host-daemon/softgpu/engine/numbers.h"
#include "host-daemon/softgpu/engine/texture.h"

namespace gantry::softgpu::exec {

/// Rounded down; |value| at most 1e15. std::floor is a library call at the baseline's CPU level.
inline std::int64_t whole_part(double value) {
    const auto truncated = static_cast<std::int64_t>(value);
    return truncated - (value < static_cast<double>(truncated) ? 1 : 0);
}

/// One channel at `at` as a float (read mode) or as the number that an element read gives.
inline double channel_value(const std::uint8_t* at, const TexelFormat& format, bool normalized) {
    std::uint32_t bits = 0;
    switch (format.channel_bits) {
        case 8: bits = *at; break;
        case 16: {
            std::uint16_t half = 0;
            std::memcpy(&half, at, sizeof half);
            bits = half;
            break;
        }
        default: std::memcpy(&bits, at, sizeof bits); break;
    }
    if (format.kind == TexelKind::kFloat) {
        return format.channel_bits == 16
                   ? static_cast<double>(float_from_half(static_cast<std::uint16_t>(bits)))
                   : static_cast<double>(std::bit_cast<float>(bits));
    }
    const auto top = static_cast<double>((std::uint64_t{1} << format.channel_bits) - 1);
    if (format.kind == TexelKind::kUnsigned) {
        return normalized ? bits / top : bits;
    }
    const std::uint32_t shift = 32U - format.channel_bits;
    const double value = static_cast<std::int32_t>(bits << shift) >> shift;
    return normalized ? std::max(value / std::floor(top / 2), -1.0) : value;
}

/// The border's colour as a texel of the texture's format would hold it.
inline double border_value(const TextureDescription& texture, std::uint32_t channel) {
    const float colour = texture.border_color[channel];
    const TexelFormat& format = texture.format;
    if (channel >= format.channels) {
        return 0.0;
    }
    if (format.kind == TexelKind::kFloat) {
        return static_cast<double>(colour);
    }
    const bool is_signed = format.kind == TexelKind::kSigned;
    if (texture.read_mode == ReadMode::kElement) {  // The colour's bits, cut to the channel's.
        const auto bits = std::bit_cast<std::uint32_t>(colour) << (32U - format.channel_bits);
        return is_signed ? static_cast<std::int32_t>(bits) >> (32U - format.channel_bits)
                         : bits >> (32U - format.channel_bits);
    }
    const auto top =
        static_cast<double>((1U << (format.channel_bits - (is_signed ? 1U : 0U))) - 1U);
    const double within = std::clamp(static_cast<double>(colour), is_signed ? -1.0 : 0.0, 1.0);
    return static_cast<double>(-whole_part(0.5 - within * top)) / top;  // A half rounds down.
}

/// A coordinate's place among texels, in the 256ths that the hardware keeps of it.
inline std::int64_t texel_256ths(double position) { return whole_part(position * 256.0 + 0.5); }

/// The texel index for a coordinate, or -1 for the border.
inline std::int64_t address_texel(std::int64_t index, std::int64_t size, AddressMode mode,
                                  bool normalized) {
    if (index >= 0 && index < size) {
        return index;
    }
    switch (mode) {
        case AddressMode::kBorder: return -1;
        case AddressMode::kWrap:
            if (normalized) {
                return ((index % size) + size) % size;
            }
            break;
        case AddressMode::kMirror:
            if (normalized) {
                const std::int64_t twice = ((index % (2 * size)) + 2 * size) % (2 * size);
                return twice < size ? twice : 2 * size - 1 - twice;
            }
            break;
        default: break;
    }
    return std::clamp<std::int64_t>(index, 0, size - 1);
}

}  // namespace gantry::softgpu::exec
