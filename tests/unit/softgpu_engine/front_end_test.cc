// Parser errors, refusals, linking across texts, kernel and global descriptions.
#include "tests/unit/softgpu_engine/fixture.h"

namespace gantry::softgpu::test {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::string& text) {
    auto loaded = load({text});
    return loaded.ok() ? "" : loaded.error().text;
}

TEST(SoftgpuFrontEnd, ErrorsHaveLineAndColumn) {
    // The header of three lines comes first.
    EXPECT_THAT(error_of(".visible .entry k() {\n  add.s32 %r1, 1, 2;\n ret; }"),
                HasSubstr("ptx:5:11: unknown name '%r1'"));
    EXPECT_THAT(error_of(".visible .entry k() { .reg .b32 %r<3>;\n add.s32 %r1 %r2, 1; }"),
                HasSubstr("ptx:5:14: expected ';'"));
    EXPECT_THAT(error_of(".visible .entry k() { bra NOWHERE; }"),
                HasSubstr("unknown name 'NOWHERE'"));
    EXPECT_THAT(error_of(".visible .entry k() {"), HasSubstr("the text ends inside function k"));
    EXPECT_THAT(
        error_of(
            ".visible .entry k() { .reg .b64 %rd1; .reg .b32 %r1; add.s32 %r1, %r1, 0x; ret; }"),
        HasSubstr("expected an operand"));
    EXPECT_THAT(error_of(".global .u32 a[2] = {1,2,3};"), HasSubstr("more initial values"));
    EXPECT_THAT(error_of(".visible .entry k() { L: L: ret; }"), HasSubstr("defined twice"));
    EXPECT_THAT(error_of("garbage"), HasSubstr("ptx:4:1: expected a directive"));
    EXPECT_THAT(error_of(".version 1569325055.9\n"),
                HasSubstr("ptx:4:10: expected a version such as 9.0"));
    EXPECT_THAT(error_of(".target sm_99999999999\n"), HasSubstr("expected a target such as sm_90"));
}

TEST(SoftgpuFrontEnd, AnInstructionWithoutItsOperandsIsRefused) {
    for (const char* instruction : {"activemask.b32", "mov.u32 %r1", "add.s32 %r1, %r1",
                                    "redux.sync.add.s32 %r1", "match.any.sync.b32 %r1"}) {
        EXPECT_NE(error_of(std::string(".visible .entry k() { .reg .b32 %r1; ") + instruction +
                           "; ret; }"),
                  "")
            << instruction;
    }
}

TEST(SoftgpuFrontEnd, NestingIsBounded) {
    EXPECT_THAT(error_of(".global .u32 a[" + std::string(100000, '(') + "1];"),
                HasSubstr("nested too deeply"));
    EXPECT_THAT(error_of(".visible .entry k() { add.s32 " + std::string(100000, '{')),
                HasSubstr("nested too deeply"));
    EXPECT_THAT(error_of(".global .u32 a[4] = " + std::string(100000, '{')),
                HasSubstr("nested too deeply"));
}

// Every prefix of a good text is either accepted or refused with a place, never a crash.
TEST(SoftgpuFrontEnd, TruncatedTextsAreRefused) {
    const std::string text =
        ".global .align 4 .b8 t[4] = {1,2,3,4};\n.visible .entry k(.param .u64 p) {\n"
        ".reg .b32 %r<4>; .reg .pred %p<2>; .reg .b64 %rd<3>;\nld.param.u64 %rd1, [p];\n"
        "L: setp.lt.s32 %p1|%p0, %r1, -5;\n@!%p1 bra L;\n{ .reg .f32 f; mov.f32 f, 0f3F800000; }\n"
        "st.global.v2.u32 [%rd1+8], {%r1, %r2};\nret;\n}\n";
    for (std::size_t length = 0; length < text.size(); ++length) {
        auto loaded = load({text.substr(0, length)});
        if (!loaded.ok()) {
            EXPECT_THAT(loaded.error().text, HasSubstr("ptx:")) << length;
        }
    }
}

TEST(SoftgpuFrontEnd, UnsupportedInstructionsAreRefusedByNameAndLine) {
    EXPECT_THAT(error_of(".visible .entry k() {\n wgmma.fence.sync.aligned;\n ret; }"),
                HasSubstr("ptx:5:2: 'wgmma.fence.sync.aligned' in 'k'"));
    EXPECT_THAT(
        error_of(".visible .entry k() { .reg .b32 %r<3>;\n add.strange.s32 %r1, %r1, 1; ret; }"),
        HasSubstr("modifier '.strange'"));
    EXPECT_THAT(error_of(".visible .entry k() { .reg .b32 %r<3>; add.b32 %r1, %r1, %r9; ret; }"),
                HasSubstr("unknown name"));
    EXPECT_THAT(error_of(".extern .func other(); .visible .entry k() { call other; ret; }"),
                HasSubstr("'other', which no text of this program defines"));
}

TEST(SoftgpuFrontEnd, RefusedKernelsNeedNotRefuseTheProgram) {
    const std::string text = std::string(kHeader) +
                             ".visible .entry good() { ret; }\n"
                             ".visible .entry bad() { wgmma.fence.sync.aligned; ret; }";
    const PtxSource source{text, {}};
    LinkOptions options;
    options.unsupported = UnsupportedPolicy::kRefuseKernel;
    auto program = Program::link({&source, 1}, options);
    ASSERT_TRUE(program.ok());
    EXPECT_EQ((*program)->refusals().size(), 1U);
    TestServices services;
    LaunchConfig config;
    EXPECT_TRUE(run(**program, 0, config, DeviceProfile{}, services).ok());
    EXPECT_EQ(run(**program, 1, config, DeviceProfile{}, services).error,
              LaunchError::kIllegalInstruction);
}

TEST(SoftgpuFrontEnd, ParameterLayout) {
    const Loaded loaded = load_or_die(
        ".visible .entry k(.param .u8 a, .param .align 8 .b8 s[12], .param .u16 c,"
        " .param .u64 .ptr .global .align 4 d) .maxntid 256, 1, 1 .minnctapersm 2 { ret; }");
    const KernelInfo& info = loaded.program->kernels()[0];
    ASSERT_EQ(info.parameters.size(), 4U);
    EXPECT_EQ(info.parameters[1].offset_bytes, 8U);
    EXPECT_EQ(info.parameters[1].size_bytes, 12U);
    EXPECT_EQ(info.parameters[2].offset_bytes, 20U);
    EXPECT_EQ(info.parameters[3].offset_bytes, 24U);
    EXPECT_EQ(info.parameters[3].align_bytes, 8U);
    EXPECT_EQ(info.parameter_bytes, 32U);
    EXPECT_EQ(info.max_threads_per_block, 256U);
    EXPECT_EQ(info.min_blocks_per_sm, 2U);
    TestServices services;
    EXPECT_EQ(launch(loaded, "k", {}, {32, 1, 1}, Params().add(1), services).error,
              LaunchError::kInvalidValue);
}

TEST(SoftgpuFrontEnd, GlobalsAndRelocations) {
    Loaded loaded = load_or_die(R"(
.visible .global .align 16 .b8 bytes[3] = {1, 2, 255};
.visible .const .f32 pi = 0f40490FDB;
.visible .global .attribute(.managed) .align 8 .u64 shared_word = 5;
.global .align 8 .u64 pointers[3] = {bytes, generic(pi), bytes+2};
.global .s16 matrix[2][2] = {{1, -2}, {3, 4}};
.visible .entry k() { ret; })");
    const auto globals = loaded.program->globals();
    ASSERT_EQ(globals.size(), 5U);
    EXPECT_EQ(globals[0].align_bytes, 16U);
    EXPECT_EQ(globals[1].space, GlobalSpace::kConstant);
    EXPECT_TRUE(globals[2].managed);
    EXPECT_FALSE(globals[3].visible);
    EXPECT_TRUE(globals[3].holds_addresses);
    EXPECT_EQ(loaded.global<std::uint8_t>("bytes")[2], 255);
    EXPECT_EQ(*loaded.global<float>("pi"), 3.14159274F);
    const auto* pointers = loaded.global<std::uint64_t>("pointers");
    EXPECT_EQ(pointers[0], loaded.aligned(0));
    EXPECT_EQ(pointers[1], loaded.aligned(1));
    EXPECT_EQ(pointers[2], loaded.aligned(0) + 2);
    EXPECT_EQ(loaded.global<std::int16_t>("matrix")[1], -2);
}

constexpr const char* kUser = R"(
.extern .global .u32 common_word;
.extern .func (.param .b32 r) get();
.func (.param .b32 r) helper() { .reg .b32 %r1; mov.u32 %r1, 100; st.param.b32 [r], %r1; ret; }
.visible .entry k(.param .u64 po) { .reg .b32 %r<6>; .reg .b64 %rd<3>;
{ .param .b32 v; call (v), get, (); ld.param.b32 %r1, [v]; }
{ .param .b32 v; call (v), helper, (); ld.param.b32 %r2, [v]; }
ld.global.u32 %r3, [common_word]; add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3;
ld.param.u64 %rd1, [po]; st.global.u32 [%rd1], %r1; ret; })";
constexpr const char* kDefiner = R"(
.visible .global .u32 common_word = 5000;
.func (.param .b32 r) helper() { .reg .b32 %r1; mov.u32 %r1, 20; st.param.b32 [r], %r1; ret; }
.visible .func (.param .b32 r) get() { .reg .b32 %r1; { .param .b32 v; call (v), helper, ();
ld.param.b32 %r1, [v]; } st.param.b32 [r], %r1; ret; })";

TEST(SoftgpuFrontEnd, LinksTextsWithClashingLocalNames) {
    for (const bool swapped : {false, true}) {
        auto loaded = swapped ? load({kDefiner, kUser}) : load({kUser, kDefiner});
        ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
        std::vector<std::uint32_t> out(1);
        ASSERT_TRUE(launch(*loaded, "k", {}, {1, 1, 1}, Params().pointer(out)).ok());
        EXPECT_EQ(out[0], 5120U);
    }
    EXPECT_THAT(error_of(kUser), HasSubstr("undefined external variable 'common_word'"));
}

TEST(SoftgpuFrontEnd, SharedMemoryOfAnotherTextIsTheSame) {
    const std::string user = R"(
.extern .shared .align 4 .b8 box[16];
.visible .func put() { .reg .b32 %r<3>; mov.u32 %r1, 77; st.shared.u32 [box+4], %r1; ret; })";
    const std::string definer = R"(
.extern .func put();
.visible .shared .align 4 .b8 box[16];
.visible .entry k(.param .u64 po) { .reg .b32 %r<3>; .reg .b64 %rd<3>;
mov.u32 %r1, 5; st.shared.u32 [box+4], %r1;
call put; ld.shared.u32 %r2, [box+4];
ld.param.u64 %rd1, [po]; st.global.u32 [%rd1], %r2; ret; })";
    for (const bool swapped : {false, true}) {
        auto loaded = swapped ? load({definer, user}) : load({user, definer});
        ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
        std::vector<std::uint32_t> out(1);
        const LaunchStatus status = launch(*loaded, "k", {}, {1, 1, 1}, Params().pointer(out));
        ASSERT_TRUE(status.ok()) << status.text;
        EXPECT_EQ(out[0], 77U);
    }
}

TEST(SoftgpuFrontEnd, WeakCommonAndDuplicateDefinitions) {
    auto weak = load(
        {".weak .global .u32 w = 1;", ".visible .global .u32 w = 2;", ".weak .global .u32 w = 3;"});
    ASSERT_TRUE(weak.ok());
    EXPECT_EQ(weak->program->globals().size(), 1U);
    EXPECT_EQ(*weak->global<std::uint32_t>("w"), 2U);
    auto common = load({".common .global .b8 c[4];", ".common .global .b8 c[16];"});
    ASSERT_TRUE(common.ok());
    EXPECT_EQ(common->program->globals()[0].size_bytes, 16U);
    auto twice = load({".visible .global .u32 d;", ".visible .global .u32 d;"});
    ASSERT_FALSE(twice.ok());
    EXPECT_EQ(twice.error().reason, "ptx.duplicate_symbol");
    auto kernels = load({".visible .entry k() { ret; }", ".visible .entry k() { ret; }"});
    EXPECT_FALSE(kernels.ok());
}

TEST(SoftgpuFrontEnd, SpecialRegisters) {
    const Loaded loaded = load_or_die(R"(
.visible .entry k(.param .u64 po) { .reg .b32 %r<12>; .reg .b64 %rd<3>;
ld.param.u64 %rd1, [po];
mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ctaid.x;
mov.u32 %r5, %ctaid.y; mov.u32 %r6, %nctaid.x; mov.u32 %r7, %ntid.y; mov.u32 %r8, %laneid;
mad.lo.u32 %r9, %r3, 100, %r2; mad.lo.u32 %r9, %r9, 100, %r1; mad.lo.u32 %r9, %r5, 1000000, %r9;
mad.lo.u32 %r9, %r4, 10000000, %r9; mad.lo.u32 %r10, %r6, 100, %r7;
mul.wide.u32 %rd2, %r8, 8; add.u64 %rd1, %rd1, %rd2;
st.global.v2.u32 [%rd1], {%r9, %r10}; ret; })");
    std::vector<std::uint32_t> out(64);
    ASSERT_TRUE(launch(loaded, "k", {1, 1, 1}, {4, 4, 2}, Params().pointer(out)).ok());
    EXPECT_EQ(out[2 * (16 + 4 + 3)], 10103U);
    EXPECT_EQ(out[1], 104U);
}

}  // namespace
}  // namespace gantry::softgpu::test
