#include "host-daemon/softgpu/core/profile.h"

#include <gtest/gtest.h>

#include "host-daemon/softgpu/core/settings.h"

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

std::string refusal(const char* entry) {
    const char* const environment[] = {"HOME=/", entry, nullptr};
    const auto checked = check_settings(environment);
    return checked.ok() ? "" : checked.error().text;
}

TEST(SettingsTest, MisspeltKeysAndValuesAreNamed) {
    for (const char* good :
         {"GANTRY_SOFT_THREADS=1024", "GANTRY_SOFT_ISA=v3", "GANTRY_SOFT_LOG=refusals",
          "GANTRY_SOFT_PROFILE=h200-like", "GANTRY_SOFT_MEMORY=1G", "GANTRY_SYNC=1", "GANTRYSOFT=1",
          "GANTRY_PORT=tcp://10.0.0.1:7700", "GANTRY_SERVICE_HOST=a"}) {
        EXPECT_EQ(refusal(good), "") << good;
    }
    EXPECT_EQ(refusal("GANTRY_SOFT_PROFIL=soft-13"),
              "unknown setting GANTRY_SOFT_PROFIL in the environment; the nearest that is known is "
              "GANTRY_SOFT_PROFILE: correct it or unset it");
    EXPECT_NE(refusal("GANTRY_SFOT_PROFILE=soft-13").find("is GANTRY_SOFT_PROFILE:"),
              std::string::npos);
    for (const char* wrong : {"0", "1025", "-1", "two", "4x", ""}) {
        const std::string entry = std::string("GANTRY_SOFT_THREADS=") + wrong;
        EXPECT_EQ(refusal(entry.c_str()),
                  entry +
                      " in the environment: the value must be a number of threads from 1 to "
                      "1024");
    }
    EXPECT_NE(refusal("GANTRY_SOFT_ISA=v5").find("must be v2, v3 or v4"), std::string::npos);
    EXPECT_NE(refusal("GANTRY_SOFT_LOG=loud").find("must be on, off or refusals"),
              std::string::npos);
}

}  // namespace
}  // namespace gantry::softgpu
