#include "host-daemon/softgpu/profile.h"

#include <gtest/gtest.h>

namespace gantry::softgpu {
namespace {

TEST(ProfileTest, ShippedProfilesParse) {
    for (const char* name : {"h200-like", "soft-13", "small-86"}) {
        const auto profiles = parse_profiles(builtin_profile(name), name);
        ASSERT_TRUE(profiles.ok()) << profiles.error().text;
        EXPECT_GT(profiles->front().memory_bytes, 0U);
    }
    EXPECT_EQ(parse_profiles(builtin_profile("soft-13"), "soft-13")->front().capability(), 130U);
}

TEST(ProfileTest, ErrorsNameFileAndKey) {
    const auto unknown = parse_profiles("[[device]]\nsms = 3\n", "my.toml");
    ASSERT_FALSE(unknown.ok());
    EXPECT_NE(unknown.error().text.find("my.toml"), std::string::npos);
    EXPECT_NE(unknown.error().text.find("'sms'"), std::string::npos);
    EXPECT_FALSE(parse_profiles("[[device]]\nsm_count = \"many\"\n", "x").ok());
    EXPECT_FALSE(parse_profiles("[[device]]\nuuid = \"12\"\n", "x").ok());
    EXPECT_FALSE(parse_profiles("", "x").ok());
    EXPECT_FALSE(parse_profiles("[[device", "x").ok());
}

}  // namespace
}  // namespace gantry::softgpu
