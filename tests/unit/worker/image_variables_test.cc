// Names of variables, read from images.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "host-daemon/worker/image_variables.h"

namespace gantry::worker {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
    return std::as_bytes(std::span(text));
}

TEST(ImageVariables, NamesTheVariablesOfPtxAndNothingElse) {
    const std::string ptx = R"(
        .version 8.0
        .target sm_75
        .address_size 64
        // .global .u32 in_a_comment;  /* and
        /* .global .u32 in_another;
        */
        .visible .global .align 4 .u32 counter = 7;
        .global .align 8 .b8 _ZN3aux5tableE[64] = {1, 2, 3, {4}, 5};
        .const .align 4 .f32 factor;
        .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
        .visible .entry kernel(.param .u64 out)
        {
            .reg .u64 %r;
            .shared .align 4 .b8 tile[128];
            { ld.global.u32 %x, [counter]; }
            .local .u32 spill;
            ret;
        }
        .global .u64 behind;
    )";
    EXPECT_EQ(variable_names(bytes_of(ptx), 9),
              (std::set<std::string>{"counter", "_ZN3aux5tableE", "factor", "behind"}));
    EXPECT_FALSE(uses_device_heap(bytes_of(ptx), 9));
}

TEST(ImageVariables, SeesTheDeviceHeap) {
    const std::string ptx = R"(.version 8.0 .target sm_75
        .extern .func (.param .b64 r) malloc (.param .b64 bytes);
        .visible .entry kernel() { call (r), malloc, (b); ret; })";
    EXPECT_TRUE(uses_device_heap(bytes_of(ptx), 9));
}

TEST(ImageVariables, HostileBytesGiveNothingWorse) {
    std::mt19937 random(7);
    std::string image(4096, '\0');
    const unsigned char elf[] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
    for (int round = 0; round < 500; ++round) {
        for (char& byte : image) {
            byte = static_cast<char>(random());
        }
        if (round % 2 == 0) {
            std::memcpy(image.data(), elf, sizeof(elf));
            image[58] = 64;  // e_shentsize: sections are looked at.
            image[59] = 0;
        }
        (void)variable_names(bytes_of(image), 9);
    }
    EXPECT_TRUE(variable_names({}, 9).empty());
}

}  // namespace
}  // namespace gantry::worker
