// Memory sections of the snapshot container: several threads write them, and anyone may read them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "proto/snapshot/large_pages.h"
#include "proto/snapshot/layout.h"
#include "tests/unit/snapshot/on_tmpfs.h"
#include "tests/unit/snapshot/sample.h"

namespace gantry::snapshot {
namespace {

namespace fs = std::filesystem;

/// What the file holds, which ends here.
std::string taken_from(int fd) {
    std::string bytes(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)), '\0');
    EXPECT_EQ(::pread(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    ::close(fd);
    return bytes;
}

std::string memory_sample() {
    const int fd = ::memfd_create("snapshot", MFD_CLOEXEC);
    EXPECT_TRUE(write_memory_sample(fd, "sample").ok());
    return taken_from(fd);
}

/// A file that is read again and again while it changes.
class Changing {
public:
    explicit Changing(std::string_view bytes) {
        EXPECT_EQ(::write(fd_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    }
    Changing(const Changing&) = delete;
    Changing& operator=(const Changing&) = delete;
    ~Changing() { ::close(fd_); }

    void set(std::size_t at, char byte) {
        EXPECT_EQ(::pwrite(fd_, &byte, 1, static_cast<off_t>(at)), 1);
    }
    void cut(std::size_t size) { EXPECT_EQ(::ftruncate(fd_, static_cast<off_t>(size)), 0); }
    Result<void> read(SnapshotVisitor& visitor) const {
        ::lseek(fd_, 0, SEEK_SET);
        auto result = read_snapshot(fd_, "bytes", visitor);
        return result.ok() ? Result<void>{} : Result<void>(result.error());
    }
    Result<void> read() const {
        Collector collector;
        return read(collector);
    }

private:
    const int fd_ = ::memfd_create("snapshot", MFD_CLOEXEC);
};

Result<void> read_bytes(std::string_view bytes, SnapshotVisitor& visitor) {
    return Changing(bytes).read(visitor);
}

/// Reads the contents of memory sections by itself.
class AtOffsets : public Collector {
public:
    Result<bool> on_memory(const StoredMemory& memory) override {
        const FingerprintKey key({header.seed_low(), header.seed_high()});
        std::uint64_t at = memory.offset;
        for (const StoredBlock& block : memory.blocks) {
            std::vector<std::byte> bytes(kBlockBytes);
            if (block.form == StoredForm::kBytes) {
                GANTRY_TRY(memory.read(at, bytes));
                if (fingerprint(key, BlockSpan(bytes)) != block.fingerprint) {
                    return memory.damaged(at);
                }
                at += kBlockBytes;
            } else if (block.form == StoredForm::kCopyOf) {
                bytes = blocks.at(block.origin);
                ++copies;
            }
            blocks[block.ref] = std::move(bytes);
        }
        ++sections;
        return true;
    }
    int sections = 0;
};

void expect_sample(const Collector& got) {
    EXPECT_TRUE(got.ended);
    EXPECT_EQ(got.copies, 1);
    ASSERT_EQ(got.blocks.size(), 5U);
    const unsigned contents[] = {3, 0, 3, 2};
    for (std::uint64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(got.blocks.at({2, 1, 0x30000000 + i}), sample_block(contents[i])) << i;
    }
}

TEST(MemorySection, ComesBackFromFileAndPipe) {
    const std::string bytes = memory_sample();
    Collector in_order;
    ASSERT_TRUE(read_bytes(bytes, in_order).ok());
    expect_sample(in_order);
    AtOffsets at_offsets;
    ASSERT_TRUE(read_bytes(bytes, at_offsets).ok());
    expect_sample(at_offsets);
    EXPECT_EQ(at_offsets.sections, 1);

    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    std::thread feeder([&] {
        EXPECT_EQ(::write(ends[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
        ::close(ends[1]);
    });
    AtOffsets from_pipe;
    const auto result = read_snapshot(ends[0], "pipe", from_pipe);
    feeder.join();
    ::close(ends[0]);
    ASSERT_TRUE(result.ok()) << result.error().text;
    expect_sample(from_pipe);
    EXPECT_EQ(from_pipe.sections, 0) << "a pipe cannot be read at any offset";
}

// Instrumented code takes each thirteenth, to be done in seconds; the release build takes them all.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kStride = 13;
#else
constexpr std::size_t kStride = 1;
#endif

TEST(MemorySection, EveryFlippedByteIsRefused) {
    const std::string bytes = memory_sample();
    Changing file(bytes);
    // The contents: two blocks before the memory section's end, summary and end.
    const std::size_t contents = bytes.find(std::string(1024, '\3')) - 1024;
    ASSERT_LT(contents, bytes.size());
    ASSERT_EQ(contents % 4096, 0U);
    const auto inside = [&](std::size_t i) {
        return i >= contents + 64 && i < contents + 2 * kBlockBytes - 64;
    };
    for (std::size_t i = 0; i < bytes.size(); i += inside(i) ? 61 * kStride : kStride) {
        for (const char bit : {char{0x01}, char{-0x80}}) {
            file.set(i, static_cast<char>(bytes[i] ^ bit));
            AtOffsets at_offsets;
            for (const auto& result : {file.read(), file.read(at_offsets)}) {
                ASSERT_FALSE(result.ok()) << "byte " << i;
                ASSERT_EQ(result.error().reason.rfind("snapshot.", 0), 0U);
                ASSERT_NE(result.error().text.find("offset"), std::string::npos);
            }
            file.set(i, bytes[i]);
        }
    }
    EXPECT_TRUE(file.read().ok());
}

TEST(MemorySection, EveryCutIsRefused) {
    const std::string bytes = memory_sample();
    std::vector<std::size_t> sizes;
    for (std::size_t size = 0; size < bytes.size();
         size += size < 8192 || bytes.size() - size < 4096 ? kStride : 997) {
        sizes.push_back(size);
    }
    Changing file(bytes);
    std::reverse(sizes.begin(), sizes.end());
    for (const std::size_t size : sizes) {
        file.cut(size);
        AtOffsets at_offsets;
        for (const auto& result : {file.read(), file.read(at_offsets)}) {
            ASSERT_FALSE(result.ok()) << size;
            ASSERT_EQ(result.error().reason, "snapshot.truncated") << size;
        }
    }
}

constexpr std::uint64_t kManyBlocks = 700;

/// What block i holds: every seventh is zero, every eleventh as the one before the last.
std::vector<std::byte> many_block(std::uint64_t i) {
    std::vector<std::byte> block(kBlockBytes);
    const std::uint64_t content = i % 11 == 10 ? i - 2 : i;
    for (std::size_t at = 0; content % 7 != 3 && at < kBlockBytes; at += 8) {
        const std::uint64_t word = (content * kBlockBytes + at) * 0x9E3779B97F4A7C15ULL;
        std::memcpy(&block[at], &word, 8);
    }
    return block;
}

Result<void> write_many(int fd, const std::string& name) {
    SnapshotWriter writer(fd, name, sample_header(), Codec::kStored);
    GANTRY_TRY(writer.add_graph(2, sample_graph(2)));
    GANTRY_ASSIGN(MemoryWriter * memory, writer.begin_memory(2, kManyBlocks));
    const FingerprintKey key({sample_header().seed_low(), sample_header().seed_high()});
    std::vector<std::vector<std::byte>> contents;
    std::vector<MemoryWriter::Block> blocks;
    for (std::uint64_t i = 0; i < kManyBlocks; ++i) {
        contents.push_back(many_block(i));
        const BlockSpan bytes(contents.back());
        blocks.push_back({1, 50 + i, fingerprint(key, bytes), is_zero_block(bytes)});
    }
    std::vector<std::uint64_t> places(kManyBlocks);
    Result<void> outcome[4];
    GANTRY_TRY(memory->place(std::span(blocks).first(300), std::span(places).first(300)));
    GANTRY_TRY(memory->place(std::span(blocks).subspan(300), std::span(places).subspan(300)));
    {
        std::vector<std::jthread> threads;
        for (std::size_t t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                for (std::size_t i = t; outcome[t] && i < kManyBlocks; i += 4) {
                    if (places[i] != MemoryWriter::kNotStored) {
                        outcome[t] = write_at(memory->file(), name, places[i], contents[i]);
                    }
                }
            });
        }
    }
    for (const Result<void>& each : outcome) {
        GANTRY_TRY(each);
    }
    GANTRY_TRY(writer.end_memory());
    return writer.finish();
}

void write_and_read_many(const std::string& file, std::uint64_t page_bytes) {
    auto out = AtomicFile::create(file);
    ASSERT_TRUE(out.ok());
    const auto written = write_many(out->fd(), file);
    ASSERT_TRUE(written.ok()) << written.error().text;
    struct stat status {};
    ASSERT_EQ(::fstat(out->fd(), &status), 0);
    EXPECT_GE(static_cast<std::uint64_t>(status.st_blksize), page_bytes);
    ASSERT_TRUE(out->commit().ok());
    Collector in_order;
    AtOffsets at_offsets;
    for (Collector* got : {&in_order, static_cast<Collector*>(&at_offsets)}) {
        const auto read = read_snapshot(file, *got);
        ASSERT_TRUE(read.ok()) << read.error().text;
        EXPECT_EQ(*read, fs::file_size(file));
        ASSERT_EQ(got->blocks.size(), kManyBlocks);
        EXPECT_GT(got->copies, 40);
        for (std::uint64_t i = 0; i < kManyBlocks; ++i) {
            ASSERT_EQ(got->blocks.at({2, 1, 50 + i}), many_block(i)) << i;
        }
    }
}

TEST(MemorySection, SeveralThreadsWriteOneFile) {
    std::string pattern = (fs::temp_directory_path() / "gantry-memory-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    write_and_read_many(pattern + "/many", 512);
    fs::remove_all(pattern);
}

TEST(MemorySection, SeveralThreadsWriteOneFileOfLargePages) {
    for (const char* options : {"huge=always", "huge=within_size"}) {
        on_tmpfs(options, [](const std::string& folder) {
            write_and_read_many(folder + "/many", 2U << 20);
        });
    }
}

TEST(MemorySection, SeveralThreadsWriteOneFileOfSmallPages) {
    on_tmpfs("huge=never",
             [](const std::string& folder) { write_and_read_many(folder + "/many", 4096); });
}

/// So many entries are read before the first blocks are handed out, and some more.
constexpr std::uint64_t kLongTable = 40'000;
constexpr std::uint64_t kStoredStep = 1000;

/// A table of zero blocks, but for every so many-th.
std::string long_sample() {
    const int fd = ::memfd_create("snapshot", MFD_CLOEXEC);
    SnapshotWriter writer(fd, "sample", sample_header(), Codec::kStored);
    EXPECT_TRUE(writer.add_graph(2, sample_graph(2)).ok());
    MemoryWriter* memory = writer.begin_memory(2, kLongTable).value();
    const FingerprintKey key({sample_header().seed_low(), sample_header().seed_high()});
    for (std::uint64_t i = 0; i < kLongTable; ++i) {
        MemoryWriter::Block block{1, 50 + i, key.zero_block(), true};
        std::uint64_t place = 0;
        if (i % kStoredStep != 0) {
            EXPECT_TRUE(memory->place({&block, 1}, {&place, 1}).ok());
            continue;
        }
        const auto bytes = many_block(7 * i);
        block.is_zero = false;
        block.fingerprint = fingerprint(key, BlockSpan(bytes));
        EXPECT_TRUE(memory->place({&block, 1}, {&place, 1}).ok());
        EXPECT_TRUE(write_at(fd, "sample", place, bytes).ok());
    }
    EXPECT_TRUE(writer.end_memory().ok());
    EXPECT_TRUE(writer.finish().ok());
    return taken_from(fd);
}

/// What of a section is handed out, and when.
class InTwoSteps : public Collector {
public:
    Result<void> on_first_blocks(const StoredMemory& memory) override {
        EXPECT_EQ(first_, 0U);
        EXPECT_EQ(sections, 0);
        first_ = memory.blocks.size();
        offset_ = memory.offset;
        EXPECT_EQ(memory.part, 2U);
        for (std::uint64_t i = 0; i < first_; ++i) {
            EXPECT_EQ(memory.blocks[i].ref.index, 50 + i);
        }
        return outcome;
    }
    Result<bool> on_memory(const StoredMemory& memory) override {
        ++sections;
        EXPECT_EQ(memory.offset, offset_);
        EXPECT_EQ(memory.blocks.size(), kLongTable);
        const StoredMemory rest = memory.beyond(first_);
        EXPECT_EQ(rest.blocks.size(), kLongTable - first_);
        EXPECT_EQ(rest.blocks.front().ref.index, 50 + first_);
        const std::uint64_t stored = (first_ + kStoredStep - 1) / kStoredStep;
        EXPECT_EQ(rest.offset, memory.offset + stored * kBlockBytes);
        return true;
    }
    [[nodiscard]] std::uint64_t first() const { return first_; }

    int sections = 0;
    Result<void> outcome;

private:
    std::uint64_t first_ = 0;
    std::uint64_t offset_ = 0;
};

TEST(MemorySection, TheFirstBlocksOfALongTableComeBeforeItsEnd) {
    const std::string bytes = long_sample();
    InTwoSteps visitor;
    ASSERT_TRUE(read_bytes(bytes, visitor).ok());
    EXPECT_GT(visitor.first(), 0U);
    EXPECT_LT(visitor.first(), kLongTable);
    EXPECT_EQ(visitor.sections, 1);
    InTwoSteps refuses;
    refuses.outcome = Error{Code::kCancelled, "test.first", "no"};
    const auto refused = read_bytes(bytes, refuses);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().reason, "test.first");
    EXPECT_EQ(refuses.sections, 0);
}

TEST(MemorySection, WhatIsWrongWithALongTableIsFoundAfterItsFirstBlocksToo) {
    std::string bytes = long_sample();
    const std::uint64_t last_zero = 50 + kLongTable - 1;
    const std::size_t last =
        bytes.rfind(std::string(reinterpret_cast<const char*>(&last_zero), sizeof last_zero));
    ASSERT_NE(last, std::string::npos);
    const std::size_t entry_begin = last - 8;  // FORMAT.md: the part comes before the index.
    const std::size_t table_begin = entry_begin - (kLongTable - 1) * layout::kEntryBytes;
    const auto read_with_flip = [&](std::size_t at, std::uint64_t* first) {
        bytes[at] ^= 1;
        InTwoSteps visitor;
        const auto read = read_bytes(bytes, visitor);
        bytes[at] ^= 1;
        EXPECT_FALSE(read.ok());
        EXPECT_EQ(visitor.sections, 0);
        *first = visitor.first();
        return read.ok() ? std::string() : read.error().reason;
    };
    std::uint64_t first = 0;
    EXPECT_EQ(read_with_flip(entry_begin + 24, &first), "snapshot.checksum") << "the last entry";
    EXPECT_GT(first, 0U);
    EXPECT_EQ(read_with_flip(table_begin + 24, &first), "snapshot.checksum")
        << "a fingerprint that may be one";
    EXPECT_GT(first, 0U);
    EXPECT_EQ(read_with_flip(table_begin + layout::kEntryBytes + 24, &first), "snapshot.checksum")
        << "a zero block that has another fingerprint";
    EXPECT_EQ(first, 0U) << "which makes no sense";
}

TEST(MemorySection, FullFileSystemIsAnErrorAndNoSignal) {
    for (const char* options : {"huge=always,size=16m", "huge=never,size=16m"}) {
        on_tmpfs(options, [](const std::string& folder) {
            auto out = AtomicFile::create(folder + "/many");
            ASSERT_TRUE(out.ok());
            const auto written = write_many(out->fd(), "many");
            ASSERT_FALSE(written.ok());
            EXPECT_EQ(written.error().reason, "snapshot.disk_full");
        });
    }
}

/// Eight large pages; of the first four each has bytes in its last small page.
TEST(LargePages, WhatLiesThereStaysAlsoWhileItIsWritten) {
    constexpr std::uint64_t kBytes = 8 * kLargePageBytes;
    const int fd = ::memfd_create("pages", MFD_CLOEXEC);
    ASSERT_EQ(::ftruncate(fd, static_cast<off_t>(kBytes)), 0);
    void* got = map_aligned(fd, 0, kBytes, PROT_READ | PROT_WRITE);
    ASSERT_NE(got, MAP_FAILED);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got) % kLargePageBytes, 0U);
    auto* const bytes = static_cast<std::byte*>(got);
    std::vector<std::byte> expected(kBytes);
    for (std::uint64_t page = 1; page <= 4; ++page) {
        expected[page * kLargePageBytes - 1] = std::byte{static_cast<unsigned char>(page)};
    }
    std::copy_n(expected.begin(), 4 * kLargePageBytes, bytes);
    std::atomic<bool> made{false};
    std::jthread writer([&] {  // The last page's bytes, again and again.
        for (unsigned round = 0; !made || round < 100; ++round) {
            for (std::uint64_t at = 7 * kLargePageBytes; at < kBytes; at += 512) {
                bytes[at] = std::byte{static_cast<unsigned char>(round)};
                expected[at] = bytes[at];
            }
        }
    });
    make_large_pages(bytes + 1, kBytes - 1);  // Seven of them lie there as a whole.
    made = true;
    writer.join();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), bytes));
    ::munmap(got, kBytes);
    ::close(fd);
}

TEST(LargePages, NoRoomIsNoSignal) {
    on_tmpfs("huge=never,size=3m", [](const std::string& folder) {
        const int fd = ::open((folder + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        ASSERT_EQ(::ftruncate(fd, 8 * static_cast<off_t>(kLargePageBytes)), 0);
        void* got = map_aligned(fd, 0, 8 * kLargePageBytes, PROT_READ | PROT_WRITE);
        ASSERT_NE(got, MAP_FAILED);
        make_large_pages(static_cast<std::byte*>(got), 8 * kLargePageBytes);
        ::munmap(got, 8 * kLargePageBytes);
        std::vector<std::byte> bytes(kLargePageBytes);
        EXPECT_EQ(::pread(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
        EXPECT_EQ(bytes, std::vector<std::byte>(kLargePageBytes));
        ::close(fd);
    });
}

}  // namespace
}  // namespace gantry::snapshot
