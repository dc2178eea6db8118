// Loads, stores, address spaces, atomics, faults.
#include "tests/unit/softgpu_engine/fixture.h"

namespace gantry::softgpu::test {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

TEST(SoftgpuMemory, WidthsAndVectors) {
    const std::string base =
        "mov.u32 %r20, scratch; shl.b32 %r21, %r9, 5; add.u32 %r20, %r20, %r21;"
        "st.shared.u64 [%r20], %rd1; st.shared.u64 [%r20+8], %rd2;";
    const u64 a = 0x8182838485868788ULL, b = 0x1112131415161718ULL;
    EXPECT_EQ(evaluate(base + "ld.shared.u8 %r0, [%r20+1];", "%r0", {a}, {b})[0], 0x87U);
    EXPECT_EQ(evaluate(base + "ld.shared.s8 %r0, [%r20+1];", "%r0", {a}, {b})[0], 0xffffff87U);
    EXPECT_EQ(evaluate(base + "ld.weak.shared.u8 %r0, [%r20+1];", "%r0", {a}, {b})[0], 0x87U);
    EXPECT_EQ(evaluate(base + "ld.shared.s16 %r0, [%r20+2];", "%r0", {a}, {b})[0], 0xffff8586U);
    EXPECT_EQ(evaluate(base + "ld.shared.s32 %rd0, [%r20+4];", "%rd0", {a}, {b})[0],
              0xffffffff81828384ULL);
    EXPECT_EQ(evaluate(base + "ld.shared.v2.u32 {%r4, %r5}, [%r20+8]; mov.b64 %rd0, {%r5, %r4};",
                       "%rd0", {a}, {b})[0],
              0x1516171811121314ULL);
    EXPECT_EQ(
        evaluate(
            base + "ld.shared.v4.u16 {%rs4, _, %rs5, %rs6}, [%r20]; mov.b32 %r0, {%rs4, %rs6};",
            "%r0", {a}, {b})[0],
        0x81828788U);
    EXPECT_EQ(
        evaluate(
            base +
                "ld.shared.v2.u64 {%rd4, %rd5}, [%r20]; st.shared.v2.u64 [%r20+16], {%rd5, %rd4};"
                "ld.shared.b64 %rd0, [%r20+16];",
            "%rd0", {a}, {b})[0],
        b);
    EXPECT_EQ(evaluate(base + ".reg .b128 %q; ld.shared.b128 %q, [%r20]; mov.b128 {%rd4, %rd5}, %q;"
                              "xor.b64 %rd0, %rd4, %rd5;",
                       "%rd0", {a}, {b})[0],
              a ^ b);
}

TEST(SoftgpuMemory, GenericAddressesOfSharedAndLocal) {
    const std::string body =
        ".local .align 8 .b8 depot[64]; mov.u64 %rd4, depot; cvta.local.u64 %rd5, %rd4;"
        "add.u64 %rd5, %rd5, 16; st.u32 [%rd5], %r1; ld.local.u32 %r4, [depot+16];"
        "mov.u32 %r20, scratch; cvt.u64.u32 %rd6, %r20; cvta.shared.u64 %rd7, %rd6;"
        "mul.wide.u32 %rd8, %r9, 4; add.u64 %rd7, %rd7, %rd8; st.u32 [%rd7], %r4;"
        "cvta.to.shared.u64 %rd10, %rd7; ld.shared.u32 %r5, [%rd10];"
        "isspacep.shared %p1, %rd7; isspacep.local %p2, %rd5; isspacep.global %p3, %rd5;"
        "selp.u32 %r6, 1, 0, %p1; selp.u32 %r7, 2, 0, %p2; selp.u32 %r8, 4, 0, %p3;"
        "add.u32 %r0, %r5, %r6; add.u32 %r0, %r0, %r7; add.u32 %r0, %r0, %r8;";
    const Lanes got = evaluate(body, "%r0", {1000, 2000, 3000});
    EXPECT_THAT(got, ::testing::ElementsAre(1003U, 2003U, 3003U));
}

TEST(SoftgpuMemory, ParametersLieInTheGlobalWindow) {
    const std::string body = "mov.u64 %rd4, pb; cvta.param.u64 %rd5, %rd4;";
    EXPECT_EQ(evaluate(body + "isspacep.global %p0, %rd5;", "%p0", {0})[0], 1U);
    EXPECT_EQ(evaluate(body + "isspacep.param::entry %p0, %rd5;", "%p0", {0})[0], 1U);
    EXPECT_EQ(evaluate(body + "isspacep.shared %p0, %rd5;", "%p0", {0})[0], 0U);
}

TEST(SoftgpuMemory, SharedMemoryIsOfRankZero) {
    EXPECT_EQ(evaluate("mov.u32 %r0, 7; mov.u32 %r20, scratch;"
                       "getctarank.shared::cluster.u32 %r0, %r20;",
                       "%r0", {0})[0],
              0U);
    EXPECT_EQ(evaluate("mov.u32 %r0, 7; mov.u64 %rd4, scratch; cvta.shared.u64 %rd5, %rd4;"
                       "getctarank.u64 %r0, %rd5;",
                       "%r0", {0})[0],
              0U);
}

TEST(SoftgpuMemory, UnevenAddressesAndMasks) {
    // Contiguous, uniform and scattered accesses give the same as lane by lane.
    const std::pair<const char*, u32 (*)(u32)> shapes[] = {
        {"mov.u32 %r4, %r9;", [](u32 i) { return i; }},
        {"mov.u32 %r4, 3;", [](u32) { return 3U; }},
        {"xor.b32 %r4, %r9, 21;", [](u32 i) { return i ^ 21U; }},
    };
    for (const auto& [index, from] : shapes) {
        const Lanes got = evaluate(
            std::string("mov.u32 %r20, scratch; shl.b32 %r21, %r9, 2; add.u32 %r21, %r21, %r20;"
                        "mul.lo.u32 %r5, %r9, 3; st.shared.u32 [%r21], %r5; bar.sync 0;") +
                index + "shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r20; ld.shared.u32 %r0, [%r4];",
            "%r0", Lanes(64));
        for (u32 i = 0; i < 64; ++i) {
            EXPECT_EQ(got[i], from(i) * 3) << index;
        }
    }
}

TEST(SoftgpuMemory, AtomicsOfAllKinds) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 p) {
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .b16 %rs<4>;
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
red.global.add.u32 [%rd1], 2;
atom.global.max.s32 %r2, [%rd1+4], %r1;
atom.global.min.u32 %r2, [%rd1+8], %r1;
atom.global.add.f32 %r2, [%rd1+12], 0f3F000000;
atom.global.add.u64 %rd2, [%rd1+16], 5;
atom.global.add.f64 %rd2, [%rd1+24], 0d3FE0000000000000;
atom.global.inc.u32 %r2, [%rd1+32], 9;
atom.global.or.b32 %r2, [%rd1+36], %r1;
mov.b32 %r3, 0x3c003c00;
atom.global.add.noftz.f16x2 %r2, [%rd1+40], %r3;
mov.b16 %rs1, 0x3f80;
atom.global.add.noftz.bf16 %rs2, [%rd1+44], %rs1;
atom.relaxed.gpu.global.add.v2.f32 {%r5, %r6}, [%rd1+48], {0f3F800000, 0f40000000};
mov.u64 %rd3, 7;
.reg .b128 %q<3>;
mov.b128 %q1, {%rd3, %rd3};
atom.global.exch.b128 %q2, [%rd1+64], %q1;
ret; })");
    alignas(16) static u32 cells[32];
    std::memset(cells, 0, sizeof cells);
    cells[2] = 1000;
    Params params;
    params.pointer(cells);
    const LaunchStatus status = launch(loaded, "k", {4, 1, 1}, {64, 1, 1}, params);
    ASSERT_TRUE(status.ok()) << status.text;
    EXPECT_EQ(cells[0], 512U);
    EXPECT_EQ(cells[1], 63U);
    EXPECT_EQ(cells[2], 0U);
    EXPECT_EQ(as_f32(cells[3]), 128.0F);
    u64 wide = 0;
    std::memcpy(&wide, &cells[4], 8);
    EXPECT_EQ(wide, 1280U);
    std::memcpy(&wide, &cells[6], 8);
    EXPECT_EQ(as_f64(wide), 128.0);
    EXPECT_EQ(cells[8], 256U % 10);
    EXPECT_EQ(cells[9], 63U);
    EXPECT_EQ(cells[10], 0x5c005c00U);  // 256.0 twice
    EXPECT_EQ(cells[11], 0x4380U);      // 256.0
    EXPECT_EQ(as_f32(cells[12]), 256.0F);
    EXPECT_EQ(as_f32(cells[13]), 512.0F);
    EXPECT_EQ(cells[16], 7U);
    EXPECT_EQ(cells[18], 7U);
}

TEST(SoftgpuMemory, SumsFlushInGlobalMemoryOnly) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 p) {
.reg .b32 %r<9>; .reg .b64 %rd<9>; .shared .align 8 .b8 s[8];
ld.param.u64 %rd1, [p];
red.global.add.f32 [%rd1], 0f80000000;
atom.add.f32 %r2, [%rd1+4], 0f80000000;
red.global.add.f32 [%rd1+8], 0f80800000;
red.add.f32 [%rd1+12], 0f00000001;
atom.global.add.v2.f32 {%r3, %r4}, [%rd1+16], {0f00000001, 0f3F800000};
mov.u32 %r1, s; st.shared.u32 [%r1], 1;
atom.shared.add.f32 %r5, [%r1], 0f00000001;
cvt.u64.u32 %rd2, %r1; cvta.shared.u64 %rd3, %rd2;
red.add.f32 [%rd3], 0f00000001;
ld.shared.u32 %r6, [%r1];
st.global.v4.u32 [%rd1+32], {%r2, %r3, %r5, %r6};
ret; })");
    alignas(16) static u32 cells[12];
    // A denormal, a negative one, a sum that becomes one, an operand that is one.
    const u32 before[12] = {1, 0x80000001, 0x00800001, 0, 1, 0x3f800000};
    std::memcpy(cells, before, sizeof cells);
    const LaunchStatus status = launch(loaded, "k", {}, {1, 1, 1}, Params().pointer(cells));
    ASSERT_TRUE(status.ok()) << status.text;
    EXPECT_THAT(cells, ::testing::ElementsAre(0U, 0x80000000U, 0U, 0U, 0U, 0x40000000U, 0U, 0U,
                                              0x80000001U, 1U, 1U, 3U));
}

TEST(SoftgpuMemory, CompareAndSwapReturnsTheOldValue) {
    const Lanes got = evaluate(
        "mov.u32 %r20, scratch; st.shared.u32 [%r20], 5; atom.shared.cas.b32 %r4, [%r20], 5, 9;"
        "atom.shared.cas.b32 %r5, [%r20], 5, 11; shl.b32 %r0, %r4, 8; or.b32 %r0, %r0, %r5;",
        "%r0", {0});
    EXPECT_EQ(got[0], 0x509U);
}

TEST(SoftgpuMemory, ReservedSharedMemoryLiesBesideTheKernelsOwn) {
    // Tiles of several warps of cooperative groups keep their barriers there.
    const Loaded loaded = load_or_die(R"(
.extern .shared .align 4 .b8 dynamic[];
.visible .entry k(.param .u64 p) {
.reg .b32 %r<16>; .reg .b64 %rd<4>;
.shared .align 4 .b8 own[36];
ld.param.u64 %rd1, [p];
mov.u32 %r1, %reserved_smem_offset_begin; mov.u32 %r2, %reserved_smem_offset_end;
mov.u32 %r3, %reserved_smem_offset_cap; mov.u32 %r4, %reserved_smem_offset_1;
mov.u32 %r5, %total_smem_size; mov.u32 %r6, %aggr_smem_size;
mov.u32 %r7, own; mov.u32 %r8, dynamic;
st.shared.u32 [%r7+32], 1; st.shared.u32 [%r8+96], 2;
st.shared.u32 [%r1], 4; st.shared.u32 [%r4], 8; st.shared.u32 [%r4+284], 16;
st.shared.u32 [%r2+-4], 32;
ld.shared.u32 %r9, [%r7+32]; ld.shared.u32 %r10, [%r8+96]; add.u32 %r9, %r9, %r10;
ld.shared.u32 %r10, [%r1]; add.u32 %r9, %r9, %r10;
ld.shared.u32 %r10, [%r4]; add.u32 %r9, %r9, %r10;
ld.shared.u32 %r10, [%r4+284]; add.u32 %r9, %r9, %r10;
ld.shared.u32 %r10, [%r2+-4]; add.u32 %r9, %r9, %r10;
sub.u32 %r11, %r2, %r1; sub.u32 %r12, %r6, %r5;
st.global.v4.u32 [%rd1], {%r9, %r11, %r3, %r12};
st.global.u32 [%rd1+16], %r5;
ret; }
)");
    std::vector<u32> out(5);
    TestServices services;
    const LaunchStatus status =
        launch(loaded, "k", {1, 1, 1}, {1, 1, 1}, Params().pointer(out), services, 100);
    ASSERT_TRUE(status.ok()) << status.text;
    EXPECT_THAT(out, ::testing::ElementsAre(63U, 1024U, 1024U, 1024U, out[4]));
    EXPECT_GE(out[4], 136U);
    EXPECT_LT(out[4], 1024U);
}

LaunchStatus run_fault(const std::string& body) {
    const Loaded loaded = load_or_die(
        ".visible .entry k() {\n.reg .b32 %r<9>; .reg .b64 %rd<9>;\n"
        ".shared .align 8 .b8 s[64];\n.local .align 8 .b8 l[16]; mov.u32 %r8, s;\n" +
        body + "\nret; }");
    return launch(loaded, "k", {2, 1, 1}, {64, 1, 1}, Params());
}

TEST(SoftgpuMemory, FaultsEndTheLaunchAndSayWhere) {
    const LaunchStatus null = run_fault("mov.u64 %rd1, 16; ld.global.u32 %r1, [%rd1];");
    EXPECT_EQ(null.error, LaunchError::kIllegalAddress);
    EXPECT_THAT(null.text, ::testing::HasSubstr("kernel 'k'"));
    EXPECT_THAT(null.text, ::testing::HasSubstr("PTX line 8"));
    EXPECT_EQ(run_fault("mov.u64 %rd1, 16; st.global.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};").error,
              LaunchError::kIllegalAddress);
    EXPECT_EQ(run_fault("mov.u64 %rd1, 16; atom.global.add.u32 %r1, [%rd1], 1;").error,
              LaunchError::kIllegalAddress);
    EXPECT_EQ(run_fault("mov.u64 %rd1, 0x7fff00000001; ld.global.u32 %r1, [%rd1];").error,
              LaunchError::kMisalignedAddress);
    EXPECT_EQ(run_fault("mov.u32 %r1, 62; ld.shared.u16 %r2, [%r1+2];").error,
              LaunchError::kIllegalAddress);
    EXPECT_EQ(run_fault("mov.u32 %r1, 2; ld.shared.u32 %r2, [%r1];").error,
              LaunchError::kMisalignedAddress);
    EXPECT_EQ(run_fault("mov.u64 %rd1, 1000000; st.local.u32 [%rd1], 1;").error,
              LaunchError::kIllegalAddress);
    EXPECT_EQ(run_fault("trap;").error, LaunchError::kTrap);
    // The engine works on afterwards.
    EXPECT_TRUE(run_fault("mov.u32 %r1, 0; ld.shared.u32 %r2, [%r1];").ok());
}

TEST(SoftgpuMemory, BulkCopiesAndTransactionBarriers) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 pi, .param .u64 po) {
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
.shared .align 16 .b8 s[256];
.shared .align 8 .b8 bar[8];
ld.param.u64 %rd1, [pi];
ld.param.u64 %rd2, [po];
mov.u32 %r1, s; mov.u32 %r2, bar;
mbarrier.init.shared::cta.b64 [%r2], 1;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 64, [%r2];
mbarrier.arrive.expect_tx.shared::cta.b64 %rd3, [%r2], 64;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;
@!%p1 bra WAIT;
cp.async.ca.shared.global [%r1+64], [%rd1+8], 8;
cp.async.cg.shared.global [%r1+80], [%rd1], 16, 4;
cp.async.commit_group;
cp.async.wait_group 0;
ld.shared.u32 %r3, [%r1+12]; st.global.u32 [%rd2], %r3;
ld.shared.u32 %r3, [%r1+68]; st.global.u32 [%rd2+4], %r3;
ld.shared.u32 %r3, [%r1+80]; st.global.u32 [%rd2+8], %r3;
ld.shared.u32 %r3, [%r1+84]; st.global.u32 [%rd2+12], %r3;
ret; })");
    alignas(16) static u32 in[16];
    for (u32 i = 0; i < 16; ++i) {
        in[i] = i + 50;
    }
    std::vector<u32> out(4, 1);
    Params params;
    params.pointer(in).pointer(out);
    const LaunchStatus status = launch(loaded, "k", {}, {1, 1, 1}, params);
    ASSERT_TRUE(status.ok()) << status.text;
    EXPECT_THAT(out, ::testing::ElementsAre(53U, 53U, 50U, 0U));
}

TEST(SoftgpuMemory, ABarrierHasOnePhaseAfterTheOther) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 po) {
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
.shared .align 8 .b8 bar[8];
ld.param.u64 %rd2, [po];
mov.u32 %r2, bar; mov.u32 %r3, 0;
mbarrier.init.shared::cta.b64 [%r2], 2;
NEXT:
and.b32 %r4, %r3, 1;
mbarrier.arrive.shared::cta.b64 %rd3, [%r2];
mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r2], %r4;
selp.u32 %r5, 10, 0, %p1;
mbarrier.arrive.shared::cta.b64 %rd3, [%r2];
mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r2], %r4;
@%p1 add.u32 %r5, %r5, 1;
st.global.u32 [%rd2], %r5;
add.u64 %rd2, %rd2, 4; add.u32 %r3, %r3, 1;
setp.lt.u32 %p2, %r3, 4;
@%p2 bra NEXT;
ret; })");
    std::vector<u32> out(4, 99);
    Params params;
    params.pointer(out);
    const LaunchStatus status = launch(loaded, "k", {}, {1, 1, 1}, params);
    ASSERT_TRUE(status.ok()) << status.text;
    EXPECT_THAT(out, ::testing::Each(1U)) << "not by the first of two, and by the second";
}

}  // namespace
}  // namespace gantry::softgpu::test
