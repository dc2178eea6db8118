// Integer, logic and bit instructions against host arithmetic.
#include <bit>
#include <functional>
#include <limits>

#include "tests/unit/softgpu_engine/fixture.h"

namespace gantry::softgpu::test {
namespace {

using u16 = std::uint16_t;
using s16 = std::int16_t;
using u32 = std::uint32_t;
using s32 = std::int32_t;
using u64 = std::uint64_t;
using s64 = std::int64_t;
__extension__ using s128 = __int128;
__extension__ using u128 = unsigned __int128;

void expect_each(const std::string& body, const std::string& out, const Lanes& a, const Lanes& b,
                 const Lanes& c, const std::function<u64(u64, u64, u64)>& expected) {
    const Lanes got = evaluate(body, out, a, b, c);
    const auto at = [](const Lanes& list, std::size_t i) { return i < list.size() ? list[i] : 0; };
    for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(got[i], expected(a[i], at(b, i), at(c, i)))
            << body << std::hex << " a=" << a[i] << " b=" << at(b, i) << " c=" << at(c, i);
    }
}

void expect32(const std::string& op, const std::function<u32(u32, u32, u32)>& expected) {
    expect_each(op, "%r0", sample_bits(0), sample_bits(1), sample_bits(2),
                [&](u64 a, u64 b, u64 c) -> u64 {
                    return expected(static_cast<u32>(a), static_cast<u32>(b), static_cast<u32>(c));
                });
}

void expect64(const std::string& op, const std::function<u64(u64, u64, u64)>& expected) {
    expect_each(op, "%rd0", sample_bits(0), sample_bits(1), sample_bits(2), expected);
}

s32 S(u32 v) { return static_cast<s32>(v); }
u32 U(s64 v) { return static_cast<u32>(v); }

TEST(SoftgpuInteger, AddSubMul) {
    expect32("add.s32 %r0, %r1, %r2;", [](u32 a, u32 b, u32) { return a + b; });
    expect32("sub.s32 %r0, %r1, %r2;", [](u32 a, u32 b, u32) { return a - b; });
    expect32("mul.lo.s32 %r0, %r1, %r2;", [](u32 a, u32 b, u32) { return a * b; });
    expect32("mul.hi.s32 %r0, %r1, %r2;",
             [](u32 a, u32 b, u32) { return U((s64{S(a)} * S(b)) >> 32); });
    expect32("mul.hi.u32 %r0, %r1, %r2;",
             [](u32 a, u32 b, u32) { return static_cast<u32>((u64{a} * b) >> 32); });
    expect32("mad.lo.s32 %r0, %r1, %r2, %r3;", [](u32 a, u32 b, u32 c) { return a * b + c; });
    expect32("mad.hi.u32 %r0, %r1, %r2, %r3;",
             [](u32 a, u32 b, u32 c) { return static_cast<u32>((u64{a} * b) >> 32) + c; });
    expect32("add.sat.s32 %r0, %r1, %r2;", [](u32 a, u32 b, u32) {
        const s64 sum = s64{S(a)} + S(b);
        return U(sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum);
    });
    expect32("mul24.lo.u32 %r0, %r1, %r2;", [](u32 a, u32 b, u32) {
        return static_cast<u32>(u64{a & 0xffffff} * (b & 0xffffff));
    });
    expect32("sad.s32 %r0, %r1, %r2, %r3;",
             [](u32 a, u32 b, u32 c) { return c + (S(a) < S(b) ? b - a : a - b); });
    expect64("add.s64 %rd0, %rd1, %rd2;", [](u64 a, u64 b, u64) { return a + b; });
    expect64("mul.lo.s64 %rd0, %rd1, %rd2;", [](u64 a, u64 b, u64) { return a * b; });
    expect64("mul.hi.u64 %rd0, %rd1, %rd2;",
             [](u64 a, u64 b, u64) { return static_cast<u64>((u128{a} * b) >> 64); });
    expect64("mul.hi.s64 %rd0, %rd1, %rd2;", [](u64 a, u64 b, u64) {
        return static_cast<u64>((s128{static_cast<s64>(a)} * static_cast<s64>(b)) >> 64);
    });
    expect64("mul.wide.s32 %rd0, %r1, %r2;", [](u64 a, u64 b, u64) {
        return static_cast<u64>(s64{S(static_cast<u32>(a))} * S(static_cast<u32>(b)));
    });
    expect64("mad.wide.u32 %rd0, %r1, %r2, %rd3;", [](u64 a, u64 b, u64 c) {
        return u64{static_cast<u32>(a)} * static_cast<u32>(b) + c;
    });
}

TEST(SoftgpuInteger, SixteenBit) {
    const auto run = [](const std::string& op, const std::function<u16(u16, u16)>& expected) {
        expect_each(op, "%rs0", sample_bits(0), sample_bits(1), {}, [&](u64 a, u64 b, u64) -> u64 {
            return expected(static_cast<u16>(a), static_cast<u16>(b));
        });
    };
    run("add.s16 %rs0, %rs1, %rs2;", [](u16 a, u16 b) { return static_cast<u16>(a + b); });
    run("mul.lo.s16 %rs0, %rs1, %rs2;", [](u16 a, u16 b) { return static_cast<u16>(u32{a} * b); });
    run("shr.s16 %rs0, %rs1, 3;",
        [](u16 a, u16) { return static_cast<u16>(static_cast<s16>(a) >> 3); });
    run("min.s16 %rs0, %rs1, %rs2;",
        [](u16 a, u16 b) { return static_cast<s16>(a) < static_cast<s16>(b) ? a : b; });
    run("shl.b16 %rs0, %rs1, 20;", [](u16, u16) { return u16{0}; });
}

TEST(SoftgpuInteger, PairsOfHalves) {
    const auto both = [](u32 a, u32 b, const std::function<int(int, int)>& each, bool is_signed) {
        const auto half = [is_signed](u32 word) {
            return is_signed ? int{static_cast<s16>(word)} : int{static_cast<u16>(word)};
        };
        const auto low = static_cast<u16>(each(half(a), half(b)));
        const auto high = static_cast<u16>(each(half(a >> 16), half(b >> 16)));
        return (u32{high} << 16) | low;
    };
    const auto sum = [](int a, int b) { return a + b; };
    const auto lesser = [](int a, int b) { return std::min(a, b); };
    const auto larger = [](int a, int b) { return std::max(a, b); };
    const auto positive = [](int a, int b) { return std::max({a, b, 0}); };
    const auto small = [](int a, int b) { return std::max(std::min(a, b), 0); };
    for (const bool is_signed : {false, true}) {
        const std::string type = is_signed ? ".s16x2" : ".u16x2";
        expect32("add" + type + " %r0, %r1, %r2;",
                 [&](u32 a, u32 b, u32) { return both(a, b, sum, is_signed); });
        expect32("min" + type + " %r0, %r1, %r2;",
                 [&](u32 a, u32 b, u32) { return both(a, b, lesser, is_signed); });
        expect32("max" + type + " %r0, %r1, %r2;",
                 [&](u32 a, u32 b, u32) { return both(a, b, larger, is_signed); });
    }
    expect32("max.s16x2.relu %r0, %r1, %r2;",
             [&](u32 a, u32 b, u32) { return both(a, b, positive, true); });
    expect32("min.s16x2.relu %r0, %r1, %r2;",
             [&](u32 a, u32 b, u32) { return both(a, b, small, true); });
}

TEST(SoftgpuInteger, DivisionByZeroAndOverflow) {
    expect32("div.u32 %r0, %r1, %r2;", [](u32 a, u32 b, u32) { return b == 0 ? ~0U : a / b; });
    expect32("rem.u32 %r0, %r1, %r2;", [](u32 a, u32 b, u32) { return b == 0 ? a : a % b; });
    expect32("div.s32 %r0, %r1, %r2;", [](u32 a, u32 b, u32) {
        return b == 0 ? ~0U : b == ~0U ? 0U - a : U(S(a) / S(b));
    });
    expect32("rem.s32 %r0, %r1, %r2;", [](u32 a, u32 b, u32) {
        return b == 0 ? a : b == ~0U ? 0U : U(S(a) % S(b));
    });
    expect64("div.s64 %rd0, %rd1, %rd2;", [](u64 a, u64 b, u64) -> u64 {
        return b == 0       ? ~0ULL
               : b + 1 == 0 ? 0 - a
                            : static_cast<u64>(static_cast<s64>(a) / static_cast<s64>(b));
    });
}

TEST(SoftgpuInteger, ShiftsClampAtTheWidth) {
    expect32("shl.b32 %r0, %r1, %r2;", [](u32 a, u32 b, u32) { return b > 31 ? 0 : a << b; });
    expect32("shr.u32 %r0, %r1, %r2;", [](u32 a, u32 b, u32) { return b > 31 ? 0 : a >> b; });
    expect32("shr.s32 %r0, %r1, %r2;",
             [](u32 a, u32 b, u32) { return U(S(a) >> (b > 31 ? 31 : b)); });
    expect64("shl.b64 %rd0, %rd1, %r2;", [](u64 a, u64 b, u64) {
        const u32 n = static_cast<u32>(b);
        return n > 63 ? 0 : a << n;
    });
    expect32("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", [](u32 a, u32 b, u32 c) {
        return static_cast<u32>(((u64{b} << 32 | a) << (c & 31)) >> 32);
    });
    expect32("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", [](u32 a, u32 b, u32 c) {
        return static_cast<u32>((u64{b} << 32 | a) >> (c > 32 ? 32 : c));
    });
}

TEST(SoftgpuInteger, Bits) {
    expect32("popc.b32 %r0, %r1;", [](u32 a, u32, u32) { return U(std::popcount(a)); });
    expect32("clz.b32 %r0, %r1;", [](u32 a, u32, u32) { return U(std::countl_zero(a)); });
    expect_each("popc.b64 %r0, %rd1;", "%r0", sample_bits(0), {}, {},
                [](u64 a, u64, u64) { return static_cast<u64>(std::popcount(a)); });
    expect_each("clz.b64 %r0, %rd1;", "%r0", sample_bits(0), {}, {},
                [](u64 a, u64, u64) { return static_cast<u64>(std::countl_zero(a)); });
}

TEST(SoftgpuInteger, FieldsAndPermutes) {
    expect32("bfe.u32 %r0, %r1, %r2, %r3;", [](u32 a, u32 b, u32 c) {
        const u32 p = b & 255, n = c & 255;
        u32 result = 0;
        for (u32 i = 0; i < 32 && i < n; ++i) {
            result |= (p + i < 32 ? (a >> (p + i)) & 1U : 0U) << i;
        }
        return result;
    });
    expect32("bfe.s32 %r0, %r1, %r2, %r3;", [](u32 a, u32 b, u32 c) {
        const u32 p = b & 255, n = c & 255;
        const u32 top = std::min(p + n - 1, 31U);
        const u32 sign = n == 0 ? 0 : (a >> top) & 1U;
        u32 result = 0;
        for (u32 i = 0; i < 32; ++i) {
            result |= (i < n && p + i < 32 ? (a >> (p + i)) & 1U : sign) << i;
        }
        return result;
    });
    expect32("bfi.b32 %r0, %r1, %r2, %r3, 7;", [](u32 a, u32 b, u32 c) {
        const u32 p = c & 255;
        u32 result = b;
        for (u32 i = 0; i < 7 && p + i < 32; ++i) {
            result = (result & ~(1U << (p + i))) | (((a >> i) & 1U) << (p + i));
        }
        return result;
    });
    expect32("brev.b32 %r0, %r1;", [](u32 a, u32, u32) {
        u32 result = 0;
        for (int i = 0; i < 32; ++i) {
            result |= ((a >> i) & 1U) << (31 - i);
        }
        return result;
    });
    expect32("bfind.s32 %r0, %r1;", [](u32 a, u32, u32) {
        const u32 v = S(a) < 0 ? ~a : a;
        return v == 0 ? ~0U : 31U - U(std::countl_zero(v));
    });
    expect32("prmt.b32 %r0, %r1, %r2, %r3;", [](u32 a, u32 b, u32 c) {
        u32 result = 0;
        for (int i = 0; i < 4; ++i) {
            const u32 n = (c >> (4 * i)) & 15;
            u32 byte = static_cast<u32>((u64{b} << 32 | a) >> (8 * (n & 7))) & 255;
            byte = (n & 8) != 0 ? ((byte & 128) != 0 ? 255U : 0U) : byte;
            result |= byte << (8 * i);
        }
        return result;
    });
    expect32("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", [](u32 a, u32 b, u32 c) { return a ^ b ^ c; });
    expect32("lop3.b32 %r0, %r1, %r2, %r3, 0xca;",
             [](u32 a, u32 b, u32 c) { return (a & b) | (~a & c); });
    expect32("bmsk.clamp.b32 %r0, %r1, %r2;", [](u32 a, u32 b, u32) {
        u32 result = 0;
        for (u64 i = a; i < 32 && i < u64{a} + b; ++i) {
            result |= 1U << i;
        }
        return result;
    });
    expect32("dp4a.s32.s32 %r0, %r1, %r2, %r3;", [](u32 a, u32 b, u32 c) {
        for (int i = 0; i < 4; ++i) {
            c += static_cast<u32>(static_cast<std::int8_t>(a >> (8 * i)) *
                                  static_cast<std::int8_t>(b >> (8 * i)));
        }
        return c;
    });
    expect32("dp2a.lo.u32.u32 %r0, %r1, %r2, %r3;", [](u32 a, u32 b, u32 c) {
        return c + (a & 0xffff) * (b & 255) + (a >> 16) * ((b >> 8) & 255);
    });
    expect32("vabsdiff4.u32.u32.u32.add %r0, %r1, %r2, %r3;", [](u32 a, u32 b, u32 c) {
        for (int i = 0; i < 4; ++i) {
            const s32 x = S((a >> (8 * i)) & 255), y = S((b >> (8 * i)) & 255);
            c += static_cast<u32>(x < y ? y - x : x - y);
        }
        return c;
    });
}

TEST(SoftgpuInteger, FindNthSet) {
    EXPECT_EQ(evaluate("fns.b32 %r0, %r1, %r2, %r3;", "%r0", {0b10110}, {0}, {2})[0], 2U);
    EXPECT_EQ(evaluate("fns.b32 %r0, %r1, %r2, %r3;", "%r0", {0b10110}, {4}, {0xfffffffe})[0], 2U);
    EXPECT_EQ(evaluate("fns.b32 %r0, %r1, %r2, %r3;", "%r0", {0b10110}, {0}, {9})[0], 0xffffffffU);
}

TEST(SoftgpuInteger, CarryChains) {
    // A 128-bit sum and difference through 32-bit steps.
    expect64(
        "cvt.u32.u64 %r4, %rd1; shr.u64 %rd4, %rd1, 32; cvt.u32.u64 %r5, %rd4;"
        "cvt.u32.u64 %r6, %rd2; shr.u64 %rd5, %rd2, 32; cvt.u32.u64 %r7, %rd5;"
        "add.cc.u32 %r10, %r4, %r6; addc.u32 %r11, %r5, %r7; mov.b64 %rd0, {%r10, %r11};",
        [](u64 a, u64 b, u64) { return a + b; });
    expect64(
        "cvt.u32.u64 %r4, %rd1; shr.u64 %rd4, %rd1, 32; cvt.u32.u64 %r5, %rd4;"
        "cvt.u32.u64 %r6, %rd2; shr.u64 %rd5, %rd2, 32; cvt.u32.u64 %r7, %rd5;"
        "sub.cc.u32 %r10, %r4, %r6; subc.u32 %r11, %r5, %r7; mov.b64 %rd0, {%r10, %r11};",
        [](u64 a, u64 b, u64) { return a - b; });
    expect64(
        "cvt.u32.u64 %r4, %rd1; shr.u64 %rd4, %rd1, 32; cvt.u32.u64 %r5, %rd4;"
        "cvt.u32.u64 %r6, %rd2;"
        "mul.lo.u32 %r10, %r4, %r6; mul.hi.u32 %r11, %r4, %r6;"
        "mad.lo.cc.u32 %r11, %r5, %r6, %r11; madc.hi.u32 %r12, %r5, %r6, 0;"
        "mov.b64 %rd0, {%r11, %r12};",
        [](u64 a, u64 b, u64) { return static_cast<u64>((u128{a} * static_cast<u32>(b)) >> 32); });
}

TEST(SoftgpuInteger, CarryOfADifferenceIsSetWhereNothingWasBorrowed) {
    // What nvcc makes of comparisons and quotients of 128-bit integers.
    expect64(
        "cvt.u32.u64 %r4, %rd1; shr.u64 %rd4, %rd1, 32; cvt.u32.u64 %r5, %rd4;"
        "cvt.u32.u64 %r6, %rd2; shr.u64 %rd5, %rd2, 32; cvt.u32.u64 %r7, %rd5;"
        "sub.cc.u32 %r10, %r4, %r6; subc.cc.u32 %r11, %r5, %r7; addc.u32 %r12, 0, 0;"
        "cvt.u64.u32 %rd0, %r12;",
        [](u64 a, u64 b, u64) -> u64 { return a >= b ? 1 : 0; });
    expect64(
        "sub.cc.u64 %rd4, %rd1, %rd2; subc.cc.u64 %rd5, %rd3, 0; addc.u64 %rd6, %rd5, %rd5;"
        "xor.b64 %rd0, %rd4, %rd6;",
        [](u64 a, u64 b, u64 c) {
            const u64 borrow = a < b ? 1 : 0;
            return (a - b) ^ (2 * (c - borrow) + (c < borrow ? 0 : 1));
        });
    expect64("add.cc.u64 %rd4, %rd1, %rd2; subc.u64 %rd0, %rd3, 0;",
             [](u64 a, u64 b, u64 c) { return c - (a + b < a ? 0 : 1); });
    expect32("add.cc.u32 %r4, %r1, %r2; addc.cc.u32 %r5, %r3, -1; addc.u32 %r0, 0, 0;",
             [](u32 a, u32 b, u32 c) {
                 return static_cast<u32>((u64{c} + 0xffffffffU + (a + b < a ? 1 : 0)) >> 32);
             });
    expect32(
        "mad.lo.cc.u32 %r4, %r1, %r2, %r3; madc.hi.cc.u32 %r5, %r1, %r2, -1;"
        "addc.u32 %r0, 0, 0;",
        [](u32 a, u32 b, u32 c) {
            const u64 product = u64{a} * b;
            const u64 low = (product & 0xffffffffU) + c;
            return static_cast<u32>(((product >> 32) + 0xffffffffU + (low >> 32)) >> 32);
        });
}

TEST(SoftgpuInteger, BytesOfAHalfWord) {
    expect_each("{ .reg .b8 %b<2>; mov.b16 {%b0, %b1}, %rs1; mov.b16 %rs0, {%b1, %b0}; }", "%rs0",
                sample_bits(0), {}, {},
                [](u64 a, u64, u64) { return ((a & 0xff) << 8) | ((a >> 8) & 0xff); });
}

TEST(SoftgpuInteger, VideoAveragesRoundAwayFromZero) {
    for (const u32 parts : {2U, 4U}) {
        const std::string name = "vavrg" + std::to_string(parts);
        expect32(name + ".s32.s32.s32 %r0, %r1, %r2, 0;", [parts](u32 a, u32 b, u32) {
            const u32 bits = 32 / parts;
            u32 all = 0;
            for (u32 shift = 0; shift < 32; shift += bits) {
                const auto part = [&](u32 word) {
                    return S(word << (32 - bits - shift)) >> (32 - bits);
                };
                const s32 sum = part(a) + part(b);
                const s32 average = sum / 2 + sum % 2;
                all |= (U(average) & (~0U >> (32 - bits))) << shift;
            }
            return all;
        });
    }
}

TEST(SoftgpuInteger, VideoResultsMergedIntoAPartAreRefused) {
    for (const char* part : {"b1", "h0"}) {
        const auto loaded = load({std::string(".visible .entry k() { .reg .b32 %r<9>;\n"
                                              "vadd.s32.s32.s32 %r0.") +
                                  part + ", %r1, %r2, %r3;\nret; }"});
        ASSERT_FALSE(loaded.ok());
        EXPECT_THAT(loaded.error().to_string(),
                    ::testing::HasSubstr("merging forms of video instructions"));
    }
}

TEST(SoftgpuInteger, CompareAndSelect) {
    const auto compare = [](const std::string& op, const std::function<bool(u32, u32)>& expected) {
        expect_each(op, "%p0", sample_bits(0), sample_bits(1), {}, [&](u64 a, u64 b, u64) -> u64 {
            return expected(static_cast<u32>(a), static_cast<u32>(b)) ? 1 : 0;
        });
    };
    compare("setp.lt.s32 %p0, %r1, %r2;", [](u32 a, u32 b) { return S(a) < S(b); });
    compare("setp.hs.u32 %p0, %r1, %r2;", [](u32 a, u32 b) { return a >= b; });
    compare("setp.eq.u32 %p1, %r1, 0; setp.ge.and.s32 %p0, %r1, %r2, !%p1;",
            [](u32 a, u32 b) { return a != 0 && S(a) >= S(b); });
    compare("setp.lt.u32 %p0|%p1, %r1, %r2; not.pred %p0, %p1;",
            [](u32 a, u32 b) { return a < b; });
    expect32("setp.lt.s32 %p1, %r1, %r2; selp.b32 %r0, %r1, %r3, %p1;",
             [](u32 a, u32 b, u32 c) { return S(a) < S(b) ? a : c; });
    expect32("slct.s32.s32 %r0, %r1, %r2, %r3;",
             [](u32 a, u32 b, u32 c) { return S(c) >= 0 ? a : b; });
    expect32("set.gt.u32.s32 %r0, %r1, %r2;",
             [](u32 a, u32 b, u32) { return S(a) > S(b) ? ~0U : 0U; });
}

TEST(SoftgpuInteger, GuardsKeepOtherLanes) {
    expect32(
        "mov.u32 %r0, %r3; setp.lt.u32 %p1, %r1, %r2; @%p1 add.u32 %r0, %r1, 7;"
        "@!%p1 xor.b32 %r0, %r0, 5;",
        [](u32 a, u32 b, u32 c) { return a < b ? a + 7 : c ^ 5; });
}

}  // namespace
}  // namespace gantry::softgpu::test
