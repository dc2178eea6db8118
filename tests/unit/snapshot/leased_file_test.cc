// A file that is mapped for reading, and those who want to write to it or cut it meanwhile.
#include "proto/snapshot/leased_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "proto/snapshot/file_pages.h"
#include "proto/snapshot/large_pages.h"
#include "tests/unit/snapshot/on_tmpfs.h"

namespace gantry::snapshot {
namespace {

constexpr std::uint64_t kPage = kLargePageBytes;
constexpr std::uint64_t kSampleBytes = 3 * kPage + 100;

std::string sample_in(const std::string& folder) {
    const std::string name = folder + "/file";
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    std::vector<unsigned char> bytes(kSampleBytes);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<unsigned char>(i * 7 + i / 4096);
    }
    EXPECT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ::close(fd);
    return name;
}

int open_to_read(const std::string& name) {
    const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_GE(fd, 0);
    return fd;
}

bool is_as_in_file(int fd, const std::byte* at, std::uint64_t offset, std::uint64_t bytes) {
    std::vector<std::byte> read(bytes);
    return ::pread(fd, read.data(), bytes, static_cast<off_t>(offset)) ==
               static_cast<ssize_t>(bytes) &&
           std::memcmp(read.data(), at, bytes) == 0;
}

TEST(LeasedFile, IsFoundWhereItIs) {
    on_tmpfs("huge=always", [](const std::string& folder) {
        const std::string name = sample_in(folder);
        const int fd = open_to_read(name);
        {
            const LeasedFile all = LeasedFile::map(fd, 5, ~std::uint64_t{0} / 2);
            for (const std::uint64_t offset : {std::uint64_t{5}, kPage - 3, kSampleBytes - 90}) {
                ASSERT_NE(all.find(offset, 90), nullptr) << offset;
                EXPECT_TRUE(is_as_in_file(fd, all.find(offset, 90), offset, 90)) << offset;
            }
            EXPECT_EQ(all.find(kSampleBytes - 90, 91), nullptr);
            EXPECT_EQ(all.find(kSampleBytes + 1, 0), nullptr);
            EXPECT_EQ(all.find(kPage, ~std::uint64_t{0}), nullptr);
        }
        const LeasedFile part = LeasedFile::map(fd, kPage + 10, kPage);
        ASSERT_NE(part.find(kPage + 10, kPage), nullptr);
        EXPECT_TRUE(is_as_in_file(fd, part.find(kPage + 10, kPage), kPage + 10, kPage));
        EXPECT_EQ(part.find(kPage + 11, kPage), nullptr);
        EXPECT_EQ(part.find(kPage - 1, 1), nullptr);
        EXPECT_EQ(LeasedFile().find(0, 0), nullptr);
        ::close(fd);
    });
}

TEST(LeasedFile, BeyondTheEndThereIsNothing) {
    on_tmpfs("huge=never", [](const std::string& folder) {
        const int fd = open_to_read(sample_in(folder));
        const LeasedFile beyond = LeasedFile::map(fd, 4 * kPage, kPage);
        EXPECT_EQ(beyond.find(4 * kPage, 1), nullptr);
        ::close(fd);
    });
}

TEST(LeasedFile, WhoeverCutsItWaitsUntilItIsGivenBack) {
    on_tmpfs("huge=always", [](const std::string& folder) {
        const std::string name = sample_in(folder);
        const int fd = open_to_read(name);
        std::atomic<bool> is_cut{false};
        std::thread cutter;
        {
            const LeasedFile file = LeasedFile::map(fd, 0, kSampleBytes);
            const std::byte* const at = file.find(2 * kPage, kPage);
            ASSERT_NE(at, nullptr);
            cutter = std::thread([&] {
                EXPECT_EQ(::truncate(name.c_str(), 10), 0);
                is_cut = true;
            });
            while (file.find(0, 1) != nullptr) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            EXPECT_FALSE(is_cut);
            EXPECT_TRUE(is_as_in_file(fd, at, 2 * kPage, kPage));  // What was found is there.
        }
        cutter.join();
        EXPECT_TRUE(is_cut);
        const LeasedFile cut = LeasedFile::map(fd, 0, kSampleBytes);
        EXPECT_NE(cut.find(0, 10), nullptr);
        EXPECT_EQ(cut.find(0, 11), nullptr);
        ::close(fd);
    });
}

TEST(LeasedFile, WhatSomebodyWritesToIsNotMapped) {
    on_tmpfs("huge=always", [](const std::string& folder) {
        const std::string name = sample_in(folder);
        const int fd = open_to_read(name);
        const int writer = ::open(name.c_str(), O_WRONLY | O_CLOEXEC);
        ASSERT_GE(writer, 0);
        const LeasedFile refused = LeasedFile::map(fd, 0, kSampleBytes);
        EXPECT_EQ(refused.find(0, 1), nullptr);
        ::close(writer);
        const LeasedFile given = LeasedFile::map(fd, 0, kSampleBytes);
        EXPECT_NE(given.find(0, 1), nullptr);
        EXPECT_LT(::open(name.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK), 0);
        EXPECT_EQ(errno, EAGAIN);
        EXPECT_EQ(given.find(0, 1), nullptr);  // Somebody wants it.
        ::close(fd);
    });
}

/// A copy by cp --sparse is such a file. To read its hole in a mapping would take memory, and end
/// the process where there is none.
TEST(LeasedFile, WhatHasHolesIsNotMapped) {
    on_tmpfs("huge=never", [](const std::string& folder) {
        const std::string name = sample_in(folder);
        int fd = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
        EXPECT_EQ(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kPage, 4096), 0);
        ::close(fd);
        fd = open_to_read(name);
        struct stat before {};
        EXPECT_EQ(::fstat(fd, &before), 0);
        {
            const LeasedFile file = LeasedFile::map(fd, 0, kSampleBytes);
            EXPECT_EQ(file.find(0, kSampleBytes), nullptr);
        }
        struct stat after {};
        EXPECT_EQ(::fstat(fd, &after), 0);
        EXPECT_EQ(after.st_blocks, before.st_blocks);
        ::close(fd);
    });
}

/// Whoever made it may cut it without opening it again.
TEST(LeasedFile, WhatHasNoNameIsNotMapped) {
    on_tmpfs("huge=never", [](const std::string& folder) {
        const std::string name = sample_in(folder);
        const int fd = open_to_read(name);
        EXPECT_NE(LeasedFile::map(fd, 0, kSampleBytes).find(0, 1), nullptr);
        EXPECT_EQ(::unlink(name.c_str()), 0);
        EXPECT_EQ(LeasedFile::map(fd, 0, kSampleBytes).find(0, 1), nullptr);
        ::close(fd);
    });
}

TEST(LeasedFile, LeavesNoMappingBehind) {
    const auto mappings = [] {
        std::ifstream maps("/proc/self/maps");
        return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
    };
    on_tmpfs("huge=never", [&](const std::string& folder) {
        const int fd = open_to_read(sample_in(folder));
        (void)LeasedFile::map(fd, 0, kSampleBytes);
        const auto before = mappings();
        for (int i = 0; i < 50; ++i) {
            EXPECT_NE(LeasedFile::map(fd, 0, kSampleBytes).find(0, kSampleBytes), nullptr);
        }
        EXPECT_LT(mappings(), before + 25);
        ::close(fd);
    });
}

/// The folder that tests run in lies on a disk, as a rule.
TEST(LeasedFile, OnADiskNothingIsMapped) {
    struct Folder {
        std::string name = "leased-XXXXXX";
        Folder() { EXPECT_NE(::mkdtemp(name.data()), nullptr); }
        ~Folder() { std::filesystem::remove_all(name); }
    } folder;
    const int fd = open_to_read(sample_in(folder.name));
    if (is_on_tmpfs(fd)) {
        GTEST_SKIP() << "no disk";
    }
    const LeasedFile file = LeasedFile::map(fd, 0, kSampleBytes);
    EXPECT_EQ(file.find(0, 1), nullptr);
    EXPECT_EQ(::truncate((folder.name + "/file").c_str(), 10), 0);
    ::close(fd);
}

}  // namespace
}  // namespace gantry::snapshot
