// Shuffles, votes, match, redux, elect; matrix instructions; textures and surfaces.
#include <bit>
#include <map>

#include "tests/unit/softgpu_engine/fixture.h"

namespace gantry::softgpu::test {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

TEST(SoftgpuWarp, ShuffleModesAndSegments) {
    const Lanes in(32);
    const auto run = [&](const std::string& op) {
        return evaluate("add.u32 %r4, %r9, 100; " + op, "%r0", in);
    };
    const Lanes up = run("shfl.sync.up.b32 %r0|%p1, %r4, 3, 0, -1; @!%p1 mov.u32 %r0, 7;");
    const Lanes down = run("shfl.sync.down.b32 %r0, %r4, 3, 0x181f, -1;");  // segments of 8
    const Lanes idx = run("shfl.sync.idx.b32 %r0, %r4, 2, 0x101f, -1;");    // segments of 16
    for (u32 i = 0; i < 32; ++i) {
        EXPECT_EQ(up[i], i < 3 ? 7U : i + 97);
        EXPECT_EQ(down[i], (i & 7U) + 3 < 8 ? i + 103 : i + 100);
        EXPECT_EQ(idx[i], (i & 16U) + 102);
    }
}

TEST(SoftgpuWarp, VotesAndMatches) {
    const Lanes in(32);
    EXPECT_EQ(evaluate("setp.lt.u32 %p1, %r9, 5; vote.sync.any.pred %p0, %p1, -1;", "%p0", in)[20],
              1U);
    EXPECT_EQ(evaluate("setp.lt.u32 %p1, %r9, 5; vote.sync.all.pred %p0, %p1, -1;", "%p0", in)[0],
              0U);
    EXPECT_EQ(evaluate("setp.lt.u32 %p1, %r9, 5; vote.sync.uni.pred %p0, !%p1, -1;", "%p0", in)[0],
              0U);
    const Lanes match =
        evaluate("rem.u32 %r4, %r9, 3; match.any.sync.b32 %r0, %r4, -1;", "%r0", in);
    for (u32 i = 0; i < 32; ++i) {
        u32 expected = 0;
        for (u32 j = i % 3; j < 32; j += 3) {
            expected |= 1U << j;
        }
        EXPECT_EQ(match[i], expected);
    }
    EXPECT_EQ(evaluate("mov.u64 %rd4, 5; match.all.sync.b64 %r0|%p1, %rd4, -1;", "%r0", in)[3],
              0xffffffffU);
    EXPECT_EQ(evaluate("match.all.sync.b32 %r0|%p0, %r9, -1;", "%p0", in)[3], 0U);
    EXPECT_EQ(evaluate("redux.sync.add.s32 %r0, %r9, -1;", "%r0", in)[9], 496U);
    EXPECT_EQ(evaluate("sub.u32 %r4, %r9, 9; redux.sync.min.s32 %r0, %r4, -1;", "%r0", in)[9],
              static_cast<u32>(-9));
    const std::string as_float = "cvt.rn.f32.u32 %r4, %r9; redux.sync.";
    EXPECT_EQ(evaluate(as_float + "max.f32 %r0, %r4, -1;", "%r0", in)[9], f32(31));
    EXPECT_EQ(evaluate(as_float + "min.f32 %r0, %r4, -1;", "%r0", in)[9], f32(0));
    EXPECT_FALSE(load({".visible .entry k() { .reg .b32 %r<2>; "
                       "redux.sync.add.f32 %r0, %r1, -1; ret; }"})
                     .ok());
    EXPECT_EQ(evaluate("elect.sync %r0|%p0, 0xfff0;", "%p0", in)[4], 1U);
    EXPECT_EQ(evaluate("setp.gt.u32 %p1, %r9, 29; mov.u32 %r0, 0; @%p1 activemask.b32 %r0;", "%r0",
                       in)[31],
              0xc0000000U);
}

float half(u32 bits) {  // test-side decoding of normal halves
    return std::ldexp(1.0F + static_cast<float>(bits & 1023) / 1024.0F,
                      static_cast<int>((bits >> 10) & 31) - 15) *
           ((bits & 0x8000) != 0 ? -1.0F : 1.0F);
}

TEST(SoftgpuWarp, MatrixMultiplyF16) {
    // Each lane fills its fragment through ldmatrix from row-major tiles in shared memory.
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pd) {
.reg .b32 %r<40>; .reg .b64 %rd<9>; .reg .b32 %f<8>;
.shared .align 16 .b8 sa[512]; .shared .align 16 .b8 sb[256];
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd2, [pb]; ld.param.u64 %rd3, [pd];
mov.u32 %r1, %tid.x;
shl.b32 %r2, %r1, 4; mul.wide.u32 %rd4, %r1, 16; add.u64 %rd5, %rd1, %rd4;
ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd5];
mov.u32 %r3, sa; add.u32 %r8, %r3, %r2; st.shared.v4.u32 [%r8], {%r4, %r5, %r6, %r7};
mul.wide.u32 %rd4, %r1, 8; add.u64 %rd5, %rd2, %rd4; ld.global.v2.u32 {%r4, %r5}, [%rd5];
shl.b32 %r9, %r1, 3; mov.u32 %r10, sb; add.u32 %r11, %r10, %r9; st.shared.v2.u32 [%r11], {%r4, %r5};
bar.sync 0;
// A is 16 x 16: lane l gives row l % 16, column half l / 16.
and.b32 %r12, %r1, 15; shl.b32 %r12, %r12, 5; shr.u32 %r13, %r1, 4; shl.b32 %r13, %r13, 4;
add.u32 %r12, %r12, %r13; add.u32 %r12, %r12, %r3;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r12];
// B is 16 x 8 row-major: transposed rows.
and.b32 %r14, %r1, 15; shl.b32 %r14, %r14, 4; add.u32 %r14, %r14, %r10;
ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r24, %r25}, [%r14];
mov.f32 %f0, 0f3F800000;
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r20, %r21, %r22, %r23},
 {%r24, %r25}, {%f0, %f0, %f0, %f0};
shr.u32 %r30, %r1, 2; and.b32 %r31, %r1, 3; shl.b32 %r30, %r30, 5; shl.b32 %r31, %r31, 3;
add.u32 %r30, %r30, %r31; cvt.u64.u32 %rd6, %r30; add.u64 %rd6, %rd6, %rd3;
st.global.v2.f32 [%rd6], {%f1, %f2}; st.global.v2.f32 [%rd6+256], {%f3, %f4};
ret; })");
    alignas(16) static std::uint16_t a[256];
    alignas(16) static std::uint16_t b[128];
    alignas(16) static float d[128];
    for (u32 i = 0; i < 256; ++i) {
        a[i] = static_cast<std::uint16_t>(0x3800 + (i * 37) % 1024 + (i % 3 == 0 ? 0x8000 : 0));
        b[i % 128] = static_cast<std::uint16_t>(0x3800 + (i * 53) % 1024);
    }
    Params params;
    params.pointer(a).pointer(b).pointer(d);
    const LaunchStatus status = launch(loaded, "k", {}, {32, 1, 1}, params);
    ASSERT_TRUE(status.ok()) << status.text;
    for (u32 row = 0; row < 16; ++row) {
        for (u32 column = 0; column < 8; ++column) {
            float sum = 1.0F;
            for (u32 k = 0; k < 16; ++k) {
                sum += half(a[row * 16 + k]) * half(b[k * 8 + column]);
            }
            EXPECT_NEAR(d[row * 8 + column], sum, 1e-4) << row << ' ' << column;
        }
    }
}

TEST(SoftgpuWarp, MatricesMayReplaceTheirAddresses) {
    const Lanes got = evaluate(
        "mov.u32 %r4, scratch; shl.b32 %r5, %r9, 4; add.u32 %r4, %r4, %r5;"
        "st.shared.v4.u32 [%r4], {%r9, %r9, %r9, %r9}; bar.sync 0;"
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r4];"
        "shl.b32 %r5, %r5, 8; shl.b32 %r6, %r6, 16; shl.b32 %r7, %r7, 24;"
        "or.b32 %r0, %r4, %r5; or.b32 %r0, %r0, %r6; or.b32 %r0, %r0, %r7;",
        "%r0", Lanes(32));
    for (u32 i = 0; i < 32; ++i) {
        EXPECT_EQ(got[i], 0x18100800U + 0x01010101U * (i / 4));
    }
}

TEST(SoftgpuWarp, WmmaIntegers) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pd) {
.reg .b32 %r<40>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd2, [pb]; ld.param.u64 %rd3, [pd]; mov.u32 %r1, 16;
wmma.load.a.sync.aligned.row.m16n16k16.global.s8 {%r2, %r3}, [%rd1], %r1;
wmma.load.b.sync.aligned.col.m16n16k16.global.s8 {%r4, %r5}, [%rd2], %r1;
mov.u32 %r6, 3;
wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.s32
 {%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17}, {%r2, %r3}, {%r4, %r5},
 {%r6, %r6, %r6, %r6, %r6, %r6, %r6, %r6};
wmma.store.d.sync.aligned.row.m16n16k16.global.s32 [%rd3],
 {%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17}, %r1;
ret; })");
    std::vector<std::int8_t> a(256);
    std::vector<std::int8_t> b(256);
    std::vector<std::int32_t> d(256);
    for (int i = 0; i < 256; ++i) {
        a[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(i * 7);
        b[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(i * 11 + 1);
    }
    const LaunchStatus status =
        launch(loaded, "k", {}, {32, 1, 1}, Params().pointer(a).pointer(b).pointer(d));
    ASSERT_TRUE(status.ok()) << status.text;
    for (std::size_t row = 0; row < 16; ++row) {
        for (std::size_t column = 0; column < 16; ++column) {
            int sum = 3;
            for (std::size_t k = 0; k < 16; ++k) {
                sum += a[row * 16 + k] * b[column * 16 + k];
            }
            EXPECT_EQ(d[row * 16 + column], sum);
        }
    }
}

class OneTexture : public TextureUnit {
public:
    const TextureDescription* texture(u64 handle) const override {
        return handle == 7 ? &description : nullptr;
    }
    const SurfaceDescription* surface(u64 handle) const override {
        return handle == 9 ? &plane : nullptr;
    }
    TextureDescription description;
    SurfaceDescription plane;
};

TEST(SoftgpuWarp, TexturesFilterAndClamp) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 h, .param .u64 px, .param .u64 po) {
.reg .b32 %f<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [h]; ld.param.u64 %rd2, [px]; ld.param.u64 %rd3, [po];
mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, 8; add.u64 %rd2, %rd2, %rd4;
mul.wide.u32 %rd5, %r1, 4; add.u64 %rd3, %rd3, %rd5;
ld.global.v2.f32 {%f1, %f2}, [%rd2];
tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd1, {%f1, %f2}];
st.global.f32 [%rd3], %f3; ret; })");
    std::vector<float> texels{0, 10, 20, 30, 100, 110, 120, 130};
    OneTexture unit;
    unit.description.levels[0] = {reinterpret_cast<u64>(texels.data()), 4, 2, 1, 16, 32};
    TestServices services;
    services.unit = &unit;
    services.lent.add(reinterpret_cast<u64>(texels.data()), texels.size() * sizeof(float));
    std::vector<float> at{0.5F, 0.5F, 2.5F, 1.5F, 1.0F, 0.5F, 1.5F, 1.0F, -5.0F, 0.5F, 9.0F, 9.0F};
    std::vector<float> out(6);
    Params params;
    params.add(u64{7}).pointer(at).pointer(out);
    ASSERT_TRUE(launch(loaded, "k", {}, {6, 1, 1}, params, services).ok());
    EXPECT_THAT(out, ::testing::ElementsAre(0, 120, 10, 110, 0, 130));
    unit.description.filter_mode = FilterMode::kLinear;
    ASSERT_TRUE(launch(loaded, "k", {}, {6, 1, 1}, params, services).ok());
    EXPECT_THAT(out, ::testing::ElementsAre(0, 120, 5, 60, 0, 130));
    params = Params().add(u64{8}).pointer(at).pointer(out);
    EXPECT_EQ(launch(loaded, "k", {}, {6, 1, 1}, params, services).error,
              LaunchError::kIllegalInstruction);
}

TEST(SoftgpuWarp, PlanesAndLayersSampleAlike) {
    // tex.2d takes a whole warp at a time, tex.a2d lane by lane: of one layer they read the same.
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 h, .param .u64 px, .param .u64 po) {
.reg .b32 %f<12>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [h]; ld.param.u64 %rd2, [px]; ld.param.u64 %rd3, [po];
mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, 8; add.u64 %rd2, %rd2, %rd4;
mul.wide.u32 %rd5, %r1, 32; add.u64 %rd3, %rd3, %rd5; mov.u32 %r2, 0;
ld.global.v2.f32 {%f1, %f2}, [%rd2];
tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd1, {%f1, %f2}];
tex.a2d.v4.f32.f32 {%f7, %f8, %f9, %f10}, [%rd1, {%r2, %f1, %f2, %f2}];
st.global.v4.f32 [%rd3], {%f3, %f4, %f5, %f6};
st.global.v4.f32 [%rd3+16], {%f7, %f8, %f9, %f10}; ret; })");
    std::vector<float> texels(8 * 8 * 4);
    for (u32 i = 0; i < texels.size(); ++i) {
        texels[i] = std::sin(static_cast<float>(i)) * 100;
    }
    std::vector<float> at;
    for (u32 i = 0; i < 64; ++i) {
        at.push_back(std::sin(static_cast<float>(i) * 1.7F) * (i % 3 == 0 ? 20.0F : 1.5F));
        at.push_back(std::cos(static_cast<float>(i) * 0.9F) * 9);
    }
    at[10] = std::nanf("");
    at[13] = -1e30F;
    OneTexture unit;
    TestServices services;
    services.unit = &unit;
    services.lent.add(reinterpret_cast<u64>(texels.data()), texels.size() * sizeof(float));
    unit.description.border_color = {0.5F, 1.5F, 2.5F, 3.5F};
    const TexelFormat formats[] = {{TexelKind::kFloat, 32, 1},
                                   {TexelKind::kFloat, 32, 4},
                                   {TexelKind::kFloat, 16, 2},
                                   {TexelKind::kUnsigned, 8, 4},
                                   {TexelKind::kSigned, 16, 2}};
    unsigned compared = 0;
    for (const TexelFormat& format : formats) {
        for (const AddressMode mode : {AddressMode::kWrap, AddressMode::kClamp,
                                       AddressMode::kMirror, AddressMode::kBorder}) {
            for (const unsigned choice : {0U, 1U, 2U, 3U}) {
                TextureDescription& texture = unit.description;
                texture.format = format;
                texture.levels[0] = {reinterpret_cast<u64>(texels.data()),
                                     8,
                                     7,
                                     1,
                                     8 * format.texel_bytes(),
                                     64 * format.texel_bytes()};
                texture.address_mode = {mode, mode, mode};
                texture.normalized_coordinates = (choice & 1U) != 0;
                texture.filter_mode = (choice & 2U) != 0 ? FilterMode::kLinear : FilterMode::kPoint;
                texture.read_mode = ReadMode::kNormalizedFloat;
                std::vector<u32> out(64 * 8);
                Params params;
                params.add(u64{7}).pointer(at).pointer(out);
                ASSERT_TRUE(launch(loaded, "k", {}, {64, 1, 1}, params, services).ok());
                for (u32 i = 0; i < out.size(); i += 8) {
                    for (u32 channel = 0; channel < 4; ++channel) {
                        ASSERT_EQ(out[i + channel], out[i + 4 + channel])
                            << "lane " << i / 8 << " channel " << channel << " choice " << choice;
                        ++compared;
                    }
                }
            }
        }
    }
    EXPECT_EQ(compared, 5U * 4 * 4 * 64 * 4);
}

TEST(SoftgpuWarp, SurfacesReadAndWrite) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 h) { .reg .b32 %r<9>; .reg .b64 %rd<3>;
ld.param.u64 %rd1, [h]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, 1;
suld.b.2d.b32.trap %r4, [%rd1, {%r2, 0}]; add.u32 %r4, %r4, 5;
sust.b.2d.b32.trap [%rd1, {%r2, %r3}], %r4; 
suld.b.2d.b32.zero %r5, [%rd1, {%r2, 9}]; sust.b.2d.b32.zero [%rd1, {%r2, 9}], %r5; ret; })");
    std::vector<u32> texels{1, 2, 3, 4, 0, 0, 0, 0};
    OneTexture unit;
    unit.plane.format = {TexelKind::kUnsigned, 32, 1};
    unit.plane.level = {reinterpret_cast<u64>(texels.data()), 4, 2, 1, 16, 32};
    TestServices services;
    services.unit = &unit;
    services.lent.add(reinterpret_cast<u64>(texels.data()), texels.size() * sizeof(u32));
    ASSERT_TRUE(launch(loaded, "k", {}, {4, 1, 1}, Params().add(u64{9}), services).ok());
    EXPECT_THAT(texels, ::testing::ElementsAre(1U, 2U, 3U, 4U, 6U, 7U, 8U, 9U));
    EXPECT_EQ(launch(loaded, "k", {}, {5, 1, 1}, Params().add(u64{9}), services).error,
              LaunchError::kIllegalAddress);
    EXPECT_EQ(launch(loaded, "k", {}, {4, 1, 1}, Params().add(u64{8}), services).error,
              LaunchError::kIllegalInstruction)
        << "there is no such surface";
}

TEST(SoftgpuWarp, AClampedAccessThatIsLargerThanTheSurfaceReadsAndWritesNothing) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 h, .param .u64 po) { .reg .b32 %r<9>; .reg .b64 %rd<5>;
ld.param.u64 %rd1, [h]; ld.param.u64 %rd2, [po]; mov.u32 %r1, 0; mov.u64 %rd3, 77;
suld.b.2d.b64.clamp %rd4, [%rd1, {%r1, %r1}]; st.global.u64 [%rd2], %rd4;
sust.b.2d.b64.clamp [%rd1, {%r1, %r1}], %rd3; ret; })");
    std::vector<u32> texels(4, 0xabcdU);
    OneTexture unit;
    unit.plane.format = {TexelKind::kUnsigned, 32, 1};
    unit.plane.level = {reinterpret_cast<u64>(texels.data()), 1, 1, 1, 16, 16};
    TestServices services;
    services.unit = &unit;
    services.lent.add(reinterpret_cast<u64>(texels.data()), texels.size() * sizeof(u32));
    std::vector<u64> out(1, 99);
    Params params;
    params.add(u64{9}).pointer(out);
    const LaunchStatus status = launch(loaded, "k", {}, {1, 1, 1}, params, services);
    ASSERT_TRUE(status.ok()) << status.text;
    EXPECT_EQ(out[0], 0U);
    EXPECT_THAT(texels, ::testing::Each(0xabcdU));
}

}  // namespace
}  // namespace gantry::softgpu::test
