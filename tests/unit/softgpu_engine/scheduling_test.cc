// The scheduling rules that real programs rely on, one test each.
#include <atomic>

#include "tests/unit/softgpu_engine/fixture.h"

namespace gantry::softgpu::test {
namespace {

using u32 = std::uint32_t;

// Rule 1: a scan through shared memory without any barrier is right within a warp.
TEST(SoftgpuScheduling, LanesRunInLockstepWithoutBarriers) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 po) {
.reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<4>;
.shared .align 4 .b8 s[256];
ld.param.u64 %rd1, [po];
mov.u32 %r1, %tid.x;
mov.u32 %r2, s;
shl.b32 %r3, %r1, 2;
add.u32 %r4, %r2, %r3;
st.volatile.shared.u32 [%r4], 0;
add.u32 %r4, %r4, 128;
add.u32 %r5, %r1, 1;
st.volatile.shared.u32 [%r4], %r5;
mov.u32 %r6, 1;
LOOP:
shl.b32 %r7, %r6, 2;
sub.u32 %r8, %r4, %r7;
ld.volatile.shared.u32 %r9, [%r8];
ld.volatile.shared.u32 %r10, [%r4];
add.u32 %r10, %r10, %r9;
st.volatile.shared.u32 [%r4], %r10;
shl.b32 %r6, %r6, 1;
setp.lt.u32 %p1, %r6, 32;
@%p1 bra LOOP;
ld.volatile.shared.u32 %r11, [%r4];
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd1, %rd1, %rd2;
st.global.u32 [%rd1], %r11;
ret; })");
    std::vector<u32> out(32);
    ASSERT_TRUE(launch(loaded, "k", {}, {32, 1, 1}, Params().pointer(out)).ok());
    for (u32 i = 0; i < 32; ++i) {
        EXPECT_EQ(out[i], (i + 1) * (i + 2) / 2);
    }
}

// Rule 2: warps take turns finely: eight warps that each read-modify-write one cell many times
// interleave, as on hardware, instead of running one after the other.
TEST(SoftgpuScheduling, WarpsInterleaveFinely) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 po) {
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [po];
mov.u32 %r1, 0;
LOOP:
ld.global.u32 %r2, [%rd1];
add.u32 %r2, %r2, 1;
add.u32 %r1, %r1, 1;
setp.lt.u32 %p1, %r1, 1000;
st.global.u32 [%rd1], %r2;
@%p1 bra LOOP;
ret; })");
    std::vector<u32> out(1);
    ASSERT_TRUE(launch(loaded, "k", {}, {256, 1, 1}, Params().pointer(out)).ok());
    EXPECT_GE(out[0], 1000U);
    EXPECT_LT(out[0], 8000U) << "every warp ran to its end alone";
}

// Rule 3: the holder of a lock and its spinners are lanes of one warp.
TEST(SoftgpuScheduling, DivergentLanesAreFair) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 pl, .param .u64 pc) {
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [pl];
ld.param.u64 %rd2, [pc];
SPIN:
atom.global.cas.b32 %r1, [%rd1], 0, 1;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra SPIN;
ld.global.u32 %r2, [%rd2];
add.u32 %r2, %r2, 1;
st.global.u32 [%rd2], %r2;
membar.gl;
atom.global.exch.b32 %r1, [%rd1], 0;
ret; })");
    std::vector<u32> lock(1);
    std::vector<u32> count(1);
    ASSERT_TRUE(
        launch(loaded, "k", {4, 1, 1}, {64, 1, 1}, Params().pointer(lock).pointer(count)).ok());
    EXPECT_EQ(count[0], 256U);
}

// Rule 4: a block may wait for a later one without a cooperative launch.
TEST(SoftgpuScheduling, BlocksWaitForLaterBlocks) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 pf) {
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [pf];
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %nctaid.x;
add.u32 %r3, %r1, 1;
mul.wide.u32 %rd2, %r3, 4;
add.s64 %rd2, %rd1, %rd2;
setp.eq.u32 %p1, %r3, %r2;
@%p1 bra FIRST;
WAIT:
ld.volatile.global.u32 %r4, [%rd2];
setp.eq.u32 %p2, %r4, 0;
@%p2 bra WAIT;
FIRST:
mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd3, %rd1, %rd3;
st.volatile.global.u32 [%rd3], 1;
ret; })");
    std::vector<u32> flags(40);
    ASSERT_TRUE(launch(loaded, "k", {40, 1, 1}, {32, 1, 1}, Params().pointer(flags)).ok());
    EXPECT_THAT(flags, ::testing::Each(1U));
}

// Rule 5: threads that returned count as arrived.
TEST(SoftgpuScheduling, EarlyReturnsCountAtBarriers) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 po) {
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
.shared .align 4 .b8 s[512];
ld.param.u64 %rd1, [po];
mov.u32 %r1, %tid.x;
setp.ge.u32 %p1, %r1, 40;
@%p1 ret;
shl.b32 %r2, %r1, 2;
mov.u32 %r3, s;
add.u32 %r2, %r2, %r3;
st.shared.u32 [%r2], %r1;
bar.sync 0;
xor.b32 %r4, %r1, 7;
shl.b32 %r4, %r4, 2;
add.u32 %r4, %r4, %r3;
ld.shared.u32 %r5, [%r4];
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd2, %rd1, %rd2;
st.global.u32 [%rd2], %r5;
ret; })");
    std::vector<u32> out(40);
    ASSERT_TRUE(launch(loaded, "k", {}, {128, 1, 1}, Params().pointer(out)).ok());
    for (u32 i = 0; i < 40; ++i) {
        EXPECT_EQ(out[i], i ^ 7U);
    }
}

// Rule 6: a shuffle from a lane that takes no part gives 0.
TEST(SoftgpuScheduling, ShuffleFromInactiveLaneIsZero) {
    const Lanes got = evaluate(
        "mov.u32 %r0, 99; setp.lt.u32 %p1, %r9, 16;"
        "@!%p1 bra OUT; add.u32 %r4, %r9, 5; shfl.sync.down.b32 %r0, %r4, 8, 31, 0xffff; OUT:",
        "%r0", Lanes(32));
    for (u32 i = 0; i < 32; ++i) {
        EXPECT_EQ(got[i], i < 8 ? i + 13 : i < 16 ? 0U : 99U) << i;
    }
}

// Rule 7: each lane's own member mask is applied to its ballot.
TEST(SoftgpuScheduling, BallotUsesEachLanesMask) {
    const Lanes got = evaluate(
        "mov.u32 %r4, %lanemask_lt; and.b32 %r5, %r9, 1; setp.eq.u32 %p1, %r5, 1;"
        "vote.sync.ballot.b32 %r0, %p1, %r4;",
        "%r0", Lanes(32));
    for (u32 i = 0; i < 32; ++i) {
        EXPECT_EQ(got[i], 0xaaaaaaaaU & ((1U << i) - 1)) << i;
    }
}

// Rule 8: all blocks of a cooperative grid live at once.
TEST(SoftgpuScheduling, CooperativeGridsSynchronise) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 pc, .param .u64 po) {
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [pc];
ld.param.u64 %rd2, [po];
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %nctaid.x;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra JOIN;
atom.global.add.u32 %r4, [%rd1], 1;
WAIT:
ld.acquire.gpu.global.u32 %r4, [%rd1];
setp.lt.u32 %p2, %r4, %r3;
@%p2 bra WAIT;
mul.wide.u32 %rd3, %r2, 4;
add.s64 %rd3, %rd2, %rd3;
st.global.u32 [%rd3], %r4;
JOIN:
bar.sync 0;
ret; })");
    std::vector<u32> counter(1);
    std::vector<u32> out(200);
    TestServices services;
    ASSERT_TRUE(launch(loaded, "k", {200, 1, 1}, {128, 1, 1},
                       Params().pointer(counter).pointer(out), services, 0, true)
                    .ok());
    EXPECT_THAT(out, ::testing::Each(200U));
    const LaunchStatus large = launch(loaded, "k", {100000, 1, 1}, {1024, 1, 1},
                                      Params().pointer(counter).pointer(out), services, 0, true);
    EXPECT_EQ(large.error, LaunchError::kCooperativeTooLarge);
}

// Rule 9: static shared memory is what the kernel itself uses; dynamic memory starts behind it.
TEST(SoftgpuScheduling, SharedMemoryIsPerKernel) {
    const Loaded loaded = load_or_die(R"(
.shared .align 4 .b8 one[1024];
.shared .align 4 .b8 two[2048];
.extern .shared .align 16 .b8 dyn[];
.visible .entry a() { .reg .b32 %r<3>; mov.u32 %r1, one; st.shared.u32 [%r1], 1; ret; }
.visible .entry b(.param .u64 po) { .reg .b32 %r<4>; .reg .b64 %rd<2>;
ld.param.u64 %rd1, [po];
mov.u32 %r1, two; mov.u32 %r2, dyn; sub.u32 %r3, %r2, %r1; st.global.u32 [%rd1], %r3;
st.shared.u32 [%r2+252], %r3; ret; })");
    EXPECT_EQ(loaded.program->kernels()[*loaded.program->find_kernel("a")].static_shared_bytes,
              1024U);
    EXPECT_EQ(loaded.program->kernels()[*loaded.program->find_kernel("b")].static_shared_bytes,
              2048U);
    std::vector<u32> out(1);
    TestServices services;
    ASSERT_TRUE(launch(loaded, "b", {}, {1, 1, 1}, Params().pointer(out), services, 256).ok());
    EXPECT_EQ(out[0], 2048U);
    EXPECT_EQ(launch(loaded, "b", {}, {1, 1, 1}, Params().pointer(out), services, 128).error,
              LaunchError::kIllegalAddress);
}

// Rule 10: 16 bytes written together are seen together.
TEST(SoftgpuScheduling, SixteenByteAccessesAreNotTorn) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 pd, .param .u64 pe) {
.reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [pd];
ld.param.u64 %rd2, [pe];
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, 0;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READ;
WRITE:
cvt.u64.u32 %rd3, %r2;
st.volatile.global.v2.u64 [%rd1], {%rd3, %rd3};
add.u32 %r2, %r2, 1;
setp.lt.u32 %p2, %r2, 200000;
@%p2 bra WRITE;
ret;
READ:
ld.volatile.global.v2.u64 {%rd4, %rd5}, [%rd1];
setp.ne.u64 %p3, %rd4, %rd5;
@%p3 st.global.u32 [%rd2], 1;
add.u32 %r2, %r2, 1;
setp.lt.u32 %p2, %r2, 200000;
@%p2 bra READ;
ret; })");
    alignas(16) static std::uint64_t data[2] = {};
    std::vector<u32> torn(1);
    Params params;
    params.pointer(data).pointer(torn);
    ASSERT_TRUE(launch(loaded, "k", {2, 1, 1}, {1, 1, 1}, params).ok());
    EXPECT_EQ(torn[0], 0U);
}

TEST(SoftgpuScheduling, CountedBarriersSplitABlock) {
    // Warps 0 and 1 meet at barrier 1, warps 2 and 3 at barrier 2, at different speeds.
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 po) {
.reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %rd<4>;
.shared .align 4 .b8 s[512];
ld.param.u64 %rd1, [po];
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 6;
add.u32 %r3, %r2, 1;
shl.b32 %r4, %r1, 2;
mov.u32 %r5, s;
add.u32 %r6, %r5, %r4;
st.shared.u32 [%r6], %r1;
barrier.sync %r3, 64;
xor.b32 %r7, %r4, 128;
add.u32 %r7, %r7, %r5;
ld.shared.u32 %r8, [%r7];
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd2, %rd1, %rd2;
st.global.u32 [%rd2], %r8;
ret; })");
    std::vector<u32> out(128);
    ASSERT_TRUE(launch(loaded, "k", {}, {128, 1, 1}, Params().pointer(out)).ok());
    for (u32 i = 0; i < 128; ++i) {
        EXPECT_EQ(out[i], i ^ 32U);
    }
}

TEST(SoftgpuScheduling, BarrierReductions) {
    const Lanes got = evaluate(
        "setp.lt.u32 %p1, %r9, 40; bar.red.popc.u32 %r0, 0, %p1; bar.red.and.pred %p2, 0, %p1;"
        "bar.red.or.pred %p3, 0, !%p1; selp.u32 %r4, 100, 0, %p2; selp.u32 %r5, 1000, 0, %p3;"
        "add.u32 %r0, %r0, %r4; add.u32 %r0, %r0, %r5;",
        "%r0", Lanes(96));
    EXPECT_THAT(got, ::testing::Each(1040U));
}

TEST(SoftgpuScheduling, BarrierThatNobodyCompletesIsReported) {
    const Loaded loaded = load_or_die(".visible .entry k() { bar.sync 1, 64; ret; }");
    const LaunchStatus status = launch(loaded, "k", {}, {32, 1, 1}, Params());
    EXPECT_EQ(status.error, LaunchError::kTrap);
    EXPECT_THAT(status.text, ::testing::HasSubstr("barriers"));
}

TEST(SoftgpuScheduling, DivergentWarpSyncsMeet) {
    // The two halves of a warp reach different __syncwarp()s; the later shuffle sees all lanes.
    const Lanes got = evaluate(
        "setp.lt.u32 %p1, %r9, 16; @%p1 bra LOW; add.u32 %r4, %r9, 100; bar.warp.sync 0xffffffff;"
        "bra JOIN; LOW: add.u32 %r4, %r9, 200; bar.warp.sync 0xffffffff; JOIN:"
        "shfl.sync.bfly.b32 %r0, %r4, 16, 31, 0xffffffff;",
        "%r0", Lanes(32));
    for (u32 i = 0; i < 32; ++i) {
        EXPECT_EQ(got[i], i < 16 ? i + 116 : i - 16 + 200);
    }
}

TEST(SoftgpuScheduling, CancelledLaunchesEnd) {
    const Loaded loaded = load_or_die(".visible .entry k() { LOOP: bra LOOP; }");
    std::atomic<bool> cancel{true};
    TestServices services;
    LaunchConfig config;
    config.grid = {4, 1, 1};
    config.block = {32, 1, 1};
    config.cancel = &cancel;
    EXPECT_EQ(run(*loaded.program, 0, config, DeviceProfile{}, services).error,
              LaunchError::kCancelled);
}

}  // namespace
}  // namespace gantry::softgpu::test
