// gantryd.toml: every mistake is named with file, line, key and the nearest valid keys.
#include "host-daemon/supervisor/config/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "host-daemon/supervisor/checks/host_checks.h"
#include "host-daemon/supervisor/config/file_modes.h"

namespace gantry::supervisor {
namespace {

std::string error_of(const std::string& text) {
    const auto config = parse_config(text, "gantryd.toml");
    return config ? "" : config.error().text;
}

/// What `gantryd --check` says of a host.
Result<void> check_named(const Config& config) {
    return check_host(config, {}, Depth::kConfiguration).result();
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
        "driver = '/x/libcuda.so.1'\n[migration]\ncompression = 'on'\n"
        "[peer]\nallow = ['hosta', '10.77.0.2']\n",
        "x");
    ASSERT_TRUE(config.ok()) << config.error().text;
    EXPECT_EQ(config->guest.allow_uids, (std::vector<std::int64_t>{1000, 1001}));
    EXPECT_EQ(config->guest.region_mib, 128);
    EXPECT_FALSE(config->worker.seccomp);
    EXPECT_EQ(config->worker.driver, "/x/libcuda.so.1");
    EXPECT_EQ(config->migration.compression, "on");
    EXPECT_EQ(config->peer.allow, (std::vector<std::string>{"hosta", "10.77.0.2"}));
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
    EXPECT_NE(error_of("[guest]\nregion_mib = '64'\n").find("guest.region_mib"), std::string::npos);
    EXPECT_NE(error_of("[guest]\nregion_mib = 1\n").find("from 8 to"), std::string::npos);
    EXPECT_NE(error_of("[migration]\ncompression = 'zip'\n").find("auto|on|off"),
              std::string::npos);
    EXPECT_NE(error_of("[guest]\nallow_uids = [1, 'root']\n").find("allow_uids"),
              std::string::npos);
    for (const char* wrong : {"'hosta'", "['hosta', 2]", "['']"}) {  // Nobody by mistake.
        EXPECT_NE(error_of(std::string("[peer]\nallow = ") + wrong + "\n").find("peer.allow"),
                  std::string::npos)
            << wrong;
    }
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

TEST(Config, PathsDoNotDependOnWhereGantrydWasStarted) {
    for (const char* key :
         {"[daemon]\nrun_directory", "[daemon]\nstate_directory", "[daemon]\nlog_file",
          "[operator]\nsocket", "[guest]\nsocket", "[vm]\nregion_directory", "[worker]\nexecutable",
          "[worker]\ndriver", "[worker]\nprofile", "[peer]\nauthority", "[peer]\ncertificate",
          "[peer]\nkey"}) {
        const std::string error = error_of(std::string(key) + " = 'run/x'\n");
        EXPECT_NE(error.find("gantryd.toml:2:"), std::string::npos) << key << ": " << error;
        EXPECT_NE(error.find("must be an absolute path"), std::string::npos) << error;
        EXPECT_EQ(error_of(std::string(key) + " = '/run/x'\n"), "");
    }
    for (const char* key : {"[daemon]\nrun_directory", "[daemon]\nstate_directory",
                            "[operator]\nsocket", "[worker]\nexecutable", "[worker]\ndriver"}) {
        EXPECT_NE(error_of(std::string(key) + " = ''\n"), "") << key;
    }
    EXPECT_NE(error_of("[daemon]\nrun_directory = 'run'\n"), "");
    EXPECT_EQ(error_of("[daemon]\nlog_file = ''\n[guest]\nsocket = ''\n[worker]\nprofile = ''\n"
                       "driver = 'libcuda.so.1'\n"),
              "");
    EXPECT_EQ(error_of("[worker]\nprofile = 'small-86'\n"), "");
}

TEST(Config, FilesThatItNamesAreLookedFor) {
    Config config;
    config.worker.user = "";
    config.worker.executable = "/bin/true";
    config.worker.driver = "libcuda.so.1";  // The loader's to find.
    config.worker.profile = "small-86";     // Built in.
    config.peer.listen = "";
    EXPECT_TRUE(check_named(config).ok());
    config.worker.profile = "/nowhere/p.toml";
    config.worker.driver = "/nowhere/libcuda.so.1";
    config.peer.listen = "127.0.0.1:1";
    config.peer.key = "/nowhere/host.key";
    const auto found = check_named(config);
    ASSERT_FALSE(found.ok());
    for (const char* key : {"worker.profile", "worker.driver", "peer.key"}) {
        EXPECT_NE(found.error().text.find(std::string(key) + ": cannot read /nowhere/"),
                  std::string::npos)
            << found.error().text;
    }
}

TEST(Config, AccountsThatItNamesAreLookedFor) {
    Config config;
    config.worker.executable = "/bin/true";
    config.worker.driver = "libcuda.so.1";
    config.worker.user = "root";
    config.operator_.group = "root";
    EXPECT_TRUE(check_named(config).ok());
    config.worker.user = "no-such-user";
    config.operator_.group = "no-such-group";
    const auto found = check_named(config);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(std::count(found.error().text.begin(), found.error().text.end(), '\n'), 1);
    for (const char* says :
         {"worker.user 'no-such-user' does not exist; create it", "[worker.user]",
          "operator.group 'no-such-group' does not exist; create it", "[operator.group]"}) {
        EXPECT_NE(found.error().text.find(says), std::string::npos) << found.error().text;
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
    config.peer.allow = {"a", "b \"c\""};
    config.daemon.host_name = "a \"quoted\" name";
    const std::string text = print_config(config);
    const auto again = parse_config(text, "printed");
    ASSERT_TRUE(again.ok()) << again.error().text;
    EXPECT_EQ(print_config(*again), text);
    EXPECT_EQ(again->daemon.host_name, config.daemon.host_name);
}

TEST(Config, AllGpusAreServedUnlessSomeAreNamed) {
    const auto named = [](const std::string& text) {
        const auto config = parse_config("[worker]\n" + text, "gantryd.toml");
        EXPECT_TRUE(config.ok()) << config.error().text;
        return config ? named_devices(config->worker) : std::vector<DeviceNumber>{};
    };
    EXPECT_TRUE(named("").empty());
    EXPECT_EQ(named("devices = [3, 1]\n"), (std::vector<DeviceNumber>{3, 1}));
    EXPECT_EQ(named("device = 2\n"), std::vector<DeviceNumber>{2});  // The older key.
    EXPECT_EQ(named("device = 0\n"), std::vector<DeviceNumber>{0});
    for (const auto& [text, says] :
         {std::pair{"devices = [1, 256]", "'worker.devices' has 256: a GPU's number is 0 to 255"},
          std::pair{"devices = [-1]", "'worker.devices' has -1"},
          std::pair{"devices = [1, 0, 1]", "'worker.devices' has 1 twice"},
          std::pair{"devices = [1]\ndevice = 1", "both name GPUs"},
          std::pair{"devices = 1", "must be a list of whole numbers"}}) {
        const std::string error = error_of(std::string("[worker]\n") + text + "\n");
        EXPECT_NE(error.find(says), std::string::npos) << text << ": " << error;
        EXPECT_NE(error.find("gantryd.toml:2:"), std::string::npos) << error;
    }
    EXPECT_NE(error_of("[placement]\npolicy = 'best'\n").find("free_memory|first|spread"),
              std::string::npos);
}

TEST(Config, MissingFileSaysWhatToDo) {
    const auto config = load_config("/nonexistent/gantryd.toml");
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().reason, "config.unreadable");
    EXPECT_NE(config.error().text.find("--config"), std::string::npos);
}

TEST(Config, AFolderIsNoEmptyFile) {
    const auto config = load_config("/proc/self");
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().reason, "config.unreadable");
    EXPECT_NE(config.error().text.find("cannot read /proc/self: Is a directory"), std::string::npos)
        << config.error().text;
}

/// A folder of this test's own.
class FileModes : public testing::Test {
protected:
    ~FileModes() override { std::filesystem::remove_all(folder_); }
    std::string file(const std::string& name, mode_t mode) {
        const std::string path = folder_ + "/" + name;
        std::ofstream(path) << "x";
        EXPECT_EQ(::chmod(path.c_str(), mode), 0);
        return path;
    }
    std::string folder_ = [] {
        char pattern[] = "/tmp/file_modes_test.XXXXXX";
        return std::string(::mkdtemp(pattern));
    }();
};

TEST_F(FileModes, AKeyThatOthersReadAndAConfigurationThatTheyWriteAreTold) {
    Config config;
    config.peer.listen = "127.0.0.1:7700";
    config.peer.key = file("host.key", 0640);
    config.peer.certificate = file("host.pem", 0644);
    config.peer.authority = file("ca.pem", 0644);
    const std::string toml = file("gantryd.toml", 0644);
    EXPECT_TRUE(check_modes(config, toml).ok());
    file("host.key", 0644);
    file("gantryd.toml", 0664);
    const auto told = check_modes(config, toml);
    ASSERT_FALSE(told.ok());
    EXPECT_EQ(told.error().reason, "config.mode");
    EXPECT_NE(told.error().text.find("host.key has mode 0644; take 0004"), std::string::npos)
        << told.error().text;
    EXPECT_NE(told.error().text.find("gantryd.toml has mode 0664; take 0020"), std::string::npos);
    file("gantryd.toml", 0644);
    config.peer.listen.clear();
    EXPECT_TRUE(check_modes(config, toml).ok()) << "the key is not used";
    ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
    EXPECT_FALSE(check_modes(config, toml).ok()) << "it can be replaced";
}

TEST_F(FileModes, AGroupsSnapshotsLieInTheirFolderOnly) {
    OperatorConfig config;
    config.snapshot_directory = folder_ + "/snapshots";
    EXPECT_TRUE(check_snapshot_path(config, "/root/.ssh/authorized_keys").ok()) << "root asks";
    config.group = "operators";
    EXPECT_TRUE(check_snapshot_path(config, folder_ + "/snapshots/vm.gsnap").ok());
    for (const std::string& path :
         {std::string("/root/.ssh/authorized_keys"), folder_ + "/vm.gsnap",
          folder_ + "/snapshots/../vm.gsnap", folder_ + "/snapshots/..",
          folder_ + "/snapshots/x/vm.gsnap", folder_ + "/snapshots/",
          folder_ + "/snapshots/./vm.gsnap", std::string("vm.gsnap"), std::string()}) {
        const auto refused = check_snapshot_path(config, path);
        ASSERT_FALSE(refused.ok()) << path;
        EXPECT_EQ(refused.error().reason, "snapshot.directory") << path;
    }
    ASSERT_EQ(::chmod(config.snapshot_directory.c_str(), 0770), 0);
    EXPECT_FALSE(check_snapshot_path(config, folder_ + "/snapshots/vm.gsnap").ok());
    std::filesystem::remove(config.snapshot_directory);
    std::filesystem::create_directory_symlink("/etc", config.snapshot_directory);
    EXPECT_FALSE(check_snapshot_path(config, folder_ + "/snapshots/passwd").ok());
}

}  // namespace
}  // namespace gantry::supervisor
