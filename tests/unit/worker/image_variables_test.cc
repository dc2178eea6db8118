// Names of variables, read from images.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <string>

#include "host-daemon/execution/code/image_variables.h"
#include "host-daemon/state/parts/code_entries.h"

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

TEST(ImageVariables, SeesWhatMayPrint) {
    const std::string head = ".version 8.0 .target sm_75\n";
    const std::string prints =
        head + ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);";
    EXPECT_TRUE(may_print(bytes_of(prints), 9));
    EXPECT_TRUE(contents_of(bytes_of(prints), 9).prints);
    const std::string silent = head + ".global .u64 counter;";
    EXPECT_FALSE(may_print(bytes_of(silent), 9));
    EXPECT_FALSE(contents_of(bytes_of(silent), 9).prints);
    EXPECT_EQ(contents_of(bytes_of(silent), 9).variables, std::set<std::string>{"counter"});
}

/// A fatbin of uncompressed entries.
std::string fatbin_of(const std::vector<std::pair<std::uint16_t, std::string>>& entries) {
    std::string payload;
    for (const auto& [kind, bytes] : entries) {
        std::string header(64, '\0');
        const std::uint32_t header_bytes = 64;
        const std::uint64_t payload_bytes = bytes.size();
        const std::uint32_t target = 90;
        std::memcpy(header.data(), &kind, sizeof(kind));
        std::memcpy(header.data() + 4, &header_bytes, sizeof(header_bytes));
        std::memcpy(header.data() + 8, &payload_bytes, sizeof(payload_bytes));
        std::memcpy(header.data() + 28, &target, sizeof(target));
        payload += header + bytes;
    }
    std::string fatbin(16, '\0');
    const std::uint32_t words[] = {0xba55ed50, 1 | 16u << 16};
    const std::uint64_t payload_bytes = payload.size();
    std::memcpy(fatbin.data(), words, sizeof(words));
    std::memcpy(fatbin.data() + 8, &payload_bytes, sizeof(payload_bytes));
    return fatbin + payload;
}

TEST(ImageVariables, CodeThatCannotBeReadMayPrint) {
    constexpr std::uint16_t kPtx = 1;
    constexpr std::uint16_t kElf = 2;
    constexpr std::uint16_t kNvvm = 8;
    const std::string elf = std::string(
                                "\x7f"
                                "ELF") +
                            std::string(60, '\0');
    const std::string silent = ".version 8.0 .target sm_90\n.global .u64 counter;";
    EXPECT_FALSE(may_print(bytes_of(fatbin_of({{kElf, elf}, {kPtx, silent}})), 9));
    EXPECT_TRUE(may_print(bytes_of(fatbin_of({{kElf, elf + "vprintf"}})), 9));
    EXPECT_FALSE(may_print(bytes_of(fatbin_of({{kElf, elf + "vprintf"}})), 8));
    EXPECT_TRUE(may_print(bytes_of(fatbin_of({{kElf, elf}, {kPtx, silent + "// vprintf"}})), 9));
    EXPECT_TRUE(may_print(bytes_of(fatbin_of({{kNvvm, "anything"}})), 9));
    std::string damaged = fatbin_of({{kPtx, silent}});
    const std::uint64_t too_much = damaged.size();
    std::memcpy(damaged.data() + 16 + 8, &too_much, sizeof(too_much));
    EXPECT_TRUE(may_print(bytes_of(damaged), 9));
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

// Behind the image lies nothing that may be read.
TEST(CodeEntries, AreReadFromNoFurtherThanTheImage) {
    constexpr std::size_t kPage = 4096;
    void* const two =
        ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(two, MAP_FAILED);
    auto* const end = static_cast<std::byte*>(two) + kPage;
    ASSERT_EQ(::mprotect(end, kPage, PROT_NONE), 0);
    // A fatbin's header, an entry of PTX, and text of four bytes.
    std::vector<std::byte> image(16 + 64 + 4);
    const auto put = [&](std::size_t at, auto value) {
        std::memcpy(image.data() + at, &value, sizeof(value));
    };
    put(0, std::uint32_t{0xba55ed50});
    put(4, std::uint16_t{1});
    put(6, std::uint16_t{16});
    put(8, std::uint64_t{64 + 4});
    put(16, std::uint16_t{1});
    put(16 + 4, std::uint32_t{64});
    put(16 + 8, std::uint64_t{4});
    put(16 + 0x18, std::uint16_t{3});
    put(16 + 0x1a, std::uint16_t{8});
    put(16 + 0x1c, std::uint32_t{75});
    for (std::size_t bytes = 0; bytes <= image.size(); ++bytes) {
        std::memcpy(end - bytes, image.data(), bytes);
        std::vector<engine::CodeEntry> entries;
        state::append_code({end - bytes, bytes}, &entries);
        // An entry counts as soon as all that is read of it is there.
        EXPECT_EQ(entries.size(), bytes < 16 + 0x30 ? 0U : 1U) << bytes;
        if (!entries.empty()) {
            EXPECT_TRUE(entries[0].is_ptx);
            EXPECT_EQ(entries[0].ptx_isa_version, 83U);
        }
    }
    ::munmap(two, 2 * kPage);
}

// PyTorch's cuBLAS loads cubins without a fatbin around them; for compute capability 9.0 those of
// the older ABI were taken for 0.5, and no move was allowed.
TEST(CodeEntries, NameTheArchitectureOfACubinOfEitherAbi) {
    struct {
        std::uint8_t abi;
        std::uint32_t flags;
    } const cubins[] = {{0x33, 0x005a055a}, {0x33, 0x005a0d5a}, {0x41, 0x06005a04}};
    for (const auto& cubin : cubins) {
        std::vector<std::byte> header(0x40);
        std::memcpy(header.data(),
                    "\x7f"
                    "ELF\x02\x01",
                    6);
        header[7] = std::byte{cubin.abi};
        std::memcpy(header.data() + 0x30, &cubin.flags, sizeof cubin.flags);
        std::vector<engine::CodeEntry> entries;
        state::append_code(header, &entries);
        ASSERT_EQ(entries.size(), 1U);
        EXPECT_FALSE(entries[0].is_ptx);
        EXPECT_EQ(entries[0].cc.major, 9U) << std::hex << cubin.flags;
        EXPECT_EQ(entries[0].cc.minor, 0U) << std::hex << cubin.flags;
    }
}

}  // namespace
}  // namespace gantry::worker
