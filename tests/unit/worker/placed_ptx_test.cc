// PTX whose variables lie at given addresses, and functions whose addresses a program may hold.
#include "host-daemon/execution/code/placed_ptx.h"

#include <gtest/gtest.h>

#include "host-daemon/softgpu/ptx/parser.h"

namespace gantry::worker {
namespace {

const std::string kHead = ".version 8.0\n.target sm_75\n.address_size 64\n";

const std::string kText = kHead + R"(
.visible .global .align 4 .u32 counter = 7; // not .global .u32 counter
.global .align 8 .b8 table[64] = {1, 2, 3};
.visible .const .align 4 .f32 factors[4];
.global .align 8 .u64 first = table;
.extern .shared .align 16 .b8 room[];
.visible .entry kernel(.param .u64 counter_param)
.maxntid 32, 1, 1
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    mov.u64 %rd1, table;
    mov.u64 %rd2, table + 8;
    ld.const.f32 %r1, [factors+12];
    cvta.const.u64 %rd3, %rd1;
    @%p1 ld.global.u32 %r2, [counter];
    atom.global.add.u32 %r3, [table+8], 1;
    st.shared.u32 [room+4], %r3;
    {
        .local .align 4 .b8 counter[4];
        mov.u64 %rd4, counter;
    }
    ret;
}
.visible .entry other()
{
    ret;
}
)";

const VariablePlaces kPlaces = {{"counter", 0x270000000410},
                                {"table", 0x270000000500},
                                {"factors", 0x270000010000},
                                {"first", 0x270000000600}};

std::string placed(const std::string& text, const VariablePlaces& places) {
    const auto out = placed_ptx(text, places);
    EXPECT_TRUE(out.ok()) << out.error().to_string();
    return out.ok() ? *out : "";
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

TEST(PlacedPtx, NamesAddressesWhereItNamedVariables) {
    const std::string text = placed(kText, kPlaces);
    const auto module = softgpu::ptx::parse(text);
    ASSERT_TRUE(module.ok()) << module.error().to_string() << text;
    ASSERT_EQ(module->variables.size(), 1U) << text;
    EXPECT_EQ(module->variables[0].name, "room");
    for (const char* address :
         {"0x270000000500", "0x270000000508", "0x27000001000c", "0x270000000410"}) {
        EXPECT_TRUE(has(text, std::string(", ") + address + ";")) << address << text;
    }
    EXPECT_TRUE(has(text, ".reg .u64 %gantry_place<4>;")) << text;
}

TEST(PlacedPtx, LeavesWhatHasThatNameForAnotherReason) {
    const std::string text = placed(kText, kPlaces);
    EXPECT_TRUE(has(text, "mov.u64 %rd4, counter;")) << text;
    EXPECT_TRUE(has(text, "// not .global .u32 counter")) << text;
    EXPECT_TRUE(has(text, "[room+4]")) << text;
    EXPECT_TRUE(has(text, ".visible .entry other()\n{\n    ret;")) << text;
}

TEST(PlacedPtx, ReadsConstantsAsGlobalMemory) {
    const std::string text = placed(kText, kPlaces);
    EXPECT_TRUE(has(text, "ld.global.f32 %r1, [%gantry_place")) << text;
    EXPECT_TRUE(has(text, "cvta.global.u64 %rd3, %rd1;")) << text;
    EXPECT_FALSE(has(text, ".const")) << text;
}

TEST(PlacedPtx, RefusesAVariableWithoutAPlace) {
    VariablePlaces places = kPlaces;
    places.erase("counter");
    const auto out = placed_ptx(kText, places);
    ASSERT_FALSE(out.ok());
    EXPECT_EQ(out.error().reason, "module.globals.not_movable");
    EXPECT_TRUE(has(out.error().text, "counter")) << out.error().text;
    places = kPlaces;
    places.erase("first");  // Nothing names it.
    EXPECT_FALSE(placed_ptx(kText, places).value().empty());
}

TEST(PlacedPtx, LeavesOtherVariablesWhereTheDriverPutsThem) {
    const std::string text = placed_ptx(kText, {{"table", 0x280000000000}}, Others::kStay).value();
    EXPECT_TRUE(has(text, ".visible .global .align 4 .u32 counter = 7;")) << text;
    EXPECT_TRUE(has(text, "ld.const.f32 %r1, [factors+12];")) << text;
    EXPECT_TRUE(has(text, "mov.u64 %rd2, %gantry_place")) << text;
    const auto mixed =
        placed_ptx(kText +
                       ".const .u32 more;\n.visible .entry reads()\n{\n    .reg .b32 %r<2>;\n"
                       "    ld.const.u32 %r1, [more];\n    ret;\n}\n",
                   kPlaces, Others::kStay);
    EXPECT_FALSE(mixed.ok()) << "a constant left and one placed are read alike";
}

TEST(PlacedPtx, RefusesWhatIsNotPtxOfOurKind) {
    EXPECT_EQ(placed_ptx("\x7f"
                         "ELF",
                         kPlaces)
                  .error()
                  .code,
              Code::kInvalidArgument);
    EXPECT_FALSE(placed_ptx(".version 8.0\n.target sm_75\n.address_size 32\n", {}).ok());
}

TEST(StoredFunction, IsOneThatCodeOrAVariableHolds) {
    const std::string function = ".visible .func twice(.param .u32 x)\n{\n    ret;\n}\n";
    const std::string calls =
        ".visible .entry k()\n{\n    .param .u32 p;\n    call.uni twice, (p);\n    ret;\n}\n";
    EXPECT_EQ(stored_function(kHead + function + calls).value(), "");
    EXPECT_EQ(stored_function(kHead + function + ".global .align 8 .u64 table[2] = {0, twice};\n")
                  .value(),
              "twice");
    EXPECT_EQ(stored_function(kHead + function +
                              ".visible .entry k()\n{\n    .reg .b64 %rd<2>;\n"
                              "    mov.u64 %rd1, twice;\n    ret;\n}\n")
                  .value(),
              "twice");
}

}  // namespace
}  // namespace gantry::worker
