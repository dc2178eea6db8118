// What a texture or surface object is to the engine: a description of texels in memory. The
// driver layer creates objects and hands out handles; the engine asks for the description of a
// handle once per instruction and samples it itself.
//
// Invariant: a description stays valid and unchanged while a launch that may use it runs.
// Failure: an unknown handle (nullptr) ends the launch with LaunchError::kIllegalInstruction.
#pragma once

#include <array>
#include <cstdint>

namespace gantry::softgpu {

enum class TexelKind : std::uint8_t { kUnsigned, kSigned, kFloat };
enum class TextureShape : std::uint8_t { kLinear1d, kArray1d, kArray2d, kArray3d, kCubemap };
enum class AddressMode : std::uint8_t { kWrap = 0, kClamp = 1, kMirror = 2, kBorder = 3 };
enum class FilterMode : std::uint8_t { kPoint = 0, kLinear = 1 };
enum class ReadMode : std::uint8_t { kElement, kNormalizedFloat };

/// One mipmap level of texels. Texel (x, y, layer or z) lies at
/// base + x * texel bytes + y * row_pitch_bytes + z * slice_pitch_bytes.
struct TexelLevel {
    std::uint64_t base = 0;  ///< As a kernel would name it: every texel is looked up (reach.h).
    std::uint32_t width = 0;
    std::uint32_t height = 1;  ///< 1 for one-dimensional textures.
    std::uint32_t depth = 1;   ///< 1 unless three-dimensional.
    std::uint64_t row_pitch_bytes = 0;
    std::uint64_t slice_pitch_bytes = 0;  ///< Between depth slices, layers or cube faces.
};

struct TexelFormat {
    TexelKind kind = TexelKind::kFloat;
    std::uint8_t channel_bits = 32;  ///< 8, 16 or 32.
    std::uint8_t channels = 1;       ///< 1, 2 or 4.
    [[nodiscard]] std::uint32_t texel_bytes() const { return channel_bits * channels / 8U; }
};

inline constexpr int kMaxMipLevels = 16;

struct TextureDescription {
    TextureShape shape = TextureShape::kArray2d;
    TexelFormat format;
    std::uint32_t layers = 1;  ///< Layered textures; cubemap arrays count faces (6 per cube).
    std::uint32_t level_count = 1;
    std::array<TexelLevel, kMaxMipLevels> levels{};
    std::array<AddressMode, 3> address_mode{AddressMode::kClamp, AddressMode::kClamp,
                                            AddressMode::kClamp};
    FilterMode filter_mode = FilterMode::kPoint;
    FilterMode mipmap_filter_mode = FilterMode::kPoint;
    ReadMode read_mode = ReadMode::kElement;
    bool normalized_coordinates = false;
    bool srgb = false;
    float mipmap_level_bias = 0.0F;
    float min_mipmap_level_clamp = 0.0F;
    float max_mipmap_level_clamp = 0.0F;
    std::array<float, 4> border_color{};
};

/// A surface is one level of an array, addressed in bytes along x.
struct SurfaceDescription {
    TextureShape shape = TextureShape::kArray2d;
    TexelFormat format;
    std::uint32_t layers = 1;
    TexelLevel level;
};

/// Finds objects by the handle a kernel holds. Called from engine threads, concurrently.
class TextureUnit {
public:
    virtual ~TextureUnit() = default;
    [[nodiscard]] virtual const TextureDescription* texture(std::uint64_t handle) const = 0;
    [[nodiscard]] virtual const SurfaceDescription* surface(std::uint64_t handle) const = 0;
};

}  // namespace gantry::softgpu
