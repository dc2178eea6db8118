// What tex, tld4, suld, sust and the queries have in common between decoder and handlers.
#pragma once

#include <vector>

#include "host-daemon/softgpu/engine/inst.h"

namespace gantry::softgpu::exec {

enum class TextureGeometry : std::uint8_t {
    k1d,
    k2d,
    k3d,
    kArray1d,
    kArray2d,
    kCube,
    kCubeArray,
};
enum class LevelMode : std::uint8_t { kBase, kLevel, kGradient };

/// Inst::table of texture instructions; Inst::a is the handle's 64-bit slot.
struct TextureSite {
    TextureGeometry geometry = TextureGeometry::k2d;
    LevelMode level_mode = LevelMode::kBase;
    bool integer_coordinates = false;
    bool gather = false;                     ///< tld4
    std::uint32_t component = 0;             ///< tld4.r/g/b/a
    std::uint32_t layer_slot = 0;            ///< Arrays; u32.
    std::vector<std::uint32_t> coordinates;  ///< 32-bit slots
    std::uint32_t level_slot = 0;
    std::vector<std::uint32_t> gradients;  ///< dPdx then dPdy
    std::vector<std::uint32_t> results;    ///< 32-bit slots (surfaces: also 64-bit ones)
    bool half_results = false;             ///< .f16 / .f16x2 results are not supported
    // Surfaces.
    std::uint32_t element_bytes = 4;
    std::uint32_t bounds = 0;  ///< 0 trap, 1 clamp, 2 zero
    bool formatted = false;    ///< sust.p: converts to the surface's format
    // Queries.
    std::uint32_t query = 0;
};

/// Samples a one- or two-dimensional texture without layers, mipmaps or sRGB for a whole warp
/// that holds one handle. False if this is not such a case: then nothing was done.
[[nodiscard]] bool sample_plane(Warp& warp, const Inst* inst, const TextureSite& site);

Handler sample_texture();
Handler load_surface();
Handler store_surface();  ///< values are `results`
Handler query_object();   ///< flags: 1 surface; dst

}  // namespace gantry::softgpu::exec
