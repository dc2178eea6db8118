// Floating-point instructions against the host's arithmetic in the same rounding mode.
#include <cfenv>
#include <cmath>
#include <functional>

#include "tests/unit/softgpu_engine/fixture.h"

namespace gantry::softgpu::test {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

u64 canonical(float value) { return std::isnan(value) ? 0x7fffffffU : f32(value); }

float flush(float value) {
    return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0F, value) : value;
}

void expect_f32(const std::string& op, const std::function<float(float, float, float)>& expected,
                int rounding = FE_TONEAREST) {
    const Lanes a = sample_floats(0);
    const Lanes b = sample_floats(1);
    const Lanes c = sample_floats(2);
    const Lanes got = evaluate(op, "%r0", a, b, c);
    for (std::size_t i = 0; i < a.size(); ++i) {
        std::fesetround(rounding);
        volatile float x = as_f32(a[i]);
        volatile float y = as_f32(b[i]);
        volatile float z = as_f32(c[i]);
        volatile float wanted = expected(x, y, z);
        std::fesetround(FE_TONEAREST);
        ASSERT_EQ(got[i], canonical(wanted))
            << op << ' ' << as_f32(a[i]) << ' ' << as_f32(b[i]) << ' ' << as_f32(c[i]) << " gave "
            << as_f32(got[i]) << " not " << wanted;
    }
}

TEST(SoftgpuFloat, RoundingModes) {
    const std::pair<const char*, int> modes[] = {
        {"rn", FE_TONEAREST}, {"rz", FE_TOWARDZERO}, {"rm", FE_DOWNWARD}, {"rp", FE_UPWARD}};
    for (const auto& [name, mode] : modes) {
        const std::string r = std::string(".") + name;
        expect_f32(
            "add" + r + ".f32 %r0, %r1, %r2;", [](float a, float b, float) { return a + b; }, mode);
        expect_f32(
            "sub" + r + ".f32 %r0, %r1, %r2;", [](float a, float b, float) { return a - b; }, mode);
        expect_f32(
            "mul" + r + ".f32 %r0, %r1, %r2;", [](float a, float b, float) { return a * b; }, mode);
        expect_f32(
            "div" + r + ".f32 %r0, %r1, %r2;", [](float a, float b, float) { return a / b; }, mode);
        expect_f32(
            "sqrt" + r + ".f32 %r0, %r1;", [](float a, float, float) { return std::sqrt(a); },
            mode);
        expect_f32(
            "rcp" + r + ".f32 %r0, %r1;", [](float a, float, float) { return 1.0F / a; }, mode);
        expect_f32(
            "fma" + r + ".f32 %r0, %r1, %r2, %r3;",
            [](float a, float b, float c) { return std::fma(a, b, c); }, mode);
    }
}

TEST(SoftgpuFloat, FlushAndSaturate) {
    expect_f32("add.ftz.f32 %r0, %r1, %r2;",
               [](float a, float b, float) { return flush(flush(a) + flush(b)); });
    expect_f32("mul.ftz.f32 %r0, %r1, %r2;",
               [](float a, float b, float) { return flush(flush(a) * flush(b)); });
    expect_f32("add.sat.f32 %r0, %r1, %r2;", [](float a, float b, float) {
        const float sum = a + b;
        return std::isnan(sum) || sum <= 0 ? 0.0F : sum > 1 ? 1.0F : sum;
    });
}

float smaller(float a, float b) { return a < b || (a == b && std::signbit(a)) ? a : b; }
float larger(float a, float b) { return a > b || (a == b && !std::signbit(a)) ? a : b; }

TEST(SoftgpuFloat, MovesOfBitsFlushToo) {
    expect_f32("abs.ftz.f32 %r0, %r1;", [](float a, float, float) { return std::fabs(flush(a)); });
    expect_f32("neg.ftz.f32 %r0, %r1;", [](float a, float, float) { return -flush(a); });
    expect_f32("min.ftz.f32 %r0, %r1, %r2;",
               [](float a, float b, float) { return smaller(flush(a), flush(b)); });
    expect_f32("max.ftz.f32 %r0, %r1, %r2;",
               [](float a, float b, float) { return larger(flush(a), flush(b)); });
    expect_f32("max.ftz.f32 %r0, %r1, %r2, %r3;", [](float a, float b, float c) {
        return larger(larger(flush(a), flush(b)), flush(c));
    });
    expect_f32("abs.f32 %r0, %r1;", [](float a, float, float) { return std::fabs(a); });
    expect_f32("neg.f32 %r0, %r1;", [](float a, float, float) { return -a; });
    expect_f32("min.f32 %r0, %r1, %r2;", [](float a, float b, float) { return smaller(a, b); });
    // As ptxas folds them.
    const auto two = [](const std::string& op, u64 a, u64 b) {
        return evaluate(op + " %r0, %r1, %r2;", "%r0", {a}, {b})[0];
    };
    EXPECT_EQ(evaluate("abs.ftz.f32 %r0, %r1;", "%r0", {0x80000001})[0], 0U);
    EXPECT_EQ(evaluate("neg.ftz.f32 %r0, %r1;", "%r0", {1})[0], 0x80000000U);
    EXPECT_EQ(two("max.ftz.f32", 1, 0), 0U);
    EXPECT_EQ(two("min.ftz.f32", 0x80000001, f32(1)), 0x80000000U);
    EXPECT_EQ(two("max.ftz.NaN.f32", 1, 0), 0U);
    EXPECT_EQ(two("max.ftz.xorsign.abs.f32", 0x80000001, 0), 0x80000000U);
    EXPECT_EQ(two("min.f32", 0x80000001, f32(1)), 0x80000001U);
}

TEST(SoftgpuFloat, MinMaxOfMagnitudesHaveTheSignOfTheProduct) {
    const auto both = [](float a, float b) {
        return std::pair{
            as_f32(evaluate("min.xorsign.abs.f32 %r0, %r1, %r2;", "%r0", {f32(a)}, {f32(b)})[0]),
            as_f32(evaluate("max.xorsign.abs.f32 %r0, %r1, %r2;", "%r0", {f32(a)}, {f32(b)})[0])};
    };
    EXPECT_EQ(both(-3, 2), (std::pair{-2.0F, -3.0F}));
    EXPECT_EQ(both(3, -2), (std::pair{-2.0F, -3.0F}));
    EXPECT_EQ(both(-2, 3), (std::pair{-2.0F, -3.0F}));
    EXPECT_EQ(both(-3, -2), (std::pair{2.0F, 3.0F}));
    EXPECT_EQ(both(3, 2), (std::pair{2.0F, 3.0F}));
}

TEST(SoftgpuFloat, MinMaxPreferNumbers) {
    const u64 nan = 0x7fc00000;
    EXPECT_EQ(evaluate("min.f32 %r0, %r1, %r2;", "%r0", {nan}, {f32(3)})[0], f32(3));
    EXPECT_EQ(evaluate("max.f32 %r0, %r1, %r2;", "%r0", {f32(3)}, {nan})[0], f32(3));
    EXPECT_EQ(evaluate("max.f32 %r0, %r1, %r2;", "%r0", {nan}, {nan})[0], 0x7fffffffU);
    EXPECT_EQ(evaluate("min.f32 %r0, %r1, %r2;", "%r0", {f32(0.0F)}, {f32(-0.0F)})[0], f32(-0.0F));
    EXPECT_EQ(evaluate("max.f32 %r0, %r1, %r2;", "%r0", {f32(-0.0F)}, {f32(0.0F)})[0], f32(0.0F));
    EXPECT_EQ(evaluate("max.NaN.f32 %r0, %r1, %r2;", "%r0", {f32(1)}, {nan})[0], 0x7fffffffU);
    EXPECT_EQ(evaluate("min.f64 %rd0, %rd1, %rd2;", "%rd0", {f64(1)}, {f64(-2)})[0], f64(-2));
}

TEST(SoftgpuFloat, Doubles) {
    Lanes a;
    Lanes b;
    Lanes c;
    for (const u64 bits : sample_floats(0)) {
        a.push_back(f64(static_cast<double>(as_f32(bits)) / 3));
    }
    for (const u64 bits : sample_floats(1)) {
        b.push_back(f64(static_cast<double>(as_f32(bits)) / 7));
    }
    for (const u64 bits : sample_floats(2)) {
        c.push_back(f64(static_cast<double>(as_f32(bits))));
    }
    const auto check = [&](const std::string& op, int mode, auto expected) {
        const Lanes got = evaluate(op, "%rd0", a, b, c);
        for (std::size_t i = 0; i < a.size(); ++i) {
            std::fesetround(mode);
            volatile double x = as_f64(a[i]);
            volatile double y = as_f64(b[i]);
            volatile double z = as_f64(c[i]);
            volatile double wanted = expected(x, y, z);
            std::fesetround(FE_TONEAREST);
            if (std::isnan(wanted)) {
                ASSERT_TRUE(std::isnan(as_f64(got[i]))) << op;
            } else {
                ASSERT_EQ(got[i], f64(wanted)) << op << ' ' << x << ' ' << y << ' ' << z;
            }
        }
    };
    check("add.f64 %rd0, %rd1, %rd2;", FE_TONEAREST,
          [](double x, double y, double) { return x + y; });
    check("mul.rz.f64 %rd0, %rd1, %rd2;", FE_TOWARDZERO,
          [](double x, double y, double) { return x * y; });
    check("div.rp.f64 %rd0, %rd1, %rd2;", FE_UPWARD,
          [](double x, double y, double) { return x / y; });
    check("fma.rm.f64 %rd0, %rd1, %rd2, %rd3;", FE_DOWNWARD,
          [](double x, double y, double z) { return std::fma(x, y, z); });
    check("sqrt.rn.f64 %rd0, %rd1;", FE_TONEAREST,
          [](double x, double, double) { return std::sqrt(x); });
}

TEST(SoftgpuFloat, ApproximateFunctionsStayWithinTheirBounds) {
    const auto worst = [](const std::string& op, double low, double high, bool absolute,
                          double (*exact)(double)) {
        Lanes a;
        for (int i = 0; i < 1024; ++i) {
            a.push_back(f32(static_cast<float>(low + (high - low) * i / 1023)));
        }
        const Lanes got = evaluate(op, "%r0", a);
        double error = 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
            const double right = exact(static_cast<double>(as_f32(a[i])));
            const double off = std::fabs(static_cast<double>(as_f32(got[i])) - right);
            error = std::max(error, absolute ? off : off / std::fabs(right));
        }
        return error;
    };
    EXPECT_LE(worst("ex2.approx.f32 %r0, %r1;", -100, 100, false, std::exp2), 0x1p-22);
    EXPECT_LE(worst("lg2.approx.f32 %r0, %r1;", 0.1, 1e6, true, std::log2), 0x1p-19);
    EXPECT_LE(worst("sin.approx.f32 %r0, %r1;", -3.14, 3.14, true, std::sin), 0x1p-20);
    EXPECT_LE(worst("cos.approx.f32 %r0, %r1;", -3.14, 3.14, true, std::cos), 0x1p-20);
    EXPECT_LE(worst("tanh.approx.f32 %r0, %r1;", 0.01, 10, false, std::tanh), 0x1p-11);
    EXPECT_LE(worst("rsqrt.approx.f32 %r0, %r1;", 1e-6, 1e6, false,
                    [](double x) { return 1 / std::sqrt(x); }),
              0x1p-22);
    EXPECT_LE(
        worst("rcp.approx.ftz.f32 %r0, %r1;", 1e-6, 1e6, false, [](double x) { return 1 / x; }),
        0x1p-22);
}

TEST(SoftgpuFloat, ApproximateFunctionsAtTheEdges) {
    const auto one = [](const std::string& op, float x) {
        return as_f32(evaluate(op, "%r0", {f32(x)})[0]);
    };
    const float inf = std::numeric_limits<float>::infinity();
    EXPECT_EQ(one("ex2.approx.f32 %r0, %r1;", -inf), 0.0F);
    EXPECT_EQ(one("ex2.approx.f32 %r0, %r1;", inf), inf);
    EXPECT_EQ(one("lg2.approx.f32 %r0, %r1;", 0.0F), -inf);
    EXPECT_TRUE(std::isnan(one("lg2.approx.f32 %r0, %r1;", -1.0F)));
    EXPECT_EQ(one("lg2.approx.f32 %r0, %r1;", 8.0F), 3.0F);
    EXPECT_EQ(one("ex2.approx.f32 %r0, %r1;", 10.0F), 1024.0F);
    EXPECT_EQ(one("rsqrt.approx.f32 %r0, %r1;", 0.0F), inf);
    EXPECT_EQ(one("rcp.approx.f32 %r0, %r1;", inf), 0.0F);
    EXPECT_TRUE(std::isnan(one("sin.approx.f32 %r0, %r1;", inf)));
    EXPECT_EQ(one("tanh.approx.f32 %r0, %r1;", 50.0F), 1.0F);
    for (const float x : {1e15F, 1e18F, -1e25F, 3e38F}) {
        EXPECT_LE(std::fabs(one("sin.approx.f32 %r0, %r1;", x)), 1.0F) << x;
        EXPECT_LE(std::fabs(one("cos.approx.f32 %r0, %r1;", x)), 1.0F) << x;
    }
}

TEST(SoftgpuFloat, ApproximateQuotientsByTheLargestDivisors) {
    const float inf = std::numeric_limits<float>::infinity();
    const auto divide = [](const std::string& form, float a, float b) {
        return evaluate("div." + form + ".f32 %r0, %r1, %r2;", "%r0", {f32(a)}, {f32(b)})[0];
    };
    EXPECT_EQ(divide("approx", 1.0F, 0x1p126F), f32(0x1p-126F));
    EXPECT_EQ(divide("approx", 0x1p127F, 0x1.8p126F), 0U);
    EXPECT_EQ(divide("approx", -1.0F, 0x1p127F), 0x80000000U);
    EXPECT_EQ(divide("approx.ftz", 1.0F, -0x1p127F), 0x80000000U);
    EXPECT_EQ(divide("approx", inf, 0x1p127F), 0x7fffffffU);
    EXPECT_EQ(divide("approx", 1.0F, inf), 0U);
    EXPECT_EQ(divide("approx", inf, 2.0F), f32(inf));
    EXPECT_EQ(divide("full", 0x1p127F, 0x1p127F), f32(1.0F));
    EXPECT_EQ(divide("full", 1.0F, 0x1p127F), f32(0x1p-127F));
}

TEST(SoftgpuFloat, CompareUnordered) {
    const u64 nan = 0x7fc00000;
    const auto truth = [](const std::string& op, u64 a, u64 b) {
        return evaluate("setp." + op + ".f32 %p0, %r1, %r2;", "%p0", {a}, {b})[0];
    };
    for (const char* op : {"eq", "ne", "lt", "le", "gt", "ge", "num"}) {
        EXPECT_EQ(truth(op, nan, f32(1)), 0U) << op;
    }
    for (const char* op : {"equ", "neu", "ltu", "leu", "gtu", "geu", "nan"}) {
        EXPECT_EQ(truth(op, nan, f32(1)), 1U) << op;
    }
    EXPECT_EQ(truth("ltu", f32(2), f32(1)), 0U);
    EXPECT_EQ(truth("eq", f32(0.0F), f32(-0.0F)), 1U);
}

TEST(SoftgpuFloat, ComparesFlushOnlyIfTheySay) {
    const auto set = [](const std::string& op, u64 a, u64 b) {
        return evaluate(op, op.substr(0, 4) == "setp" ? "%p0" : "%r0", {a}, {b})[0];
    };
    EXPECT_EQ(set("setp.gt.f16 %p0, %rs1, %rs2;", 1, 0), 1U);
    EXPECT_EQ(set("setp.gt.ftz.f16 %p0, %rs1, %rs2;", 1, 0), 0U);
    EXPECT_EQ(set("setp.gt.ftz.f16 %p0, %rs1, %rs2;", 0x400, 0x3ff), 1U);
    EXPECT_EQ(set("setp.eq.ftz.f16 %p0, %rs1, %rs2;", 0x8001, 1), 1U);
    EXPECT_EQ(set("setp.nan.ftz.f16 %p0, %rs1, %rs2;", 0x7e00, 1), 1U);
    EXPECT_EQ(set("setp.gt.ftz.f16x2 %p1|%p0, %r1, %r2;", 0x00013c00, 0), 0U);
    EXPECT_EQ(set("set.gt.f32.f16 %r0, %rs1, %rs2;", 1, 0), f32(1.0F));
    EXPECT_EQ(set("set.gt.ftz.f32.f16 %r0, %rs1, %rs2;", 1, 0), 0U);
    EXPECT_EQ(set("set.gt.ftz.f16x2.f16x2 %r0, %r1, %r2;", 0x3c000001, 0), 0x3c000000U);
    // What the instruction before left the FP unit in does not matter.
    const auto select = [](const std::string& before, const std::string& ftz) {
        return evaluate(
            "add" + before + ".f32 %r4, %r3, %r3; slct" + ftz + ".u32.f32 %r0, %r1, %r2, %r3;",
            "%r0", {5}, {6}, {0x80000001})[0];
    };
    EXPECT_EQ(select("", ""), 6U);
    EXPECT_EQ(select(".ftz", ""), 6U);
    EXPECT_EQ(select("", ".ftz"), 5U);
    EXPECT_EQ(select(".ftz", ".ftz"), 5U);
}

TEST(SoftgpuFloat, Halves) {
    // 1/3 + 1/7 in f16, and pairs of it; host values by rounding the exact sum of the operands.
    EXPECT_EQ(evaluate("add.f16 %rs0, %rs1, %rs2;", "%rs0", {0x3555}, {0x3092})[0], 0x379eU);
    EXPECT_EQ(evaluate("add.f16x2 %r0, %r1, %r2;", "%r0", {0x35553c00}, {0x30923c00})[0],
              0x379e4000U);
    EXPECT_EQ(
        evaluate("fma.rn.f16 %rs0, %rs1, %rs2, %rs3;", "%rs0", {0x3c01}, {0x3c01}, {0xbc02})[0],
        0x0010U);
    EXPECT_EQ(
        evaluate("fma.rn.bf16 %rs0, %rs1, %rs2, %rs3;", "%rs0", {0x3f81}, {0x3f81}, {0xbf82})[0],
        0x3880U);
    // Beside the middle of two results, by less than a double can tell.
    EXPECT_EQ(evaluate("fma.rn.bf16x2 %r0, %r1, %r2, %r3;", "%r0", {0x3f833f81}, {0x3fc03fc0},
                       {0x0d808d80})[0],
              0x3fc53fc1U);
    EXPECT_EQ(evaluate("fma.rn.bf16x2 %r0, %r1, %r2, %r3;", "%r0", {0xbf83bf81}, {0x3fc03fc0},
                       {0x8d800d80})[0],
              0xbfc5bfc1U);
    EXPECT_EQ(evaluate("fma.rn.bf16x2 %r0, %r1, %r2, %r3;", "%r0", {0x7f807f80}, {0x3f803f80},
                       {0xff803f80})[0],
              0x7fff7f80U);
    EXPECT_EQ(evaluate("mul.bf16x2 %r0, %r1, %r2;", "%r0", {0x3f804000}, {0x40004000})[0],
              0x40004080U);
    EXPECT_EQ(evaluate("max.f16x2 %r0, %r1, %r2;", "%r0", {0x7e00bc00}, {0x3c003c00})[0],
              0x3c003c00U);
    EXPECT_EQ(evaluate("neg.f16x2 %r0, %r1;", "%r0", {0x3c00bc00})[0], 0xbc003c00U);
}

TEST(SoftgpuFloat, TestProperties) {
    const auto holds = [](const std::string& what, float x) {
        return evaluate("testp." + what + ".f32 %p0, %r1;", "%p0", {f32(x)})[0] == 1;
    };
    EXPECT_TRUE(holds("subnormal", 1e-40F));
    EXPECT_FALSE(holds("normal", 1e-40F));
    EXPECT_TRUE(holds("infinite", std::numeric_limits<float>::infinity()));
    EXPECT_TRUE(holds("notanumber", std::numeric_limits<float>::quiet_NaN()));
    EXPECT_TRUE(holds("finite", 0.0F));
    EXPECT_EQ(evaluate("copysign.f32 %r0, %r1, %r2;", "%r0", {f32(-2)}, {f32(5)})[0], f32(-5));
}

}  // namespace
}  // namespace gantry::softgpu::test
