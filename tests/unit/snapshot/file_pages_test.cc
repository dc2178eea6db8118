// Pages of a file, and room for it, before it is written.
#include "proto/snapshot/file_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "proto/snapshot/large_pages.h"
#include "tests/unit/snapshot/on_tmpfs.h"

namespace {
/// Free blocks of any file system, while set: for all, and for those that are not root.
struct FreeBlocks {
    std::uint64_t of_root = 0;
    std::uint64_t of_others = 0;
};
std::atomic<const FreeBlocks*> g_free_blocks{nullptr};
}  // namespace

/// In the C library's place: no test has a file system that keeps blocks for root.
extern "C" int fstatvfs(int fd, struct statvfs* out) noexcept {
    (void)fd;
    const FreeBlocks* const free = g_free_blocks;
    if (free == nullptr) {
        errno = ENOSYS;
        return -1;
    }
    *out = {};
    out->f_frsize = 4096;
    out->f_bfree = free->of_root;
    out->f_bavail = free->of_others;
    return 0;
}

namespace gantry::snapshot {
namespace {

constexpr std::uint64_t kLarge = kLargePageBytes;
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

/// Part of a file, mapped.
class Mapped {
public:
    Mapped(int fd, const FileRange& range)
        : bytes_(range.bytes()),
          got_(map_aligned(fd, range.begin, bytes_, PROT_READ | PROT_WRITE)) {
        EXPECT_NE(got_, MAP_FAILED);
    }
    Mapped(const Mapped&) = delete;
    Mapped& operator=(const Mapped&) = delete;
    ~Mapped() { ::munmap(got_, bytes_); }
    [[nodiscard]] std::byte* at() const { return static_cast<std::byte*>(got_); }

private:
    const std::uint64_t bytes_;
    void* const got_;
};

constexpr FileRange kFilePart{2 * kLarge, 70 * kLarge};

/// A file with something in that part already.
int file_with_text(const std::string& folder) {
    const int fd = file_in(folder);
    EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(kFilePart.end)), 0);
    EXPECT_EQ(::pwrite(fd, "before", 7, static_cast<off_t>(5 * kLarge - 3)), 7);
    return fd;
}

void expect_text(int fd) {
    char got[7];
    EXPECT_EQ(::pread(fd, got, 7, static_cast<off_t>(5 * kLarge - 3)), 7);
    EXPECT_STREQ(got, "before");
}

TEST(FilePages, AreThereAndMapped) {
    for (const char* options : {"huge=always", "huge=never"}) {
        on_tmpfs(options, [](const std::string& folder) {
            const int fd = file_with_text(folder);
            const Mapped mapped(fd, kFilePart);
            const auto made =
                make_pages(fd, "the file", kFilePart.begin, mapped.at(), kFilePart.bytes());
            ASSERT_TRUE(made.ok()) << made.error().text;
            EXPECT_GE(allocated_bytes(fd), kFilePart.bytes());
            expect_text(fd);
            EXPECT_EQ(*(mapped.at() + 38 * kLarge), std::byte{0});
            std::memcpy(mapped.at() + 67 * kLarge, "new", 4);
            char got[4];
            ASSERT_EQ(::pread(fd, got, 4, static_cast<off_t>(69 * kLarge)), 4);
            EXPECT_STREQ(got, "new");
            ::close(fd);
        });
    }
}

TEST(FilePages, RoomOnTmpfsIsPages) {
    for (const char* options : {"huge=always", "huge=never"}) {
        on_tmpfs(options, [](const std::string& folder) {
            const int fd = file_with_text(folder);
            const auto reserved = reserve_room(fd, "the file", kFilePart, always);
            ASSERT_TRUE(reserved.ok()) << reserved.error().text;
            EXPECT_GE(allocated_bytes(fd), kFilePart.bytes());
            expect_text(fd);
            ::close(fd);
        });
    }
}

TEST(FilePages, AFullFileSystemIsAnErrorAndNoSignal) {
    for (const char* options : {"huge=always,size=16m", "huge=never,size=16m"}) {
        on_tmpfs(options, [](const std::string& folder) {
            const int fd = file_with_text(folder);
            const Mapped mapped(fd, kFilePart);
            const Result<void> refusals[] = {
                make_pages(fd, "the file", kFilePart.begin, mapped.at(), kFilePart.bytes()),
                reserve_room(fd, "the file", kFilePart, always)};
            for (const Result<void>& refused : refusals) {
                ASSERT_FALSE(refused.ok());
                EXPECT_EQ(refused.error().reason, "snapshot.disk_full");
                EXPECT_NE(refused.error().text.find("the file"), std::string::npos);
            }
            ::close(fd);
        });
    }
}

TEST(FilePages, NoRoomIsTakenWhenNobodyWaits) {
    on_tmpfs("huge=never", [](const std::string& folder) {
        const int fd = file_in(folder);
        const auto reserved = reserve_room(fd, "the file", kFilePart, [] { return false; });
        ASSERT_FALSE(reserved.ok());
        EXPECT_EQ(reserved.error().code, Code::kCancelled);
        EXPECT_LT(allocated_bytes(fd), kFilePart.bytes());
        ::close(fd);
    });
}

// gantryd runs as root, which may fill a disk up; `gantry` may run as anybody.
TEST(FilePages, WhatAFileSystemKeepsForRootIsFreeForRootOnly) {
    static constexpr FreeBlocks kFree{100, 60};
    g_free_blocks = &kFree;
    const bool is_root = ::geteuid() == 0;
    EXPECT_EQ(free_bytes(0), (is_root ? 100U : 60U) * 4096);
    if (is_root) {
        ASSERT_EQ(::seteuid(65534), 0);
        const std::uint64_t of_others = free_bytes(0);
        ASSERT_EQ(::seteuid(0), 0);
        EXPECT_EQ(of_others, 60U * 4096);
    }
    g_free_blocks = nullptr;
    EXPECT_EQ(free_bytes(0), 0U) << "it cannot be told";
}

/// The folder that tests run in lies on a disk, as a rule.
TEST(FilePages, OnADiskRoomIsReserved) {
    const int fd = ::open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 || is_on_tmpfs(fd)) {
        GTEST_SKIP() << "no disk, or one without files that have no name";
    }
    const auto reserved = reserve_room(fd, "file", {0, 4 * kLarge}, always);
    ASSERT_TRUE(reserved.ok()) << reserved.error().text;
    struct stat status {};
    ASSERT_EQ(::fstat(fd, &status), 0);
    EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), 4 * kLarge);
    ::close(fd);
}

}  // namespace
}  // namespace gantry::snapshot
