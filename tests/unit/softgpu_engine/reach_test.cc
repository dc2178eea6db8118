// What a kernel may touch: the book of spans against a plain model, and every kind of access at
// addresses inside, at the edges of and outside of what was lent.
#include <algorithm>
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "fixture.h"
#include "host-daemon/softgpu/engine/windows.h"

namespace gantry::softgpu::test {
namespace {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

TEST(SoftgpuReach, KeepsSpansLikeAModelOfEveryByte) {
    constexpr u64 kBase = 0x7000;
    constexpr u64 kBytes = 96;
    std::mt19937_64 random(7);
    const ReachScope scope;
    for (int round = 0; round < 40; ++round) {
        Reach reach;
        u8 model[kBytes] = {};  // 0 nothing, 1 read, 2 read and write
        for (int step = 0; step < 60; ++step) {
            const u64 begin = random() % kBytes;
            const u64 bytes = random() % (kBytes - begin + 1);
            const u8 what = static_cast<u8>(random() % 3);
            std::fill_n(model + begin, bytes, what);
            if (what == 0) {
                reach.remove(kBase + begin, bytes);
            } else {
                reach.add(kBase + begin, bytes, what == 2);
            }
            for (int look = 0; look < 20; ++look) {
                const u64 from = random() % kBytes;
                const u64 count = random() % (kBytes - from) + 1;
                for (const Touch touch : {Touch::kRead, Touch::kWrite}) {
                    const u8 least = touch == Touch::kWrite ? 2 : 1;
                    const bool wanted = std::all_of(model + from, model + from + count,
                                                    [&](u8 byte) { return byte >= least; });
                    ReachSpan span;
                    ASSERT_EQ(reach.find(kBase + from, count, touch, span), wanted);
                    if (wanted) {
                        ASSERT_LE(span.begin, kBase + from);
                        ASSERT_GE(span.last, kBase + from);
                        for (u64 at = span.begin; at <= span.last; ++at) {
                            ASSERT_GE(model[at - kBase], least);
                        }
                    }
                }
            }
        }
    }
    Reach reach;
    ReachSpan span;
    reach.add(~u64{0} - 15, 16);
    EXPECT_TRUE(reach.find(~u64{0} - 7, 8, Touch::kWrite, span));
    EXPECT_FALSE(reach.find(~u64{0} - 7, 9, Touch::kWrite, span));
    reach.add(~u64{0} - 3, 8);  // Beyond the last address: nothing.
    EXPECT_FALSE(reach.find(4, 1, Touch::kRead, span));
    EXPECT_FALSE(reach.find(4, 0, Touch::kRead, span));
}

/// One instruction that touches `size` bytes at [%rd1], and whether it writes.
struct Access1 {
    const char* text;
    u32 size;
    bool writes;
};

constexpr Access1 kAccesses[] = {
    {"ld.u8 %r2, [%rd1];", 1, false},
    {"ld.global.u16 %r2, [%rd1];", 2, false},
    {"ld.u32 %r2, [%rd1];", 4, false},
    {"ld.global.nc.u32 %r2, [%rd1];", 4, false},
    {"ld.const.u32 %r2, [%rd1];", 4, false},
    {"ld.param.u32 %r2, [%rd1];", 4, false},
    {"ld.global.u64 %rd4, [%rd1]; cvt.u32.u64 %r2, %rd4;", 8, false},
    {"ld.v2.u32 {%r2, %r3}, [%rd1];", 8, false},
    {"ld.global.v4.u8 {%r2, %r3, %r4, %r5}, [%rd1];", 4, false},
    {"ld.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1];", 16, false},
    {"ld.volatile.u32 %r2, [%rd1];", 4, false},
    {"ld.acquire.gpu.global.u64 %rd4, [%rd1]; cvt.u32.u64 %r2, %rd4;", 8, false},
    {"ld.volatile.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1];", 16, false},
    {"ld.b128 %q1, [%rd1]; mov.b128 {%rd4, %rd5}, %q1; cvt.u32.u64 %r2, %rd4;", 16, false},
    {"cp.async.ca.shared.global [%r9], [%rd1], 8; ld.shared.u32 %r2, [%r9];", 8, false},
    {"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r9], [%rd1], 32, [%r8];"
     "ld.shared.u32 %r2, [%r9];",
     32, false},
    {"wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r2, %r3, %r4, %r5, %r10, %r11, %r12, %r13},"
     "[%rd1];",
     512, false},
    {"ldmatrix.sync.aligned.m8n8.x1.b16 {%r2}, [%rd1];", 16, false},
    {"st.u8 [%rd1], %r7;", 1, true},
    {"st.global.u32 [%rd1], %r7;", 4, true},
    {"st.u64 [%rd1], %rd3;", 8, true},
    {"st.v4.u32 [%rd1], {%r7, %r7, %r7, %r7};", 16, true},
    {"st.volatile.u32 [%rd1], %r7;", 4, true},
    {"st.release.gpu.global.v2.u64 [%rd1], {%rd3, %rd3};", 16, true},
    {"st.b128 [%rd1], %q1;", 16, true},
    {"atom.add.u32 %r2, [%rd1], %r7;", 4, true},
    {"atom.add.f32 %r2, [%rd1], 0f3F800000;", 4, true},
    {"atom.global.exch.b64 %rd4, [%rd1], %rd3; cvt.u32.u64 %r2, %rd4;", 8, true},
    {"atom.global.cas.b16 %rs1, [%rd1], %rs1, %rs2; cvt.u32.u16 %r2, %rs1;", 2, true},
    {"atom.exch.b128 %q2, [%rd1], %q1; mov.b128 {%rd4, %rd5}, %q2; cvt.u32.u64 %r2, %rd4;", 16,
     true},
    {"red.global.or.b32 [%rd1], %r7;", 4, true},
    {"cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r9], 32;", 32, true},
    {"wmma.store.d.sync.aligned.row.m16n16k16.f16 [%rd1], {%r7, %r7, %r7, %r7};", 512, true},
    {"mbarrier.init.b64 [%rd1], 3;", 8, true},
};

/// A kernel of one warp: its lanes do the access at their own addresses and store what came. Only
/// one lane of a warp that needs not be whole uses the address under test.
Loaded kernel_of(const Access1& access) {
    const std::string body =
        ".visible .entry k(.param .u64 pa, .param .u64 po) {\n"
        ".reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<20>; .reg .b64 %rd<10>;\n"
        ".reg .b128 %q<3>; .shared .align 128 .b8 s[128]; .shared .align 8 .b8 bar[8];\n"
        "ld.param.u64 %rd8, [pa]; ld.param.u64 %rd9, [po];\n"
        "mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 8; add.u64 %rd8, %rd8, %rd2;\n"
        "mul.wide.u32 %rd2, %r1, 4; add.u64 %rd9, %rd9, %rd2;\n"
        "mov.u64 %rd3, 0x5A5A5A5A5A5A5A5A; mov.u32 %r7, 0x5A5A5A5A; mov.b128 %q1, {%rd3, %rd3};\n"
        "mov.u16 %rs1, 0; mov.u16 %rs2, 0x5A5A; mov.u32 %r2, 0; mov.u32 %r9, s; mov.u32 %r8, bar;\n"
        "mbarrier.init.shared::cta.b64 [%r8], 64;\n"
        "ld.global.u64 %rd1, [%rd8];\n" +
        std::string(access.text) + "\nst.global.u32 [%rd9], %r2;\nret; }";
    return load_or_die(body);
}

/// Memory with a lent part in its middle, the rest full of a secret.
struct Guarded {
    static constexpr u64 kBytes = 8192;
    static constexpr u64 kBegin = 2048;
    static constexpr u64 kLent = 4096;
    static constexpr u8 kSecret = 0xC7;
    alignas(4096) u8 bytes[kBytes];
    Guarded() { std::memset(bytes, kSecret, sizeof bytes), clear(); }
    void clear() { std::memset(bytes + kBegin, 0, kLent); }
    [[nodiscard]] u64 at(u64 offset) const { return reinterpret_cast<u64>(bytes) + offset; }
    [[nodiscard]] bool is_whole() const {
        const auto secret = [](u8 byte) { return byte == kSecret; };
        return std::all_of(bytes, bytes + kBegin, secret) &&
               std::all_of(bytes + kBegin + kLent, bytes + kBytes, secret);
    }
    [[nodiscard]] bool may(u64 address, u64 size) const {
        return address >= at(kBegin) && address <= at(kBegin + kLent) &&
               size <= at(kBegin + kLent) - address;
    }
};

TEST(SoftgpuReach, EveryAccessEndsAtTheEdge) {
    static Guarded guarded;
    static const u64 kElsewhere = 0xC7C7C7C7C7C7C7C7;  // In the program's own data.
    u64 on_stack = kElsewhere;
    const auto on_heap = std::make_unique<u64[]>(64);
    std::fill_n(on_heap.get(), 64, kElsewhere);
    std::mt19937_64 random(11);
    unsigned refused = 0;
    unsigned done = 0;
    for (const Access1& access : kAccesses) {
        const Loaded loaded = kernel_of(access);
        const u64 align = std::min(access.size, access.size >= 32 ? 16U : access.size);
        std::vector<u64> tried = {
            guarded.at(Guarded::kBegin),
            guarded.at(Guarded::kBegin + Guarded::kLent - access.size),
            guarded.at(Guarded::kBegin - align),
            guarded.at(Guarded::kBegin + Guarded::kLent),
            guarded.at(Guarded::kBegin + Guarded::kLent - access.size + align),
            reinterpret_cast<u64>(&kElsewhere) / align * align,
            reinterpret_cast<u64>(&on_stack) / align * align,
            reinterpret_cast<u64>(on_heap.get() + 8) / align * align,
            reinterpret_cast<u64>(&std::free) / align * align,
            reinterpret_cast<u64>(loaded.program.get()) / align * align,
            0,
            ~u64{0} / align * align,
            u64{1} << 47,
            kSharedWindow - align,
            kWindowsEnd,
            kSharedWindow + 1'000'000'000,
            kLocalWindow + 1'000'000'000,
            kParameterWindow + 4096,
            kGridWindow + 4096,
            kLaunchWindow,
            kLaunchWindow + kLaunchSlotBytes,
        };
        for (int i = 0; i < 12; ++i) {
            tried.push_back((guarded.at(random() % Guarded::kBytes)) / align * align);
            tried.push_back((random() >> (random() % 40)) / align * align);
        }
        for (const u64 address : tried) {
            guarded.clear();
            // One lane, every lane, or a lane among others that are right.
            for (const u32 way : {0U, 1U, 2U}) {
                std::vector<u64> at(32, guarded.at(Guarded::kBegin + 512));
                const u32 lane = static_cast<u32>(random() % 32);
                way == 1 ? std::fill(at.begin(), at.end(), address) : void(at[lane] = address);
                const bool one =
                    std::string_view(access.text).find("wmma") != std::string::npos ||
                    std::string_view(access.text).find("ldmatrix") != std::string::npos;
                if (one || way == 0) {
                    std::swap(at[0], at[lane]);
                }
                std::vector<u32> out(32, 0x11111111);
                Params params;
                params.pointer(at).pointer(out);
                params.lend(guarded.bytes + Guarded::kBegin, Guarded::kLent);
                const u32 lanes = one || way != 0 ? 32 : 1;
                const LaunchStatus status = launch(loaded, "k", {}, {lanes, 1, 1}, params);
                const bool right = guarded.may(address, access.size);
                ASSERT_EQ(status.error, right ? LaunchError::kNone : LaunchError::kIllegalAddress)
                    << access.text << " at 0x" << std::hex << address << ": " << status.text;
                ASSERT_TRUE(guarded.is_whole()) << access.text << " at 0x" << std::hex << address;
                ASSERT_EQ(kElsewhere, on_stack);
                ASSERT_TRUE(std::all_of(on_heap.get(), on_heap.get() + 64,
                                        [&](u64 word) { return word == on_stack; }));
                for (const u32 word : out) {
                    ASSERT_TRUE(right || word == 0x11111111) << access.text;
                }
                ++(right ? done : refused);
            }
        }
    }
    EXPECT_GT(done, 200U);
    EXPECT_GT(refused, 2000U);
}

TEST(SoftgpuReach, WindowsHideTheHostAndEndWhereTheyEnd) {
    const Loaded loaded = load_or_die(R"(
.visible .entry addresses(.param .u64 po, .param .align 8 .b8 blob[24]) {
.reg .b32 %r<9>; .reg .b64 %rd<12>; .reg .pred %p<9>; .shared .align 16 .b8 s[64];
.local .align 16 .b8 l[64];
ld.param.u64 %rd1, [po];
mov.u64 %rd2, s; cvta.shared.u64 %rd3, %rd2; st.global.u64 [%rd1], %rd3;
mov.u64 %rd2, l; cvta.local.u64 %rd4, %rd2; st.global.u64 [%rd1+8], %rd4;
mov.u64 %rd2, blob; cvta.param.u64 %rd5, %rd2; st.global.u64 [%rd1+16], %rd5;
mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; mov.b64 %rd6, {%r2, %r1};
st.global.u64 [%rd1+24], %rd6;
st.u32 [%rd3+60], 5; ld.shared.u32 %r3, [s+60]; st.global.u32 [%rd1+32], %r3;
st.u32 [%rd4+60], 6; ld.local.u32 %r3, [l+60]; st.global.u32 [%rd1+36], %r3;
ld.u32 %r3, [%rd5+16]; st.global.u32 [%rd1+40], %r3;
atom.add.u32 %r3, [%rd6], 1; ld.u32 %r3, [%rd6]; st.global.u32 [%rd1+44], %r3;
cvta.to.shared.u64 %rd7, %rd3; cvt.u32.u64 %r3, %rd7; st.global.u32 [%rd1+48], %r3;
isspacep.shared %p1, %rd3; isspacep.local %p2, %rd4; isspacep.global %p3, %rd1;
isspacep.param %p4, %rd5; isspacep.shared %p5, %rd4; isspacep.global %p6, %rd3;
selp.u32 %r3, 1, 0, %p1; @%p2 or.b32 %r3, %r3, 2; @%p3 or.b32 %r3, %r3, 4;
@%p4 or.b32 %r3, %r3, 8; @%p5 or.b32 %r3, %r3, 16; @%p6 or.b32 %r3, %r3, 32;
st.global.u32 [%rd1+52], %r3;
ret; }
.visible .entry touch(.param .u64 pa, .param .u32 write) {
.reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .pred %p<2>; .shared .align 16 .b8 s[64];
.local .align 16 .b8 l[64];
ld.param.u64 %rd1, [pa]; ld.param.u32 %r1, [write]; setp.ne.u32 %p1, %r1, 0;
mov.u32 %r2, s; st.shared.u32 [%r2], 1; st.local.u32 [l], 1;
@%p1 bra WRITE; ld.u32 %r3, [%rd1]; ret;
WRITE: st.u32 [%rd1], 1; ret; })");
    std::vector<u64> out(8);
    Params params;
    params.pointer(out).add(u64{0}).add(u64{0}).add(u64{77});
    const LaunchStatus status = launch(loaded, "addresses", {}, {1, 1, 1}, params);
    ASSERT_TRUE(status.ok()) << status.text;
    EXPECT_EQ(out[0] / kWindowBytes, kSharedWindow / kWindowBytes);
    EXPECT_EQ(out[1] / kWindowBytes, kLocalWindow / kWindowBytes);
    EXPECT_EQ(out[2] / kWindowBytes, kParameterWindow / kWindowBytes);
    EXPECT_EQ(out[3], kGridWindow);
    const auto word = [&](std::size_t index) {
        return reinterpret_cast<const u32*>(out.data())[index];
    };
    EXPECT_EQ(word(8), 5U);
    EXPECT_EQ(word(9), 6U);
    EXPECT_EQ(word(10), 77U);
    EXPECT_EQ(word(11), 1U);
    EXPECT_EQ(word(12), 0U);
    EXPECT_EQ(word(13), 15U);
    const auto touch = [&](u64 address, bool write) {
        return launch(loaded, "touch", {}, {64, 1, 1}, Params().add(address).add(u32{write})).error;
    };
    const auto good = LaunchError::kNone;
    const auto bad = LaunchError::kIllegalAddress;
    for (const bool write : {false, true}) {
        EXPECT_EQ(touch(kSharedWindow + 60, write), good);
        EXPECT_EQ(touch(kSharedWindow + 64, write), bad);
        EXPECT_EQ(touch(kSharedWindow + 65536, write), bad);
        EXPECT_EQ(touch(kSharedWindow - 4, write), bad);
        EXPECT_EQ(touch(kLocalWindow + 60, write), good);
        EXPECT_EQ(touch(kLocalWindow + 4096, write), bad);  // Where another thread's would lie.
        EXPECT_EQ(touch(kLocalWindow + 0xfffffffc, write), bad);
        EXPECT_EQ(touch(kParameterWindow + 12, write), bad);
        EXPECT_EQ(touch(kGridWindow + 256, write), bad);
        EXPECT_EQ(touch(kLaunchWindow, write), bad);
    }
    EXPECT_EQ(touch(kParameterWindow + 8, false), good);
    EXPECT_EQ(touch(kParameterWindow + 8, true), bad);
}

TEST(SoftgpuReach, ParametersBeginWhereTheyBegin) {
    const std::string text = std::string(kHeader) +
                             ".visible .entry k(.param .u64 a, .param .u64 b) { .reg .b64 %rd<3>;\n"
                             " ld.param.u64 %rd1, [a-8]; ret; }";
    const PtxSource source{text, {}};
    EXPECT_FALSE(Program::link({&source, 1}).ok());
}

TEST(SoftgpuReach, TexelsAreLookedUp) {
    class Wild : public TextureUnit {
    public:
        const TextureDescription* texture(u64) const override { return &description; }
        const SurfaceDescription* surface(u64) const override { return &plane; }
        TextureDescription description;
        SurfaceDescription plane;
    } unit;
    const Loaded loaded = load_or_die(R"(
.visible .entry plane(.param .u64 po) { .reg .b32 %f<9>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [po]; mov.u64 %rd2, 7; mov.f32 %f1, 0f3F000000;
tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd2, {%f1, %f1}]; st.global.f32 [%rd1], %f3; ret; }
.visible .entry layer(.param .u64 po) { .reg .b32 %f<9>; .reg .b32 %r<2>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [po]; mov.u64 %rd2, 7; mov.f32 %f1, 0f3F000000; mov.u32 %r1, 0;
tex.a2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd2, {%r1, %f1, %f1, %f1}]; st.global.f32 [%rd1], %f3;
ret; }
.visible .entry load(.param .u64 po) { .reg .b32 %r<9>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [po]; mov.u64 %rd2, 7; mov.u32 %r1, 0;
suld.b.2d.b32.trap %r4, [%rd2, {%r1, %r1}]; st.global.u32 [%rd1], %r4; ret; }
.visible .entry store(.param .u64 po) { .reg .b32 %r<9>; .reg .b64 %rd<9>;
mov.u64 %rd2, 7; mov.u32 %r1, 0; sust.b.2d.b32.trap [%rd2, {%r1, %r1}], %r1; ret; })");
    alignas(64) static u32 texels[64];
    std::fill_n(texels, 64, 0x40000000U);
    for (const bool lent : {true, false}) {
        unit.description.levels[0] = {reinterpret_cast<u64>(texels), 4, 2, 1, 16, 32};
        unit.plane.format = {TexelKind::kUnsigned, 32, 1};
        unit.plane.level = unit.description.levels[0];
        for (const char* name : {"plane", "layer", "load", "store"}) {
            TestServices services;
            services.unit = &unit;
            if (lent) {
                services.lent.add(reinterpret_cast<u64>(texels), sizeof texels);
            }
            std::vector<u32> out(1, 7);
            Params params;
            params.pointer(out);
            const auto error = launch(loaded, name, {}, {1, 1, 1}, params, services).error;
            EXPECT_EQ(error, lent ? LaunchError::kNone : LaunchError::kIllegalAddress) << name;
            EXPECT_TRUE(lent || out[0] == 7) << name;
            EXPECT_TRUE(lent || texels[0] == 0x40000000U);
            texels[0] = 0x40000000U;
        }
    }
}

TEST(SoftgpuReach, TextsOfPrintfAndAssertAreLookedUp) {
    const Loaded loaded = load_or_die(R"(
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 format[4] = {37, 115, 10, 0};
.visible .entry k(.param .u64 pa, .param .u64 pf) {
.reg .b32 %r<4>; .reg .b64 %rd<9>; .reg .pred %p<2>; .local .align 8 .b8 args[8];
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd5, [pf]; st.local.u64 [args], %rd1;
mov.u64 %rd2, args; cvta.local.u64 %rd3, %rd2;
setp.ne.u64 %p1, %rd5, 0; mov.u64 %rd4, format; @%p1 mov.u64 %rd4, %rd5;
{ .param .b64 p0; st.param.b64 [p0], %rd4; .param .b64 p1; st.param.b64 [p1], %rd3;
.param .b32 q; call (q), vprintf, (p0, p1); ld.param.b32 %r1, [q]; }
ret; })");
    static char secret[] = "the worker's secret";
    TestServices services;
    EXPECT_EQ(launch(loaded, "k", {}, {1, 1, 1},
                     Params().add(reinterpret_cast<u64>(&secret[0])).add(u64{0}), services)
                  .error,
              LaunchError::kIllegalAddress);
    EXPECT_EQ(launch(loaded, "k", {}, {1, 1, 1},
                     Params().add(u64{0}).add(reinterpret_cast<u64>(&secret[0])), services)
                  .error,
              LaunchError::kIllegalAddress);
    EXPECT_EQ(services.printed, "");
    Params right;
    right.pointer(secret).add(u64{0});
    EXPECT_TRUE(launch(loaded, "k", {}, {1, 1, 1}, right, services).ok());
    EXPECT_EQ(services.printed, "the worker's secret\n");
}

TEST(SoftgpuReach, ArgumentsOfACallStayInTheStack) {
    // A prototype that is larger than the function it is used for.
    const Loaded loaded = load_or_die(R"(
.func small(.param .b32 a) { ret; }
.visible .entry k() {
.reg .b64 %rd<3>; .param .align 8 .b8 huge[200000];
mov.u64 %rd1, small;
proto: .callprototype _ (.param .align 8 .b8 _[200000]);
call %rd1, (huge), proto;
ret; })");
    EXPECT_EQ(launch(loaded, "k", {}, {32, 1, 1}, Params()).error,
              LaunchError::kHardwareStackError);
}

/// A kernel reads memory again and again while it is taken away. Once await_kernels() has returned,
/// the kernel has seen the last of it.
TEST(SoftgpuReach, WhatIsTakenAwayIsGoneForRunningKernels) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 pw, .param .u64 ps) {
.reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<2>;
ld.param.u64 %rd1, [pw]; ld.param.u64 %rd2, [ps];
AGAIN: ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2+4], %r1; st.global.u32 [%rd2], 1;
bra AGAIN; })");
    for (int round = 0; round < 20; ++round) {
        static u32 watched;
        watched = 5;
        std::vector<u32> seen(2);
        TestServices services;
        Params params;
        params.pointer(seen);
        params = Params().add(reinterpret_cast<u64>(&watched)).pointer(seen);
        services.lent.add(reinterpret_cast<u64>(&watched), sizeof watched);
        LaunchStatus status;
        std::thread runner([&] { status = launch(loaded, "k", {}, {1, 1, 1}, params, services); });
        while (std::atomic_ref(seen[0]).load() == 0) {
            std::this_thread::yield();
        }
        services.lent.remove(reinterpret_cast<u64>(&watched), sizeof watched);
        Reach::await_kernels();
        std::atomic_ref(watched).store(0xC7C7C7C7);
        runner.join();
        EXPECT_EQ(status.error, LaunchError::kIllegalAddress);
        EXPECT_EQ(seen[1], 5U);
    }
}

}  // namespace
}  // namespace gantry::softgpu::test
