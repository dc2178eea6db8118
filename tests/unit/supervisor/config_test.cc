// gantryd.toml: every mistake is named with file, line, key and the nearest valid keys.
#include "host-daemon/supervisor/config.h"

#include <gtest/gtest.h>

namespace gantry::supervisor {
namespace {

std::string error_of(const std::string& text) {
    const auto config = parse_config(text, "gantryd.toml");
    return config ? "" : config.error().text;
}

TEST(Config, EmptyTextGivesDefaults) {
    const auto config = parse_config("", "x");
    ASSERT_TRUE(config.ok()) << config.error().text;
    EXPECT_EQ(config->peer.streams, 4);
    EXPECT_EQ(config->worker.user, "gantry-worker");
}

TEST(Config, ReadsEveryKindOfValue) {
    const auto config = parse_config(
        "[guest]\nallow_uids = [1000, 1001]\nregion_mib = 128\n[worker]\nseccomp = false\n"
        "driver = '/x/libcuda.so.1'\n[migration]\ncompression = 'on'\n",
        "x");
    ASSERT_TRUE(config.ok()) << config.error().text;
    EXPECT_EQ(config->guest.allow_uids, (std::vector<std::int64_t>{1000, 1001}));
    EXPECT_EQ(config->guest.region_mib, 128);
    EXPECT_FALSE(config->worker.seccomp);
    EXPECT_EQ(config->worker.driver, "/x/libcuda.so.1");
    EXPECT_EQ(config->migration.compression, "on");
}

TEST(Config, UnknownKeyNamesFileLineKeyAndNeighbours) {
    const std::string error = error_of("[worker]\n\ndrivr = 'x'\n");
    EXPECT_NE(error.find("gantryd.toml:3:"), std::string::npos) << error;
    EXPECT_NE(error.find("worker.drivr"), std::string::npos) << error;
    EXPECT_NE(error.find("worker.driver"), std::string::npos) << error;
}

TEST(Config, UnknownSectionNamesItsNeighbours) {
    const std::string error = error_of("[pear]\nlisten = 'x'\n");
    EXPECT_NE(error.find("gantryd.toml:1:"), std::string::npos) << error;
    EXPECT_NE(error.find("peer"), std::string::npos) << error;
}

TEST(Config, WrongTypeAndRangeAreRefused) {
    EXPECT_NE(error_of("[guest]\nregion_mib = '64'\n").find("guest.region_mib"),
              std::string::npos);
    EXPECT_NE(error_of("[guest]\nregion_mib = 1\n").find("from 8 to"), std::string::npos);
    EXPECT_NE(error_of("[migration]\ncompression = 'zip'\n").find("auto|on|off"),
              std::string::npos);
    EXPECT_NE(error_of("[guest]\nallow_uids = [1, 'root']\n").find("allow_uids"),
              std::string::npos);
}

TEST(Config, AddressesHaveAHostAndAPort) {
    for (const char* wrong : {"foo", "9464", ":9464", "127.0.0.1:", "127.0.0.1:99999", "h:1x"}) {
        for (const char* place : {"[peer]\nlisten", "[peer]\nadvertise", "[metrics]\nlisten"}) {
            const std::string error = error_of(std::string(place) + " = '" + wrong + "'\n");
            EXPECT_NE(error.find("gantryd.toml:2:"), std::string::npos) << wrong << ": " << error;
            EXPECT_NE(error.find("ADDRESS:PORT"), std::string::npos) << wrong << ": " << error;
        }
    }
    for (const char* right : {"", "127.0.0.1:9464", "[::1]:16515", "host-a:1"}) {
        EXPECT_TRUE(parse_config(std::string("[peer]\nlisten = '") + right + "'\n", "x").ok());
    }
}

TEST(Config, FilesThatItNamesAreLookedFor) {
    Config config;
    config.worker.executable = "/proc/self/exe";
    config.worker.driver = "libcuda.so.1";  // The loader's to find.
    config.worker.profile = "";
    config.peer.listen = "";
    EXPECT_TRUE(check_files(config).ok());
    config.worker.profile = "/nowhere/p.toml";
    config.worker.driver = "/nowhere/libcuda.so.1";
    config.peer.listen = "127.0.0.1:1";
    config.peer.key = "/nowhere/host.key";
    const auto found = check_files(config);
    ASSERT_FALSE(found.ok());
    for (const char* key : {"worker.profile", "worker.driver", "peer.key"}) {
        EXPECT_NE(found.error().text.find(std::string(key) + ": cannot read /nowhere/"),
                  std::string::npos)
            << found.error().text;
    }
}

TEST(Config, ReportsAllMistakesAtOnce) {
    const std::string error = error_of("[guest]\nregion_mb = 1\n[peer]\nstreams = 0\n");
    EXPECT_NE(error.find("gantryd.toml:2:"), std::string::npos) << error;
    EXPECT_NE(error.find("gantryd.toml:4:"), std::string::npos) << error;
}

TEST(Config, SyntaxErrorHasALine) {
    EXPECT_NE(error_of("[guest]\nregion_mib = = 3\n").find("gantryd.toml:2:"), std::string::npos);
}

TEST(Config, WhatIsPrintedReadsBackTheSame) {
    Config config;
    config.guest.allow_uids = {7};
    config.daemon.host_name = "a \"quoted\" name";
    const std::string text = print_config(config);
    const auto again = parse_config(text, "printed");
    ASSERT_TRUE(again.ok()) << again.error().text;
    EXPECT_EQ(print_config(*again), text);
    EXPECT_EQ(again->daemon.host_name, config.daemon.host_name);
}

TEST(Config, MissingFileSaysWhatToDo) {
    const auto config = load_config("/nonexistent/gantryd.toml");
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().reason, "config.unreadable");
    EXPECT_NE(config.error().text.find("--config"), std::string::npos);
}

}  // namespace
}  // namespace gantry::supervisor
