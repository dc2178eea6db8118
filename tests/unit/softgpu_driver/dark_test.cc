#include "proto/cuda/dark/dark.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace gantry::dark {
namespace {

std::string hex(const std::uint8_t digest[16]) {
    std::string text;
    for (int i = 0; i < 16; ++i) {
        char byte[3];
        std::snprintf(byte, sizeof byte, "%02x", digest[i]);
        text += byte;
    }
    return text;
}

// The test suite of RFC 1319.
TEST(Md2Test, KnownAnswers) {
    const std::pair<std::string, std::string> cases[] = {
        {"", "8350e5a3e24c153df2275c9f80692773"},
        {"a", "32ec01ec4a6dac72c0ab96fb34c0b5d1"},
        {"abc", "da853b0d3f88d99b30283a69e6ded6bb"},
        {"message digest", "ab4f496bfb2a530b219ff33031fe06b0"},
        {"abcdefghijklmnopqrstuvwxyz", "4e8ddff3650292ab5a4108c3aa47940b"},
    };
    for (const auto& [text, expected] : cases) {
        std::uint8_t digest[16];
        md2(text.data(), text.size(), digest);
        EXPECT_EQ(hex(digest), expected) << text;
    }
}

int g_dropped = 0;
void* g_current = reinterpret_cast<void*>(0x1000);

Callbacks test_callbacks() {
    Callbacks callbacks{};
    callbacks.driver_version = [] { return 13000U; };
    callbacks.device_count = [] { return 0; };
    callbacks.current_context = [](void** context) {
        *context = g_current;
        return 0;
    };
    callbacks.own_table = [](const std::uint8_t*) -> const void* { return nullptr; };
    return callbacks;
}

TEST(StorageTest, PutGetDeleteAndForget) {
    configure(test_callbacks());
    void* key = &g_dropped;
    void* value = nullptr;
    EXPECT_EQ(storage_get(&value, nullptr, key), 400);
    int thing = 0;
    const auto drop = [](void*, void*, void*) { ++g_dropped; };
    EXPECT_EQ(storage_put(nullptr, key, &thing, drop), 0);
    EXPECT_EQ(storage_put(nullptr, key, &thing, drop), 400);
    EXPECT_EQ(storage_get(&value, g_current, key), 0);
    EXPECT_EQ(value, &thing);
    EXPECT_EQ(storage_delete(g_current, key), 0);
    EXPECT_EQ(storage_delete(g_current, key), 400);
    EXPECT_EQ(g_dropped, 0);
    EXPECT_EQ(storage_put(nullptr, key, &thing, drop), 0);
    forget_context(g_current);
    EXPECT_EQ(g_dropped, 1);
    EXPECT_EQ(storage_get(&value, nullptr, key), 400);
    g_current = nullptr;
    EXPECT_EQ(storage_get(&value, nullptr, key), 201);
}

TEST(TablesTest, SizesAndUnknownTables) {
    configure(test_callbacks());
    const std::uint8_t interface_id[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                           0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
    const void* table = nullptr;
    ASSERT_EQ(get_export_table(&table, interface_id), 0);
    EXPECT_EQ(*static_cast<const std::uint64_t*>(table), 0x68U);
    const std::uint8_t unknown[16] = {1};
    EXPECT_EQ(get_export_table(&table, unknown), 500);
    EXPECT_EQ(table, nullptr);
}

}  // namespace
}  // namespace gantry::dark
