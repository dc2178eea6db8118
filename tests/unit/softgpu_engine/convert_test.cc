// cvt between all kinds of numbers.
#include <cfenv>
#include <cmath>
#include <limits>

#include "tests/unit/softgpu_engine/fixture.h"

namespace gantry::softgpu::test {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s64 = std::int64_t;

template <typename To>
u64 saturated(float value, float (*round)(float)) {
    if (std::isnan(value)) {
        return sizeof(To) == 8 ? u64{1} << 63 : 0;
    }
    const long double whole = round(value);
    const long double low = std::numeric_limits<To>::min();
    const long double high = std::numeric_limits<To>::max();
    const To result = whole < low    ? std::numeric_limits<To>::min()
                      : whole > high ? std::numeric_limits<To>::max()
                                     : static_cast<To>(whole);
    return static_cast<std::make_unsigned_t<To>>(result);
}

template <typename To>
void check_to_integer(const std::string& type, const std::string& out) {
    Lanes in = sample_floats(1);
    in.push_back(0x7fc00000);
    in.push_back(f32(2147483648.0F));
    in.push_back(f32(-2147483904.0F));
    in.push_back(f32(1.8446744e19F));
    const std::pair<const char*, float (*)(float)> modes[] = {
        {"rni", [](float x) { return std::nearbyint(x); }},
        {"rzi", [](float x) { return std::trunc(x); }},
        {"rmi", [](float x) { return std::floor(x); }},
        {"rpi", [](float x) { return std::ceil(x); }}};
    for (const auto& [mode, round] : modes) {
        const Lanes got =
            evaluate("cvt." + std::string(mode) + "." + type + ".f32 " + out + ", %r1;", out, in);
        for (std::size_t i = 0; i < in.size(); ++i) {
            ASSERT_EQ(got[i], saturated<To>(as_f32(in[i]), round))
                << type << ' ' << mode << ' ' << as_f32(in[i]);
        }
    }
}

TEST(SoftgpuConvert, FloatToIntegerSaturates) {
    check_to_integer<std::int32_t>("s32", "%r0");
    check_to_integer<std::uint32_t>("u32", "%r0");
    check_to_integer<std::int64_t>("s64", "%rd0");
    check_to_integer<std::uint64_t>("u64", "%rd0");
}

TEST(SoftgpuConvert, WhatIsNoNumberAsAnInteger) {
    const u64 wide = 0x7ff8000000000000;
    const u64 narrow = 0x7fc00000;
    const auto from = [](const std::string& types, const std::string& in, u64 bits) {
        const std::string out = types.find("16.") != std::string::npos ? "%rs0" : "%r0";
        return evaluate("cvt.rni." + types + " " + out + ", " + in + ";", out, {bits})[0];
    };
    EXPECT_EQ(from("s8.f64", "%rd1", wide) & 0xff, 0x80U);
    EXPECT_EQ(from("u8.f64", "%rd1", wide), 0x80U);
    EXPECT_EQ(from("s16.f64", "%rd1", wide), 0x8000U);
    EXPECT_EQ(from("u16.f64", "%rd1", wide), 0x8000U);
    EXPECT_EQ(from("s32.f64", "%rd1", wide), 0x80000000U);
    EXPECT_EQ(from("u32.f64", "%rd1", wide), 0x80000000U);
    EXPECT_EQ(from("u16.f64", "%rd1", f64(-1.0)), 0U);
    EXPECT_EQ(from("s16.f64", "%rd1", f64(40000.0)), 0x7fffU);
    for (const char* type : {"s8", "u8", "s16", "u16", "s32", "u32"}) {
        EXPECT_EQ(from(std::string(type) + ".f32", "%r1", narrow), 0U) << type;
        EXPECT_EQ(from(std::string(type) + ".f16", "%rs1", 0x7e00), 0U) << type;
    }
}

TEST(SoftgpuConvert, IntegerToBf16RoundsOnce) {
    // Numbers that a double would first round to the middle of two bf16, or to one of them.
    const auto from = [](const std::string& mode, const std::string& type, u64 bits) {
        return evaluate("cvt." + mode + ".bf16." + type + " %rs0, %rd1;", "%rs0", {bits})[0];
    };
    EXPECT_EQ(from("rn", "u64", 0x8080000000000001), 0x5f01U);
    EXPECT_EQ(from("rn", "u64", 0x8080000000000000), 0x5f00U);
    EXPECT_EQ(from("rz", "u64", 0xffffffffffffffff), 0x5f7fU);
    EXPECT_EQ(from("rp", "u64", 0x8000000000000001), 0x5f01U);
    EXPECT_EQ(from("rm", "u64", 0x8000000000000001), 0x5f00U);
    EXPECT_EQ(from("rn", "s64", 0x4040000000000001), 0x5e81U);
    EXPECT_EQ(from("rn", "s64", 0x40bfffffffffffff), 0x5e81U);
    EXPECT_EQ(from("rn", "s64", 0 - u64{0x40bfffffffffffff}), 0xde81U);
    EXPECT_EQ(from("rm", "s64", 0 - u64{0x4000000000000001}), 0xde81U);
    EXPECT_EQ(from("rz", "s64", 0 - u64{0x4000000000000001}), 0xde80U);
    EXPECT_EQ(from("rz", "s64", 0x7fffffffffffffff), 0x5effU);
    EXPECT_EQ(from("rn", "s64", 0 - u64{3}), 0xc040U);
}

TEST(SoftgpuConvert, IntegerToFloatRounds) {
    const Lanes in = sample_bits(0);
    const std::pair<const char*, int> modes[] = {
        {"rn", FE_TONEAREST}, {"rz", FE_TOWARDZERO}, {"rm", FE_DOWNWARD}, {"rp", FE_UPWARD}};
    for (const auto& [name, mode] : modes) {
        const std::string m(name);
        const Lanes a = evaluate("cvt." + m + ".f32.s32 %r0, %r1;", "%r0", in);
        const Lanes b = evaluate("cvt." + m + ".f32.u64 %r0, %rd1;", "%r0", in);
        const Lanes c = evaluate("cvt." + m + ".f64.s64 %rd0, %rd1;", "%rd0", in);
        for (std::size_t i = 0; i < in.size(); ++i) {
            std::fesetround(mode);
            volatile float x = static_cast<float>(static_cast<std::int32_t>(in[i]));
            volatile double z = static_cast<double>(static_cast<s64>(in[i]));
            std::fesetround(FE_TONEAREST);
            ASSERT_EQ(a[i], f32(x)) << m << in[i];
            ASSERT_EQ(c[i], f64(z)) << m << in[i];
            if (mode == FE_TONEAREST) {
                ASSERT_EQ(b[i], f32(static_cast<float>(in[i]))) << in[i];
            }
        }
    }
}

TEST(SoftgpuConvert, IntegerWidthsAndSaturation) {
    EXPECT_EQ(evaluate("cvt.s32.s8 %r0, %r1;", "%r0", {0x1280})[0], 0xffffff80U);
    EXPECT_EQ(evaluate("cvt.u32.u16 %r0, %rs1;", "%r0", {0x1ffff})[0], 0xffffU);
    EXPECT_EQ(evaluate("cvt.s64.s32 %rd0, %r1;", "%rd0", {0x80000000})[0], 0xffffffff80000000ULL);
    EXPECT_EQ(evaluate("cvt.sat.u8.s32 %r0, %r1;", "%r0", {0xffffffff})[0], 0U);
    EXPECT_EQ(evaluate("cvt.sat.s8.s32 %r0, %r1;", "%r0", {1000})[0], 127U);
    EXPECT_EQ(evaluate("cvt.sat.s32.s64 %r0, %rd1;", "%r0", {0x7fffffffffffffff})[0], 0x7fffffffU);
    EXPECT_EQ(evaluate("cvt.pack.sat.u8.s32.b32 %r0, %r1, %r2, %r3;", "%r0", {300}, {0xffffffff},
                       {0xabcd1234})[0],
              0x1234ff00U);
    EXPECT_EQ(evaluate("cvt.pack.sat.s16.s32 %r0, %r1, %r2;", "%r0", {100'000}, {0xfffffffb})[0],
              0x7ffffffbU);
    EXPECT_EQ(evaluate("cvt.pack.sat.u16.s32 %r0, %r1, %r2;", "%r0", {0xfffffffb}, {100'000})[0],
              0x0000ffffU);
}

TEST(SoftgpuConvert, FloatToFloat) {
    const std::pair<const char*, int> modes[] = {
        {"rn", FE_TONEAREST}, {"rz", FE_TOWARDZERO}, {"rm", FE_DOWNWARD}, {"rp", FE_UPWARD}};
    Lanes in;
    for (const u64 bits : sample_floats(2)) {
        in.push_back(f64(static_cast<double>(as_f32(bits)) * 1.0000000123));
    }
    for (const auto& [name, mode] : modes) {
        const Lanes got = evaluate("cvt." + std::string(name) + ".f32.f64 %r0, %rd1;", "%r0", in);
        for (std::size_t i = 0; i < in.size(); ++i) {
            std::fesetround(mode);
            volatile double x = as_f64(in[i]);
            volatile float wanted = static_cast<float>(x);
            std::fesetround(FE_TONEAREST);
            ASSERT_EQ(got[i], f32(wanted)) << name << ' ' << x;
        }
    }
    EXPECT_EQ(evaluate("cvt.rpi.f32.f32 %r0, %r1;", "%r0", {f32(1.25F)})[0], f32(2.0F));
    EXPECT_EQ(evaluate("cvt.sat.f32.f32 %r0, %r1;", "%r0", {f32(-3.0F)})[0], f32(0.0F));
}

TEST(SoftgpuConvert, EveryHalfSurvivesARoundTrip) {
    for (u64 first = 0; first < 65536; first += 1024) {
        Lanes in;
        for (u64 i = 0; i < 1024; ++i) {
            in.push_back(first + i);
        }
        const Lanes half = evaluate("cvt.f32.f16 %r4, %rs1; cvt.rn.f16.f32 %rs0, %r4;", "%rs0", in);
        const Lanes brain =
            evaluate("cvt.f32.bf16 %r4, %rs1; cvt.rn.bf16.f32 %rs0, %r4;", "%rs0", in);
        for (u64 i = 0; i < 1024; ++i) {
            const bool half_nan = (in[i] & 0x7fff) > 0x7c00;
            const bool brain_nan = (in[i] & 0x7fff) > 0x7f80;
            ASSERT_EQ(half[i], half_nan ? 0x7fffU : in[i]);
            ASSERT_EQ(brain[i], brain_nan ? 0x7fffU : in[i]);
        }
    }
}

TEST(SoftgpuConvert, HalfRounding) {
    const auto half = [](const std::string& mode, float x) {
        return evaluate("cvt." + mode + ".f16.f32 %rs0, %r1;", "%rs0", {f32(x)})[0];
    };
    const float between = 1.0F + 0x1p-11F;  // half-way between 1 and the next half
    EXPECT_EQ(half("rn", between), 0x3c00U);
    EXPECT_EQ(half("rn", 1.0F + 0x1.8p-10F), 0x3c02U);
    EXPECT_EQ(half("rp", between), 0x3c01U);
    EXPECT_EQ(half("rz", 1.0F + 0x1.fp-11F), 0x3c00U);
    EXPECT_EQ(half("rm", -between), 0xbc01U);
    EXPECT_EQ(half("rn", 65520.0F), 0x7c00U);
    EXPECT_EQ(half("rz", 65520.0F), 0x7bffU);
    EXPECT_EQ(half("rn", 0x1p-24F), 1U);
    EXPECT_EQ(half("rn", 0x1p-25F), 0U);
    EXPECT_EQ(half("rp", 0x1p-30F), 1U);
    // One rounding only from double: just above the middle of two halves.
    EXPECT_EQ(evaluate("cvt.rn.f16.f64 %rs0, %rd1;", "%rs0", {f64(1.0 + 0x1p-11 + 0x1p-40)})[0],
              0x3c01U);
}

TEST(SoftgpuConvert, PackedAndSmallFormats) {
    EXPECT_EQ(evaluate("cvt.rn.f16x2.f32 %r0, %r1, %r2;", "%r0", {f32(2)}, {f32(-1)})[0],
              0x4000bc00U);
    EXPECT_EQ(evaluate("cvt.rn.relu.bf16x2.f32 %r0, %r1, %r2;", "%r0", {f32(2)}, {f32(-1)})[0],
              0x40000000U);
    EXPECT_EQ(evaluate("cvt.rn.satfinite.e4m3x2.f32 %rs0, %r1, %r2;", "%rs0", {f32(1000)},
                       {f32(-0.5)})[0],
              0x7eb0U);
    EXPECT_EQ(
        evaluate("cvt.rn.satfinite.e5m2x2.f32 %rs0, %r1, %r2;", "%rs0", {f32(1.0)}, {f32(3.0)})[0],
        0x3c42U);
    EXPECT_EQ(evaluate("cvt.rn.f16x2.e4m3x2 %r0, %rs1;", "%r0", {0x7eb0})[0], 0x5f00b800U);
    EXPECT_EQ(evaluate("cvt.rn.f16x2.e5m2x2 %r0, %rs1;", "%r0", {0x3c42})[0], 0x3c004200U);
    EXPECT_EQ(evaluate("cvt.rna.tf32.f32 %r0, %r1;", "%r0", {f32(1.0F + 0x1p-11F)})[0],
              f32(1.0F + 0x1p-10F));
}

}  // namespace
}  // namespace gantry::softgpu::test
