// The snapshot container: what is written comes back; what is damaged is refused, wherever it is.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tests/unit/snapshot/sample.h"

namespace gantry::snapshot {
namespace {

namespace fs = std::filesystem;

class Container : public testing::Test {
protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "gantry-snapshot-XXXXXX").string();
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
    }
    void TearDown() override { fs::remove_all(folder_); }

    std::string path(const char* name) const { return (folder_ / name).string(); }

    std::string sample(Codec codec) const {
        const std::string file = path("sample");
        auto out = AtomicFile::create(file);
        EXPECT_TRUE(out.ok());
        const auto written = write_sample(out->fd(), file, codec);
        EXPECT_TRUE(written.ok());
        EXPECT_TRUE(out->commit().ok());
        std::ifstream in(file, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }

    Result<void> read_bytes(const std::string& bytes, Collector* collector = nullptr) const {
        const int fd = ::memfd_create("snapshot", MFD_CLOEXEC);
        EXPECT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
        ::lseek(fd, 0, SEEK_SET);
        Collector own;
        auto result = read_snapshot(fd, "bytes", collector != nullptr ? *collector : own);
        ::close(fd);
        return result.ok() ? Result<void>{} : Result<void>(result.error());
    }

    fs::path folder_;
};

TEST_F(Container, ComesBackWithEveryCodec) {
    for (const Codec codec : {Codec::kStored, Codec::kLz4, Codec::kZstd}) {
        Collector got;
        const std::string bytes = sample(codec);
        const auto result = read_bytes(bytes, &got);
        ASSERT_TRUE(result.ok()) << result.error().to_string();
        EXPECT_TRUE(got.ended);
        EXPECT_EQ(got.header.epoch(), 3U);
        EXPECT_EQ(got.graphs.at(2), sample_graph(2));
        EXPECT_EQ(got.images, std::vector<std::string>{"ptx text"});
        ASSERT_EQ(got.blocks.size(), 5U);
        EXPECT_EQ(got.copies, 2);
        EXPECT_EQ(got.blocks.at({1, 1, 0x30000001}), sample_block(0));
        EXPECT_EQ(got.blocks.at({1, 1, 0x30000002}), sample_block(1));
        EXPECT_EQ(got.blocks.at({2, 2, 7}), sample_block(2));
        const bool is_packed = bytes.size() < 2 * kBlockBytes;
        EXPECT_EQ(is_packed, codec != Codec::kStored);
    }
}

TEST_F(Container, EveryFlippedByteIsRefused) {
    std::string bytes = sample(Codec::kLz4);
    ASSERT_LT(bytes.size(), 8192U);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        for (const char bit : {char{0x01}, char{-0x80}}) {
            bytes[i] = static_cast<char>(bytes[i] ^ bit);
            const auto result = read_bytes(bytes);
            ASSERT_FALSE(result.ok()) << "byte " << i;
            ASSERT_EQ(result.error().reason.rfind("snapshot.", 0), 0U);
            ASSERT_NE(result.error().text.find("offset"), std::string::npos);
            bytes[i] = static_cast<char>(bytes[i] ^ bit);
        }
    }
    EXPECT_TRUE(read_bytes(bytes).ok());
}

TEST_F(Container, EveryCutIsRefused) {
    const std::string bytes = sample(Codec::kLz4);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        const auto result = read_bytes(bytes.substr(0, size));
        ASSERT_FALSE(result.ok()) << size;
        ASSERT_EQ(result.error().reason, "snapshot.truncated") << size;
    }
    EXPECT_EQ(read_bytes(bytes + "x").error().reason, "snapshot.malformed");
}

// As of a file that was put together from pieces of others, each with a true checksum.
TEST_F(Container, AnEndThatBelongsElsewhereIsRefused) {
    std::string bytes = sample(Codec::kLz4);
    constexpr std::size_t kEndBytes = 16;  // A checksum of all sections, and where the file ends.
    constexpr std::size_t kSectionBytes = 32 + kEndBytes + 8;
    const std::size_t section = bytes.size() - kSectionBytes;
    char* const end = bytes.data() + section + 32;
    std::uint64_t says = 0;
    std::memcpy(&says, end + 8, sizeof says);
    ASSERT_EQ(says, bytes.size());
    for (const std::uint64_t elsewhere : {says + 1, says - 1, std::uint64_t{0}}) {
        std::memcpy(end + 8, &elsewhere, sizeof elsewhere);
        const std::uint64_t checksum = XXH3_64bits_withSeed(end, kEndBytes, section);
        std::memcpy(end + kEndBytes, &checksum, sizeof checksum);
        const auto result = read_bytes(bytes);
        ASSERT_FALSE(result.ok()) << elsewhere;
        EXPECT_EQ(result.error().reason, "snapshot.malformed");
    }
}

// A process that has allocated nothing yet.
TEST_F(Container, APartWithoutBlocksComesBack) {
    const int fd = ::memfd_create("snapshot", MFD_CLOEXEC);
    SnapshotWriter writer(fd, "bytes", sample_header(), Codec::kLz4);
    ASSERT_TRUE(writer.add_graph(1, sample_graph(1)).ok());
    const auto block = sample_block(1);
    ASSERT_TRUE(writer.add_block({1, 1, 0x30000000}, BlockSpan(block)).ok());
    ASSERT_TRUE(writer.add_graph(7, sample_graph(7)).ok());
    ASSERT_TRUE(writer.finish().ok());
    ::lseek(fd, 0, SEEK_SET);
    Collector got;
    const auto result = read_snapshot(fd, "bytes", got);
    ::close(fd);
    ASSERT_TRUE(result.ok()) << result.error().to_string();
    EXPECT_EQ(got.graphs.at(7), sample_graph(7));
    ASSERT_EQ(got.summary.parts_size(), 2);
    EXPECT_EQ(got.summary.parts(0).block_count(), 1U);
    EXPECT_EQ(got.summary.parts(1).part_id(), 7U);
    EXPECT_EQ(got.summary.parts(1).block_count(), 0U);
}

TEST_F(Container, NewerVersionIsRefusedByName) {
    std::string bytes = sample(Codec::kLz4);
    bytes[8] = static_cast<char>(kContainerVersion + 1);
    const std::uint64_t checksum = XXH3_64bits(bytes.data(), 56);
    std::memcpy(bytes.data() + 56, &checksum, sizeof checksum);
    const auto result = read_bytes(bytes);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().reason, "snapshot.version.newer");
    EXPECT_NE(result.error().text.find("version " + std::to_string(kContainerVersion + 1)),
              std::string::npos);
}

TEST_F(Container, OtherFilesAreRefusedByMagic) {
    EXPECT_EQ(read_bytes(std::string(4096, 'A')).error().reason, "snapshot.magic");
    EXPECT_EQ(read_bytes("").error().reason, "snapshot.truncated");
    Collector collector;
    EXPECT_EQ(read_snapshot(path("absent"), collector).error().code, Code::kNotFound);
}

TEST_F(Container, FullDiskLeavesNothingBehind) {
    const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
    ASSERT_GE(full, 0);
    const auto result = write_sample(full, "target.gsnap", Codec::kStored);
    ::close(full);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().reason, "snapshot.disk_full");
    EXPECT_NE(result.error().text.find("target.gsnap"), std::string::npos);

    // With a real file: a size limit ends the write in the middle.
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    rlimit small = before;
    small.rlim_cur = 70'000;
    ::setrlimit(RLIMIT_FSIZE, &small);
    std::string reason;
    {
        auto file = AtomicFile::create(path("full"));
        ASSERT_TRUE(file.ok());
        const auto written = write_sample(file->fd(), path("full"), Codec::kStored);
        reason = written.ok() ? "none" : written.error().reason;
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(reason, "snapshot.disk_full");
    EXPECT_TRUE(fs::is_empty(folder_)) << "a partial file is left";
}

TEST_F(Container, OldFileStaysUntilTheNewOneIsWhole) {
    std::ofstream(path("kept")) << "old";
    {
        auto file = AtomicFile::create(path("kept"));
        ASSERT_TRUE(file.ok());
        ASSERT_TRUE(write_sample(file->fd(), path("kept"), Codec::kLz4).ok());
    }  // no commit: as if the process had failed here
    std::string text;
    std::ifstream(path("kept")) >> text;
    EXPECT_EQ(text, "old");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(Container, AFileGoesWithItsWriter) {
    const pid_t writer = ::fork();
    if (writer == 0) {  // Killed in the middle: no destructor runs.
        auto file = AtomicFile::create(path("lost"));
        (void)::write(file->fd(), "half of it", 10);
        ::_exit(file.ok() ? 0 : 1);
    }
    int status = 1;
    ASSERT_EQ(::waitpid(writer, &status, 0), writer);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(fs::is_empty(folder_)) << "a partial file is left";
}

TEST_F(Container, AWholeFileTakesTheOldOnesPlace) {
    std::ofstream(path("name")) << "old";
    auto file = AtomicFile::create(path("name"));
    ASSERT_TRUE(file.ok());
    ASSERT_EQ(::write(file->fd(), "new", 3), 3);
    ASSERT_TRUE(file->commit().ok());
    std::string text;
    std::ifstream(path("name")) >> text;
    EXPECT_EQ(text, "new");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

// The name that it has until it is whole is longer.
TEST_F(Container, ANameMayBeAsLongAsThePartialOneFits) {
    const std::size_t longest = NAME_MAX - std::string(".partial-XXXXXX").size();
    EXPECT_TRUE(AtomicFile::create(path(std::string(longest, 'n').c_str())).ok());
    EXPECT_FALSE(AtomicFile::create(path(std::string(longest + 1, 'n').c_str())).ok());
}

TEST_F(Container, OnlyARegularFileIsReplaced) {
    fs::create_directory(path("folder"));
    ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
    std::vector<std::string> others = {path("folder"), path("absent") + "/", path("fifo"),
                                       path("to_fifo")};
    fs::create_symlink("fifo", path("to_fifo"));
    if (::mknod(path("device").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) {  // Takes root.
        others.push_back(path("device"));
    }
    for (const std::string& other : others) {
        const auto file = AtomicFile::create(other);
        ASSERT_FALSE(file.ok()) << other;
        EXPECT_EQ(file.error().reason, "snapshot.io");
        EXPECT_EQ(file.error().text, other + " is no regular file; name a file");
    }
    EXPECT_TRUE(fs::is_fifo(path("fifo")));
    std::ofstream(path("old")) << "old";
    fs::create_symlink("old", path("to_old"));
    fs::create_symlink("absent", path("to_nothing"));
    for (const char* fit : {"old", "to_old", "to_nothing", "new"}) {
        EXPECT_TRUE(AtomicFile::create(path(fit)).ok()) << fit;
    }
}

TEST_F(Container, OnlyARegularFileIsRead) {
    ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);  // Nobody writes to it.
    fs::create_symlink("fifo", path("to_fifo"));
    for (const std::string& other : {folder_.string(), path("fifo"), path("to_fifo")}) {
        Collector collector;
        const auto read = read_snapshot(other, collector);
        ASSERT_FALSE(read.ok()) << other;
        EXPECT_EQ(read.error().reason, "snapshot.io");
        EXPECT_EQ(read.error().text, other + " is no regular file; name a snapshot file");
    }
}

std::string golden(const char* name) {
    std::ifstream in(std::string(GANTRY_GOLDEN_FOLDER "/") + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(Container, GoldenFilesOfEveryVersionStillRead) {
    for (const char* name : {"v1-stored.gsnap", "v1-lz4.gsnap", "v1-zstd.gsnap"}) {
        const std::string bytes = golden(name);
        ASSERT_FALSE(bytes.empty()) << name;
        Collector got;
        const auto result = read_bytes(bytes, &got);
        ASSERT_TRUE(result.ok()) << name << ": " << result.error().to_string();
        EXPECT_EQ(got.blocks.at({2, 2, 7}), sample_block(2));
        EXPECT_EQ(got.graphs.at(1), sample_graph(1));
    }
    Collector got;
    const auto result = read_bytes(golden("v2-memory.gsnap"), &got);
    ASSERT_TRUE(result.ok()) << result.error().to_string();
    EXPECT_EQ(got.blocks.at({1, 1, 0x30000000}), sample_block(1));
    EXPECT_EQ(got.blocks.at({2, 1, 0x30000002}), sample_block(3));
    EXPECT_EQ(got.blocks.at({2, 1, 0x30000003}), sample_block(2));
}

TEST_F(Container, WriterStillWritesTheGoldenBytes) {
    const std::string file = path("memory");
    auto out = AtomicFile::create(file);
    ASSERT_TRUE(out.ok());
    ASSERT_TRUE(write_memory_sample(out->fd(), file).ok());
    ASSERT_TRUE(out->commit().ok());
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(bytes, golden("v2-memory.gsnap"));
    EXPECT_EQ(bytes[8], static_cast<char>(kContainerVersion));
}

}  // namespace
}  // namespace gantry::snapshot
