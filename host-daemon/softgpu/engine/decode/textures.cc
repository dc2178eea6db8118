// Decoding of tex, tld4, suld, sust, txq and suq. Only objects (64-bit handles in registers) are
// supported, in unified mode; .texref variables and separate samplers are refused.
#include "host-daemon/softgpu/engine/decode/decoder.h"
#include "host-daemon/softgpu/engine/texture_site.h"

namespace gantry::softgpu {

using exec::LevelMode;
using exec::TextureGeometry;
using exec::TextureSite;
using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

namespace {

bool geometry_of(std::string_view name, TextureGeometry& out) {
    static constexpr std::pair<std::string_view, TextureGeometry> kNames[] = {
        {"1d", TextureGeometry::k1d},           {"2d", TextureGeometry::k2d},
        {"3d", TextureGeometry::k3d},           {"a1d", TextureGeometry::kArray1d},
        {"a2d", TextureGeometry::kArray2d},     {"cube", TextureGeometry::kCube},
        {"acube", TextureGeometry::kCubeArray},
    };
    for (const auto& [known, geometry] : kNames) {
        if (known == name) {
            out = geometry;
            return true;
        }
    }
    return false;
}

bool is_array(TextureGeometry geometry) {
    return geometry == TextureGeometry::kArray1d || geometry == TextureGeometry::kArray2d ||
           geometry == TextureGeometry::kCubeArray;
}

}  // namespace

/// The handle's slot and the coordinates of "[object, {x, y}]".
std::uint32_t Decoder::texture_operand(const Operand& operand, TextureSite& site, Type type) {
    if (operand.kind != OperandKind::kAddress || operand.child_count != 2) {
        refuse("only texture and surface objects with one coordinate list are supported");
        return 0;
    }
    const Operand handle = children(operand)[0];
    const Operand list = children(operand)[1];
    if (handle.kind != OperandKind::kRegister) {
        refuse("texture references are not supported: use texture objects");
        return 0;
    }
    std::vector<std::uint32_t> slots;
    matrix_slots(list, type, false, slots);
    if (is_array(site.geometry) && !slots.empty()) {
        site.layer_slot = slots.front();
        slots.erase(slots.begin());
    }
    site.coordinates = std::move(slots);
    return source(handle, Type::kU64);
}

void Decoder::op_tex(Operands operands) {
    auto site = std::make_unique<TextureSite>();
    site->gather = modifiers_.opcode() == "tld4";
    if (site->gather) {
        const std::string_view component = modifiers_.take_any({"r", "g", "b", "a"});
        site->component = component == "g" ? 1 : component == "b" ? 2 : component == "a" ? 3 : 0;
    }
    const std::string_view mode = modifiers_.take_any({"base", "level", "grad"});
    site->level_mode = mode == "level"  ? LevelMode::kLevel
                       : mode == "grad" ? LevelMode::kGradient
                                        : LevelMode::kBase;
    if (!geometry_of(modifiers_.take_front(), site->geometry)) {
        refuse("this texture geometry is not supported by the soft GPU");
        return;
    }
    modifiers_.take("v4");
    const Type result = modifiers_.take_type();
    const Type coordinate = modifiers_.take_type();
    const std::size_t wanted = mode == "level" ? 3 : mode == "grad" ? 4 : 2;
    if (!expect_count(operands, wanted, wanted) || operands[0].kind == OperandKind::kPair ||
        ptx::size_of(result) != 4 || result == Type::kF16x2) {
        refuse("this form of texture access is not supported by the soft GPU");
        return;
    }
    site->integer_coordinates = coordinate == Type::kS32;
    const std::uint32_t handle = texture_operand(operands[1], *site, Type::kB32);
    if (mode == "level") {
        site->level_slot = source(operands[2], Type::kB32);
    } else if (mode == "grad") {
        matrix_slots(operands[2], Type::kB32, false, site->gradients);
        matrix_slots(operands[3], Type::kB32, false, site->gradients);
    }
    matrix_slots(operands[0], Type::kB32, true, site->results);
    if (bad()) {
        return;
    }
    code_.textures.push_back(std::move(site));
    Inst& inst = emit(exec::sample_texture(), {.a = handle});
    inst.table = code_.textures.back().get();
}

void Decoder::op_surface(Operands operands) {
    const bool store = modifiers_.opcode() == "sust";
    auto site = std::make_unique<TextureSite>();
    site->formatted = modifiers_.take_any({"b", "p"}) == "p";
    if (!geometry_of(modifiers_.take_front(), site->geometry)) {
        refuse("this surface geometry is not supported by the soft GPU");
        return;
    }
    take_cache_hints();
    modifiers_.take_any({"v2", "v4"});
    const Type type = modifiers_.take_type();
    const std::string_view bounds = modifiers_.take_any({"trap", "clamp", "zero"});
    site->bounds = bounds == "clamp" ? 1 : bounds == "zero" ? 2 : 0;
    site->element_bytes = ptx::size_of(type);
    if (!expect_count(operands, 2, 2) || site->element_bytes == 0 || site->element_bytes > 8) {
        refuse("this form of surface access is not supported by the soft GPU");
        return;
    }
    const std::uint32_t handle = texture_operand(operands[store ? 0 : 1], *site, Type::kB32);
    matrix_slots(operands[store ? 1 : 0], type, !store, site->results);
    if (bad()) {
        return;
    }
    code_.textures.push_back(std::move(site));
    Inst& inst = emit(store ? exec::store_surface() : exec::load_surface(), {.a = handle});
    inst.table = code_.textures.back().get();
}

void Decoder::op_query(Operands operands) {
    static constexpr std::string_view kNames[] = {"width",
                                                  "height",
                                                  "depth",
                                                  "array_size",
                                                  "num_mipmap_levels",
                                                  "normalized_coords",
                                                  "channel_order",
                                                  "channel_data_type"};
    const std::string_view name = modifiers_.take_front();
    modifiers_.take_type();
    std::uint16_t query = 0xffff;
    for (std::uint16_t i = 0; i < 7; ++i) {
        query = kNames[i] == name ? i : query;
    }
    if (query == 0xffff || !expect_count(operands, 2, 2) ||
        operands[1].kind != OperandKind::kAddress) {
        refuse("this query is not supported by the soft GPU");
        return;
    }
    const std::uint32_t handle = source(children(operands[1])[0], Type::kU64);
    const std::uint32_t dst = destination(operands[0], Type::kB32);
    if (bad()) {
        return;
    }
    Inst& inst = emit(exec::query_object(), {.dst = dst, .a = handle});
    inst.aux = query;
    inst.flags = modifiers_.opcode() == "suq" ? 1 : 0;
}

}  // namespace gantry::softgpu
