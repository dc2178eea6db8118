// Pages of a file that are made before it is written.
#include "proto/snapshot/file_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#include "proto/snapshot/large_pages.h"
#include "tests/unit/snapshot/on_tmpfs.h"

namespace gantry::snapshot {
namespace {

constexpr std::uint64_t kLarge = kLargePageBytes;
using Cleared = FilePages::Cleared;

bool always() { return true; }

int file_in(const std::string& folder) {
    const int fd = ::open((folder + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_GE(fd, 0);
    return fd;
}

std::uint64_t allocated_bytes(int fd) {
    struct stat status {};
    EXPECT_EQ(::fstat(fd, &status), 0);
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

/// A file in which something lies already, and its pages.
Result<FilePages> pages_of(int fd, Cleared cleared) {
    EXPECT_EQ(::pwrite(fd, "before", 7, static_cast<off_t>(5 * kLarge - 3)), 7);
    auto pages = FilePages::make(fd, "file", {2 * kLarge, 70 * kLarge}, cleared, 3, always);
    EXPECT_GE(allocated_bytes(fd), 68 * kLarge);
    char got[7];
    EXPECT_EQ(::pread(fd, got, 7, static_cast<off_t>(5 * kLarge - 3)), 7);
    EXPECT_STREQ(got, "before");
    return pages;
}

TEST(FilePages, AreThereAndMapped) {
    struct Case {
        const char* options;
        Cleared wanted;
        Cleared got;
    };
    for (const Case& one : {Case{"huge=always", Cleared::kNow, Cleared::kNow},
                            Case{"huge=never", Cleared::kNow, Cleared::kNow},
                            Case{"huge=always", Cleared::kWhenWritten, Cleared::kWhenWritten},
                            Case{"huge=never", Cleared::kWhenWritten, Cleared::kNow}}) {
        on_tmpfs(one.options, [&](const std::string& folder) {
            const int fd = file_in(folder);
            const auto pages = pages_of(fd, one.wanted);
            ASSERT_TRUE(pages.ok()) << pages.error().text;
            EXPECT_EQ(pages->are_cleared(), one.got == Cleared::kNow) << one.options;
            EXPECT_EQ(*pages->find(40 * kLarge, 1), std::byte{0});
            ASSERT_NE(pages->find(5 * kLarge - 3, 7), nullptr);
            EXPECT_EQ(std::memcmp(pages->find(5 * kLarge - 3, 7), "before", 7), 0);
            std::memcpy(pages->find(69 * kLarge, 4), "new", 4);
            char got[4];
            ASSERT_EQ(::pread(fd, got, 4, static_cast<off_t>(69 * kLarge)), 4);
            EXPECT_STREQ(got, "new");
            ::close(fd);
        });
    }
}

TEST(FilePages, AreFoundWhereTheyAreAsAWhole) {
    on_tmpfs("huge=never", [](const std::string& folder) {
        const int fd = file_in(folder);
        const auto pages =
            FilePages::make(fd, "file", {kLarge, 3 * kLarge}, Cleared::kNow, 1, always);
        ASSERT_TRUE(pages.ok()) << pages.error().text;
        EXPECT_NE(pages->find(kLarge, 2 * kLarge), nullptr);
        EXPECT_NE(pages->find(3 * kLarge - 1, 1), nullptr);
        EXPECT_EQ(pages->find(kLarge - 1, 2), nullptr);
        EXPECT_EQ(pages->find(3 * kLarge - 1, 2), nullptr);
        EXPECT_EQ(pages->find(4 * kLarge, 0), nullptr);
        EXPECT_EQ(pages->find(2 * kLarge, ~std::uint64_t{0}), nullptr);
        EXPECT_EQ(FilePages().find(0, 0), nullptr);
        ::close(fd);
    });
}

TEST(FilePages, AFullFileSystemIsAnErrorAndNoSignal) {
    for (const char* options : {"huge=always,size=16m", "huge=never,size=16m"}) {
        for (const Cleared cleared : {Cleared::kNow, Cleared::kWhenWritten}) {
            on_tmpfs(options, [&](const std::string& folder) {
                const int fd = file_in(folder);
                const auto pages =
                    FilePages::make(fd, "the file", {0, 64 * kLarge}, cleared, 2, always);
                ASSERT_FALSE(pages.ok());
                EXPECT_EQ(pages.error().reason, "snapshot.disk_full");
                EXPECT_NE(pages.error().text.find("the file"), std::string::npos);
                ::close(fd);
            });
        }
    }
}

TEST(FilePages, MakingEndsWhenNobodyWaits) {
    on_tmpfs("huge=never", [](const std::string& folder) {
        const int fd = file_in(folder);
        std::atomic<int> asked{0};
        const auto pages = FilePages::make(fd, "file", {0, 512 * kLarge}, Cleared::kNow, 2,
                                           [&] { return ++asked < 3; });
        ASSERT_FALSE(pages.ok());
        EXPECT_EQ(pages.error().code, Code::kCancelled);
        EXPECT_LT(allocated_bytes(fd), 512 * kLarge);
        ::close(fd);
    });
}

/// The folder that tests run in lies on a disk, as a rule.
TEST(FilePages, OnADiskRoomIsReservedAndNothingMapped) {
    const int fd = ::open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 || is_on_tmpfs(fd)) {
        GTEST_SKIP() << "no disk, or one without files that have no name";
    }
    const auto pages = FilePages::make(fd, "file", {0, 4 * kLarge}, Cleared::kNow, 2, always);
    ASSERT_TRUE(pages.ok()) << pages.error().text;
    EXPECT_EQ(pages->find(0, 1), nullptr);
    struct stat status {};
    ASSERT_EQ(::fstat(fd, &status), 0);
    EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), 4 * kLarge);
    ::close(fd);
}

}  // namespace
}  // namespace gantry::snapshot
