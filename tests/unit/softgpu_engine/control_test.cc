// Calls, function pointers, recursion, indexed branches, stack memory, printf, assert, heap.
#include "tests/unit/softgpu_engine/fixture.h"

namespace gantry::softgpu::test {
namespace {

using u32 = std::uint32_t;

std::vector<u32> run_lanes(const std::string& text, u32 threads = 32) {
    const Loaded loaded = load_or_die(text);
    std::vector<u32> out(threads);
    const LaunchStatus status = launch(loaded, "k", {}, {threads, 1, 1}, Params().pointer(out));
    EXPECT_TRUE(status.ok()) << status.text;
    return out;
}

constexpr const char* kStore =
    "ld.param.u64 %rd1, [po]; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;"
    "st.global.u32 [%rd1], %r0; ret; }";
constexpr const char* kEntry =
    ".visible .entry k(.param .u64 po) { .reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<20>;"
    "mov.u32 %r1, %tid.x;";

TEST(SoftgpuControl, CallsUnderDivergence) {
    const auto out = run_lanes(std::string(R"(
.func (.param .b32 r) twice(.param .b32 x) { .reg .b32 %r<4>;
ld.param.b32 %r1, [x]; add.u32 %r2, %r1, %r1; st.param.b32 [r], %r2; ret; }
)") + kEntry + R"(
mov.u32 %r0, %r1; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra SKIP;
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), twice, (a);
ld.param.b32 %r0, [b]; }
SKIP: )" + kStore);
    for (u32 i = 0; i < 32; ++i) {
        EXPECT_EQ(out[i], i % 2 == 0 ? i : 2 * i);
    }
}

TEST(SoftgpuControl, RegisterParametersAndNumbers) {
    const auto out = run_lanes(std::string(R"(
.func (.reg .u32 r) sum(.reg .u32 x, .reg .u32 y) { add.u32 r, x, y; ret; }
)") + kEntry + "call (%r0), sum, (%r1, 7);" +
                               kStore);
    EXPECT_EQ(out[5], 12U);
}

TEST(SoftgpuControl, Recursion) {
    const auto out = run_lanes(std::string(R"(
.func (.param .b32 r) fact(.param .b32 n) {
.reg .pred %p<3>; .reg .b32 %r<8>;
ld.param.b32 %r1, [n];
mov.u32 %r4, 1;
setp.lt.u32 %p1, %r1, 2;
@%p1 bra END;
add.u32 %r2, %r1, -1;
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call.uni (b), fact, (a);
ld.param.b32 %r3, [b]; }
mul.lo.u32 %r4, %r3, %r1;
END: st.param.b32 [r], %r4; ret; }
)") + kEntry + R"(
rem.u32 %r3, %r1, 11;
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r3; call.uni (b), fact, (a);
ld.param.b32 %r0, [b]; })" + kStore);
    for (u32 i = 0; i < 32; ++i) {
        u32 expected = 1;
        for (u32 n = 2; n <= i % 11; ++n) {
            expected *= n;
        }
        EXPECT_EQ(out[i], expected) << i;
    }
}

TEST(SoftgpuControl, FunctionPointersInMemory) {
    const auto out = run_lanes(std::string(R"(
.func (.param .b32 r) inc(.param .b32 x) { .reg .b32 %r<3>; ld.param.b32 %r1, [x];
add.u32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }
.func (.param .b32 r) neg(.param .b32 x) { .reg .b32 %r<3>; ld.param.b32 %r1, [x];
neg.s32 %r1, %r1; st.param.b32 [r], %r1; ret; }
.global .align 8 .u64 table[2] = {inc, neg};
)") + kEntry + R"(
and.b32 %r2, %r1, 1; mul.wide.u32 %rd3, %r2, 8; mov.u64 %rd4, table; add.u64 %rd4, %rd4, %rd3;
ld.global.u64 %rd5, [%rd4];
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1;
proto: .callprototype (.param .b32 _) _ (.param .b32 _);
call (b), %rd5, (a), proto; ld.param.b32 %r0, [b]; })" +
                               kStore);
    EXPECT_EQ(out[4], 5U);
    EXPECT_EQ(out[7], static_cast<u32>(-7));
}

TEST(SoftgpuControl, CallThroughBadPointerIsAFault) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k() { .reg .b64 %rd<3>; mov.u64 %rd1, 12345;
p: .callprototype _ (); call %rd1, (), p; ret; })");
    EXPECT_EQ(launch(loaded, "k", {}, {1, 1, 1}, Params()).error, LaunchError::kInvalidPc);
}

TEST(SoftgpuControl, IndexedBranches) {
    const auto out = run_lanes(std::string(kEntry) + R"(
ts: .branchtargets A, B, C;
rem.u32 %r2, %r1, 3; brx.idx %r2, ts;
A: mov.u32 %r0, 10; bra OUT;
B: mov.u32 %r0, 20; bra OUT;
C: mov.u32 %r0, 30;
OUT: )" + kStore);
    for (u32 i = 0; i < 32; ++i) {
        EXPECT_EQ(out[i], 10 * (i % 3 + 1));
    }
}

TEST(SoftgpuControl, StackAllocation) {
    const auto out = run_lanes(std::string(kEntry) + R"(
add.u32 %r2, %r1, 1; shl.b32 %r2, %r2, 2; cvt.u64.u32 %rd3, %r2; stacksave.u64 %rd6;
alloca.u64 %rd4, %rd3, 16; st.local.u32 [%rd4], %r1; alloca.u64 %rd5, 16;
st.local.u32 [%rd5], 77; ld.local.u32 %r0, [%rd4]; stackrestore.u64 %rd6; )" +
                               kStore);
    EXPECT_EQ(out[9], 9U);
}

TEST(SoftgpuControl, LabelsAreLocalToBlocks) {
    const auto out = run_lanes(std::string(kEntry) + R"(
mov.u32 %r0, 0;
{ .reg .pred %q; L: add.u32 %r0, %r0, 1; setp.lt.u32 %q, %r0, 3; @%q bra L; }
{ .reg .pred %q; L: add.u32 %r0, %r0, 10; setp.lt.u32 %q, %r0, 40; @%q bra L; }
)" + kStore);
    EXPECT_EQ(out[0], 43U);
}

TEST(SoftgpuControl, PrintfFormatsAsCuda) {
    const Loaded loaded = load_or_die(R"(
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 fmt[40] = {37,53,100,124,37,45,51,117,124,37,108,108,120,124,37,46,50,102,
124,37,99,124,37,115,124,37,37,124,37,112,10,0};
.global .align 1 .b8 word[4] = {97,98,99,0};
.visible .entry k() {
.reg .b32 %r<9>; .reg .b64 %rd<9>;
.local .align 8 .b8 buf[64];
mov.u64 %rd1, buf; cvta.local.u64 %rd2, %rd1;
st.local.u32 [buf], -42; st.local.u32 [buf+4], 7; st.local.u64 [buf+8], 0x123456789a;
st.local.f64 [buf+16], 0d400921FB54442D18; st.local.u32 [buf+24], 65;
mov.u64 %rd3, word; cvta.global.u64 %rd4, %rd3; st.local.u64 [buf+32], %rd4;
st.local.u64 [buf+40], 4660;
mov.u64 %rd5, fmt; cvta.global.u64 %rd6, %rd5;
{ .param .b64 p0; .param .b64 p1; .param .b32 ret; st.param.b64 [p0], %rd6;
st.param.b64 [p1], %rd2; call.uni (ret), vprintf, (p0, p1); }
ret; })");
    TestServices services;
    ASSERT_TRUE(launch(loaded, "k", {}, {1, 1, 1}, Params(), services).ok());
    EXPECT_EQ(services.printed, "  -42|7  |123456789a|3.14|A|abc|%|0x1234\n");
    EXPECT_TRUE(loaded.program->kernels()[0].uses_printf);
}

TEST(SoftgpuControl, AssertNamesEveryLaneOfTheWarp) {
    const Loaded loaded = load_or_die(R"(
.extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n,
                           .param .b64 c);
.global .align 1 .b8 text[6] = {120,62,48,0};
.visible .entry k() {
.reg .pred %p<3>; .reg .b32 %r<3>; .reg .b64 %rd<4>;
mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 2; @!%p1 ret;
mov.u64 %rd1, text; cvta.global.u64 %rd2, %rd1;
{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
st.param.b64 [a], %rd2; st.param.b64 [b], %rd2; st.param.b32 [c], 12; st.param.b64 [d], %rd2;
st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }
ret; })");
    TestServices services;
    EXPECT_EQ(launch(loaded, "k", {3, 1, 1}, {32, 1, 1}, Params(), services).error,
              LaunchError::kAssert);
    EXPECT_THAT(services.asserted,
                ::testing::HasSubstr(
                    "x>0:12: x>0: block: [0,0,0], thread: [1,0,0] Assertion `x>0` failed.\n"));
}

TEST(SoftgpuControl, DeviceHeap) {
    const auto out = run_lanes(std::string(R"(
.extern .func (.param .b64 r) malloc(.param .b64 s);
.extern .func free(.param .b64 p);
)") + kEntry + R"(
{ .param .b64 s; .param .b64 r; st.param.b64 [s], 64; call.uni (r), malloc, (s);
ld.param.b64 %rd5, [r]; }
st.u32 [%rd5+8], %r1; ld.u32 %r0, [%rd5+8];
{ .param .b64 p; st.param.b64 [p], %rd5; call.uni free, (p); } )" +
                               kStore);
    EXPECT_EQ(out[31], 31U);
}

/// What nvcc makes of `function<<<1, threads, 0, stream>>>(%rd1, digit)` in device code.
std::string device_launch(const std::string& function, u32 threads, const std::string& digit,
                          u32 stream) {
    static u32 count = 0;
    const std::string label = "SKIP" + std::to_string(++count);
    return "{ .reg .pred %q; .param .b64 f; .param .align 4 .b8 g[12]; .param .align 4 .b8 b[12];"
           ".param .b32 s; .param .b64 r; .param .b64 st; .param .b32 e;"
           "mov.b64 %rd2, " +
           function +
           "; st.param.b64 [f], %rd2; st.param.b32 [g], 1;"
           "st.param.b32 [g+4], 1; st.param.b32 [g+8], 1;"
           "st.param.b32 [b], " +
           std::to_string(threads) +
           "; st.param.b32 [b+4], 1;"
           "st.param.b32 [b+8], 1; st.param.b32 [s], 0;"
           "call.uni (r), __cudaCDP2GetParameterBufferV2, (f, g, b, s);"
           "ld.param.b64 %rd3, [r]; setp.eq.u64 %q, %rd3, 0; @%q bra " +
           label +
           ";"
           "st.u64 [%rd3], %rd1; mov.u32 %r3, " +
           digit +
           "; st.u32 [%rd3+8], %r3;"
           "st.param.b64 [f], %rd3; st.param.b64 [st], " +
           std::to_string(stream) +
           ";"
           "call.uni (e), __cudaCDP2LaunchDeviceV2, (f, st);\n" +
           label + ": }\n";
}

TEST(SoftgpuControl, KernelsLaunchKernels) {
    // A child's child comes before the next child, and a tail launch last, wherever it stands.
    const std::string program =
        R"(
.extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2 (.param .b64 f,
 .param .align 4 .b8 g[12], .param .align 4 .b8 b[12], .param .b32 s);
.extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2 (.param .b64 b, .param .b64 s);
.visible .entry append(.param .u64 po, .param .u32 digit) {
.reg .b32 %r<9>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [po]; ld.param.u32 %r1, [digit]; ld.global.u32 %r2, [%rd1];
mad.lo.u32 %r2, %r2, 10, %r1; st.global.u32 [%rd1], %r2; ret; }
.visible .entry nested(.param .u64 po, .param .u32 digit) {
.reg .b32 %r<9>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [po]; ld.param.u32 %r1, [digit];
)" + device_launch("append", 1, "%r1", 0) +
        R"(ret; }
.visible .entry k(.param .u64 po) {
.reg .b32 %r<9>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [po];
)" + device_launch("append", 1, "9", 3) +
        device_launch("nested", 1, "4", 0) + device_launch("append", 1, "5", 0) +
        device_launch("append", 1025, "7", 0) + "st.global.u64 [%rd1+8], %rd3; ret; }";
    // The toolkit's own definitions would ask the card's firmware: they must not be reached.
    const std::string runtime =
        ".visible .func (.param .b32 r) __cudaCDP2LaunchDeviceV2 (.param .b64 b, .param .b64 s)"
        "{ trap; ret; }";
    const auto loaded = load({program, runtime});
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    std::vector<std::uint64_t> out{0, 1};
    const LaunchStatus status = launch(loaded.value(), "k", {}, {1, 1, 1}, Params().pointer(out));
    ASSERT_TRUE(status.ok()) << status.text;
    EXPECT_EQ(out[0], 459U);
    EXPECT_EQ(out[1], 0U);  // no buffer for a block larger than the device takes
}

TEST(SoftgpuControl, ACopyThatAKernelAsksForReachesWhatKernelsReach) {
    const Loaded loaded = load_or_die(R"(
.extern .func (.param .b32 r) __cudaCDP2MemcpyAsync (.param .b64 to, .param .b64 from,
 .param .b64 size, .param .b32 kind, .param .b64 stream);
.visible .entry k(.param .u64 pto, .param .u64 pfrom) { .reg .b64 %rd<3>; .reg .b32 %r<2>;
ld.param.u64 %rd1, [pto]; ld.param.u64 %rd2, [pfrom];
{ .param .b64 to; .param .b64 from; .param .b64 size; .param .b32 kind; .param .b64 stream;
.param .b32 e;
st.param.b64 [to], %rd1; st.param.b64 [from], %rd2; st.param.b64 [size], 16;
st.param.b32 [kind], 3; st.param.b64 [stream], 0;
call.uni (e), __cudaCDP2MemcpyAsync, (to, from, size, kind, stream); }
ret; })");
    std::vector<std::uint32_t> from{1, 2, 3, 4};
    for (const bool is_lent : {true, false}) {
        std::vector<std::uint32_t> to(4);
        Params params;
        params.pointer(to).add(reinterpret_cast<std::uint64_t>(from.data()));
        if (is_lent) {
            params.lend(from.data(), 16);
        }
        const LaunchStatus status = launch(loaded, "k", {}, {1, 1, 1}, params);
        EXPECT_EQ(status.error, is_lent ? LaunchError::kNone : LaunchError::kIllegalAddress);
        EXPECT_EQ(to == from, is_lent);
    }
}

}  // namespace
}  // namespace gantry::softgpu::test
