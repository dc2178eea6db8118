// `gantry inspect FILE` on the golden files, where no gantryd runs: what it says of a whole file in
// either form, and that no file is believed that is damaged, cut, newer or none of ours.
#include "migration/cli/snapshot_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "migration/cli/commands.h"
#include "proto/control/gantryd.pb.h"
#include "tests/unit/cli/ran.h"
#include "tests/unit/snapshot/sample.h"

namespace gantry::cli {
namespace {

namespace fs = std::filesystem;

std::string golden_path(const char* name) { return std::string(GANTRY_GOLDEN_FOLDER "/") + name; }

std::string bytes_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

class CliSnapshotFile : public testing::Test {
protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "gantry-inspect-XXXXXX").string();
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
    }
    void TearDown() override { fs::remove_all(folder_); }

    std::string file(const std::string& bytes) const {
        const std::string path = (folder_ / "file").string();
        std::ofstream(path, std::ios::binary) << bytes;
        return path;
    }
    static Ran inspect(Form form, const std::string& path) {
        return capture([&] { return run_inspect(Context{"/no/gantryd.sock", form}, path); });
    }
    /// Refused in both forms, with nothing printed of the file.
    static void expect_refused(const std::string& path, const char* reason, const char* says,
                               int status = kRefused) {
        const Ran text = inspect(Form::kText, path);
        EXPECT_EQ(text.status, status);
        EXPECT_EQ(text.out, "");
        EXPECT_NE(text.err.find(path), std::string::npos) << text.err;
        EXPECT_NE(text.err.find(says), std::string::npos) << text.err;
        EXPECT_NE(text.err.find(std::string("[") + reason + "]"), std::string::npos) << text.err;
        const Ran json = inspect(Form::kJson, path);
        EXPECT_EQ(json.status, status);
        EXPECT_EQ(json.out, "");
        const auto errors = Ran::lines(json.err);
        ASSERT_EQ(errors.size(), 1U);
        EXPECT_EQ(errors[0]["error"]["reason"], reason);
    }

    fs::path folder_;
};

TEST_F(CliSnapshotFile, SaysWhatIsInAGoldenFileOfEveryVersion) {
    for (const char* name :
         {"v1-stored.gsnap", "v1-lz4.gsnap", "v1-zstd.gsnap", "v2-memory.gsnap"}) {
        SCOPED_TRACE(name);
        const std::string path = golden_path(name);
        const Ran ran = inspect(Form::kText, path);
        ASSERT_EQ(ran.status, kDone) << ran.err;
        const char version = name[1];
        for (const std::string& says :
             {"Snapshot:  " + path + ", whole, format version " + version + ", ",
              std::string("Session:   11111111-0000-4000-8000-000000000001, epoch 3\n"),
              std::string("Written:   2023-11-14 22:13:20 UTC by golden\n"),
              std::string("320.0 KiB in 5 blocks: "), std::string("1 stream, 1 allocation\n")}) {
            EXPECT_NE(ran.out.find(says), std::string::npos) << says << " is not in\n" << ran.out;
        }
    }
}

TEST_F(CliSnapshotFile, PrintsTheWholeFileAsOneJsonObject) {
    const Ran ran = inspect(Form::kJson, golden_path("v2-memory.gsnap"));
    ASSERT_EQ(ran.status, kDone) << ran.err;
    ASSERT_EQ(ran.json().size(), 1U);
    const nlohmann::json json = ran.json()[0];
    EXPECT_EQ(json["format_version"], 2);
    EXPECT_EQ(json["header"]["epoch"], "3");
    EXPECT_EQ(json["summary"]["zero_block_count"], "1");
    EXPECT_EQ(json["summary"]["block_count"], "5");
    ASSERT_EQ(json["graphs"].size(), 2U);
    EXPECT_EQ(json["graphs"][1]["part_id"], "2");
    EXPECT_EQ(json["graphs"][1]["allocations"][0]["address"], std::to_string(0x300000000000));
    EXPECT_EQ(json["spaces"][1]["block_count"], 4);
    EXPECT_EQ(json["images"][0]["size_bytes"], 8);
    EXPECT_EQ(json["images"][0]["sha256"].get<std::string>().size(), 64U);
    EXPECT_NE(json["graphs"][0].dump().find("\"next_seq\":\"4096\""), std::string::npos);
}

TEST_F(CliSnapshotFile, AReportThatCannotBePrintedIsAFailure) {
    for (const Form form : {Form::kText, Form::kJson}) {
        const Ran ran = run_unheard([&] {
            return run_inspect(Context{"/no/gantryd.sock", form}, golden_path("v2-memory.gsnap"));
        });
        EXPECT_EQ(ran.status, kRefused);
        EXPECT_NE(ran.err.find("command.output"), std::string::npos) << ran.err;
    }
}

TEST_F(CliSnapshotFile, TheSessionsNeedsAreReadable) {
    control::SessionNeeds needs;
    needs.set_vm_name("g1");
    needs.set_memory_quota_bytes(1ULL << 30);
    snapshot::SnapshotHeader header = snapshot::sample_header();
    header.set_needs(needs.SerializeAsString());
    const std::string path = (folder_ / "with_needs").string();
    auto out = snapshot::AtomicFile::create(path);
    ASSERT_TRUE(out.ok());
    snapshot::SnapshotWriter writer(out->fd(), path, header, snapshot::Codec::kStored);
    ASSERT_TRUE(writer.add_graph(1, snapshot::sample_graph(1)).ok());
    ASSERT_TRUE(writer.finish().ok());
    ASSERT_TRUE(out->commit().ok());
    const Ran text = inspect(Form::kText, path);
    EXPECT_NE(text.out.find("Session:   g1 (11111111-"), std::string::npos) << text.out << text.err;
    const Ran json = inspect(Form::kJson, path);
    ASSERT_EQ(json.json().size(), 1U) << json.err;
    EXPECT_EQ(json.json()[0]["needs"]["memory_quota_bytes"], std::to_string(1ULL << 30));
    EXPECT_FALSE(json.json()[0]["header"].contains("needs"));
}

TEST_F(CliSnapshotFile, AFlippedByteIsRefusedWhereverItIs) {
    for (const char* name : {"v1-lz4.gsnap", "v2-memory.gsnap"}) {
        std::string bytes = bytes_of(golden_path(name));
        ASSERT_FALSE(bytes.empty());
        for (std::size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 200) {
            bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
            const std::string path = file(bytes);
            const Ran ran = inspect(at % 2 == 0 ? Form::kText : Form::kJson, path);
            ASSERT_EQ(ran.status, kRefused) << name << ", byte " << at;
            ASSERT_EQ(ran.out, "");
            ASSERT_NE(ran.err.find(path + ", offset "), std::string::npos) << ran.err;
            ASSERT_NE(ran.err.find("snapshot."), std::string::npos) << ran.err;
            bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
        }
        EXPECT_EQ(inspect(Form::kText, file(bytes)).status, kDone);
    }
}

TEST_F(CliSnapshotFile, DamagedCutAndNewerFilesAreRefusedByName) {
    std::string bytes = bytes_of(golden_path("v2-memory.gsnap"));
    ASSERT_GT(bytes.size(), 70000U);
    expect_refused(file(bytes.substr(0, 70000)), "snapshot.truncated",
                   "offset 70000: the file ends where ");
    expect_refused(file(""), "snapshot.truncated", "take another copy");
    std::string damaged = bytes;
    damaged[70000] = static_cast<char>(damaged[70000] ^ 1);
    expect_refused(file(damaged), "snapshot.checksum", "a block is damaged; take another copy");
    bytes[8] = static_cast<char>(snapshot::kContainerVersion + 1);
    const std::uint64_t checksum = XXH3_64bits(bytes.data(), 56);
    std::memcpy(bytes.data() + 56, &checksum, sizeof checksum);
    expect_refused(file(bytes), "snapshot.version.newer",
                   "offset 8: the format has version 3, this program reads up to 2; use the "
                   "Gantry release that wrote it");
}

TEST_F(CliSnapshotFile, WhatIsNoSnapshotIsRefusedByName) {
    expect_refused(file(std::string(500, 'x')), "snapshot.magic", "this is no Gantry snapshot");
    expect_refused((folder_ / "absent").string(), "snapshot.io", "No such file or directory",
                   kNotFound);
    expect_refused(folder_.string(), "snapshot.io", "is no regular file; name a snapshot file");
    const std::string fifo = (folder_ / "fifo").string();
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);  // Nobody writes to it: an open would wait.
    expect_refused(fifo, "snapshot.io", "is no regular file; name a snapshot file");
}

TEST_F(CliSnapshotFile, AnythingElseIsASessionsName) {
    EXPECT_TRUE(names_snapshot_file("./g1"));
    EXPECT_TRUE(names_snapshot_file("g1.gsnap"));  // its absence is said, not gantryd's
    EXPECT_FALSE(names_snapshot_file("g1"));
    EXPECT_FALSE(names_snapshot_file("11111111-0000-4000-8000-000000000001"));
    const fs::path before = fs::current_path();
    fs::current_path(folder_);
    (void)file("");
    EXPECT_TRUE(names_snapshot_file("file"));
    fs::current_path(before);
    EXPECT_EQ(inspect(Form::kText, "g1").status, kUnreachable);
}

}  // namespace
}  // namespace gantry::cli
