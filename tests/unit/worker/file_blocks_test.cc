// Blocks between device memory and a file, both ways of it, on the soft GPU's driver.
#include "host-daemon/state/files/file_blocks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "host-daemon/state/blocks/file_mapping.h"
#include "host-daemon/state/files/file_pieces.h"
#include "tests/unit/worker/holder.h"

namespace gantry::worker {
namespace {

using state::BlockRange;

TEST(FileBlocks, GoToAFileAndBack) {
    Holder holder;
    // What lies between is not stored; the places follow one another all the same.
    const std::vector runs{holder.run(0, 3, 0), holder.run(10, 1, 3), holder.run(12, 1088, 4)};
    const auto stored = holder.part.source.store_blocks(holder.file.get(), runs);
    ASSERT_TRUE(stored.ok()) << stored.error().text;
    EXPECT_EQ(stored->block_count, 1092U);
    EXPECT_TRUE(stored->outside.empty());
    holder.write(std::vector<std::byte>(holder.bytes.size(), std::byte{0x5a}));
    const auto loaded = holder.part.target.load_blocks(holder.file.get(), runs);
    ASSERT_TRUE(loaded.ok()) << loaded.error().text;
    const std::vector<std::byte> now = holder.memory();
    for (std::uint64_t i = 0; i < kBlocks; ++i) {
        const bool is_stored = i < 3 || i == 10 || i >= 12;
        const std::byte* const at = &now[i * kBlockBytes];
        EXPECT_EQ(is_stored ? std::memcmp(at, &holder.bytes[i * kBlockBytes], kBlockBytes)
                            : std::to_integer<int>(*at) - 0x5a,
                  0)
            << "block " << i;
    }
}

/// How often a line of this process's memory map holds the text.
int mappings_of(const std::string& text) {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
        count += line.find(text) != std::string::npos;
    }
    return count;
}

TEST(FileBlocks, NothingOfAFileIsLeft) {
    Holder holder;
    const std::vector runs{holder.run(0, kBlocks, 0)};
    ASSERT_TRUE(holder.part.source.store_blocks(holder.file.get(), runs));
    EXPECT_EQ(mappings_of("memfd:blocks"), 0);
    holder.part.content.end_files();
    holder.part.target.expect_file();
    ASSERT_TRUE(holder.part.target.load_blocks(holder.file.get(), runs));
    holder.part.content.end_files();
    // A restore does not wait for the end of its mapping.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (mappings_of("memfd:blocks") != 0 && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(mappings_of("memfd:blocks"), 0);
    EXPECT_EQ(holder.memory(), holder.bytes);
}

TEST(FileBlocks, AreMappedWhereLargePagesCanBe) {
    std::byte* hint = nullptr;  // Where something was, so that there is room.
    {
        const state::Mapping before(nullptr, 64U << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                                    0);
        hint = before.at();
    }
    std::vector<std::unique_ptr<state::Mapping>> mappings;
    for (const std::uint64_t bytes : {4096U, 3U << 20, 64U << 10, 5U << 20}) {
        mappings.push_back(std::make_unique<state::Mapping>(hint, bytes, PROT_READ | PROT_WRITE,
                                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        std::byte* const at = mappings.back()->at();
        ASSERT_NE(at, nullptr);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % snapshot::kLargePageBytes, 0U);
        at[0] = at[bytes - 1] = std::byte{1};
    }
    EXPECT_EQ(mappings.front()->at(), hint);
}

TEST(CopySlots, AreThereUntilTheyAreGivenBack) {
    Host host;
    state::CopySlots slots(*host.process);
    const auto is_there = [](std::byte* at) {
        unsigned char page = 0;
        return mincore(at, 4096, &page) == 0;
    };
    constexpr std::uint64_t kBytes = state::CopySlots::kBytesMax;
    ASSERT_TRUE(slots.make(1, kBytes));
    std::byte* const first = slots.of(0);
    EXPECT_TRUE(is_there(first));
    ASSERT_TRUE(slots.make(1, kBytes));
    EXPECT_EQ(slots.of(0), first);
    ASSERT_TRUE(slots.make(3, kBytes));
    std::byte* const last = slots.of(2);
    EXPECT_EQ(last, slots.of(0) + 2 * kBytes);
    EXPECT_TRUE(is_there(last));
    ASSERT_TRUE(slots.make(2, kBytes));
    EXPECT_EQ(slots.of(2), last) << "there are more than enough";
    ASSERT_TRUE(slots.make(4, kBytes / 2));
    EXPECT_EQ(slots.of(0) + 2 * kBytes, last) << "they are large enough";
    EXPECT_EQ(slots.of(2), slots.of(0) + kBytes);
    slots.give_back();
    EXPECT_FALSE(is_there(last));
}

TEST(CopySlots, TakePagesThatWereMadeBefore) {
    Host host;
    constexpr std::uint64_t kBytes = 4U << 20;
    auto pages = state::CopySlots::make_pages(kBytes);
    ASSERT_NE(pages, nullptr);
    std::byte* const at = pages->at();
    state::CopySlots slots(*host.process, std::move(pages));
    ASSERT_TRUE(slots.make(state::CopySlots::kCount, kBytes));
    EXPECT_EQ(slots.of(0), at);
    EXPECT_EQ(slots.of(3), at + 3 * kBytes);
    slots.give_back();
    ASSERT_TRUE(slots.make(1, kBytes)) << "others are made";
    slots.give_back();
}

TEST(FileBlocks, ZerosAndCopiesAreMadeOnTheDevice) {
    Holder holder;
    std::vector runs{holder.run(0, 2, 0)};
    ASSERT_TRUE(holder.part.source.store_blocks(holder.file.get(), runs));
    runs.push_back({{MemorySpace::kDevice, holder.first + 2, 3}, FileRun::Form::kZero, 0, 0});
    runs.push_back(
        {{MemorySpace::kDevice, holder.first + 5, 2}, FileRun::Form::kCopy, 0, holder.first});
    holder.write(std::vector<std::byte>(holder.bytes.size(), std::byte{0x5a}));
    const auto loaded = holder.part.target.load_blocks(holder.file.get(), runs);
    ASSERT_TRUE(loaded.ok()) << loaded.error().text;
    EXPECT_EQ(loaded->block_count, 7U);
    const std::vector<std::byte> now = holder.memory();
    const std::vector<std::byte> zeros(3 * kBlockBytes);
    EXPECT_EQ(std::memcmp(&now[2 * kBlockBytes], zeros.data(), zeros.size()), 0);
    EXPECT_EQ(std::memcmp(&now[5 * kBlockBytes], holder.bytes.data(), 2 * kBlockBytes), 0);
    EXPECT_EQ(now[7 * kBlockBytes], std::byte{0x5a});
}

TEST(FileBlocks, WhatIsNoMemoryIsNamedAndLeftAlone) {
    Holder holder;
    const std::uint64_t beyond = holder.first + (1ULL << 30) / kBlockBytes;
    const std::vector runs{
        holder.run(0, 1, 0),
        FileRun{
            {MemorySpace::kDevice, beyond, 2}, FileRun::Form::kBytes, kFileBegin + kBlockBytes, 0},
        FileRun{
            {MemorySpace::kArray, 7, 1}, FileRun::Form::kBytes, kFileBegin + 3 * kBlockBytes, 0},
        holder.run(4, 1, 4)};
    const auto stored = holder.part.source.store_blocks(holder.file.get(), runs);
    ASSERT_TRUE(stored.ok()) << stored.error().text;
    EXPECT_EQ(stored->block_count, 2U);
    ASSERT_EQ(stored->outside.size(), 2U);
    EXPECT_EQ(stored->outside[0].first, beyond);
    EXPECT_EQ(stored->outside[0].count, 2U);
    EXPECT_EQ(stored->outside[1].space, MemorySpace::kArray);
}

TEST(FileBlocks, AFlippedByteOfAnyBlockChangesTheDigest) {
    Holder holder;
    constexpr std::uint64_t kFew = 24;
    const std::vector runs{holder.run(0, kFew, 0)};
    ASSERT_TRUE(holder.part.source.store_blocks(holder.file.get(), runs));
    const auto right = holder.part.content.digest().value();
    for (std::uint64_t i = 0; i < kFew; ++i) {
        const auto at = static_cast<off_t>(kFileBegin + i * kBlockBytes + i * 2729);
        std::byte byte{};
        ASSERT_EQ(pread(holder.file.get(), &byte, 1, at), 1);
        const std::byte flipped = byte ^ std::byte{1};
        ASSERT_EQ(pwrite(holder.file.get(), &flipped, 1, at), 1);
        ASSERT_TRUE(holder.part.target.load_blocks(holder.file.get(), runs));
        EXPECT_NE(holder.part.content.digest_after_copies().value(), right) << "block " << i;
        EXPECT_NE(holder.part.content.digest().value(), right) << "block " << i;
        ASSERT_EQ(pwrite(holder.file.get(), &byte, 1, at), 1);
    }
    ASSERT_TRUE(holder.part.target.load_blocks(holder.file.get(), runs));
    EXPECT_EQ(holder.part.content.digest().value(), right);
}

TEST(FileBlocks, AreToldOfWhenTheyLieInMemory) {
    Holder holder;
    // A piece of the file that takes long, and one that is done before it.
    const std::vector runs{holder.run(0, 255, 0), holder.run(255, 1, 256)};
    constexpr std::uint64_t kBytes = 256 * kBlockBytes;
    ASSERT_TRUE(holder.part.source.store_blocks(holder.file.get(), runs));
    state::MemoryImage memory(*holder.process);
    state::CopySlots slots(*holder.process);
    for (int round = 0; round < 50; ++round) {
        holder.write(std::vector<std::byte>(holder.bytes.size(), std::byte{0x5a}));
        std::uint64_t told = 0;
        int early = 0;
        state::CopyHooks beside;
        beside.landed = [&](std::span<const state::FileChunk> chunks) -> Result<void> {
            for (const state::FileChunk& chunk : chunks) {
                for (const state::FilePiece& piece : chunk.pieces) {
                    const std::uint64_t at = piece.address - holder.first * kBlockBytes;
                    EXPECT_EQ(at, told) << "in order";
                    told += piece.bytes;
                    // Where it lies: a call of the driver's might wait for it. The end comes last.
                    const auto* const now = reinterpret_cast<const std::byte*>(piece.address);
                    const std::uint64_t last = piece.bytes - kBlockBytes;
                    early += std::memcmp(now + last, &holder.bytes[at + last], kBlockBytes) != 0 ||
                             std::memcmp(now, &holder.bytes[at], piece.bytes) != 0;
                }
            }
            return {};
        };
        ASSERT_TRUE(state::FileBlocks(*holder.process, memory, slots)
                        .load(holder.file.get(), runs, beside));
        EXPECT_EQ(told, kBytes);
        ASSERT_EQ(early, 0) << "round " << round;
    }
    slots.give_back();
}

TEST(FileBlocks, AFailureBesideTheCopiesIsTheirs) {
    Holder holder;
    const std::vector runs{holder.run(0, kBlocks, 0)};
    ASSERT_TRUE(holder.part.source.store_blocks(holder.file.get(), runs));
    state::MemoryImage memory(*holder.process);
    state::CopySlots slots(*holder.process);
    const Error error{Code::kInternal, "test.beside", "no"};
    state::CopyHooks in_meanwhile;
    in_meanwhile.meanwhile = [&]() -> Result<void> { return error; };
    state::CopyHooks in_landed;
    in_landed.landed = [&](std::span<const state::FileChunk>) -> Result<void> { return error; };
    for (const state::CopyHooks& beside : {in_meanwhile, in_landed}) {
        const auto loaded =
            state::FileBlocks(*holder.process, memory, slots).load(holder.file.get(), runs, beside);
        ASSERT_FALSE(loaded.ok());
        EXPECT_EQ(loaded.error().reason, "test.beside");
    }
}

TEST(FileBlocks, OfOneStateComeInAsManyLoadsAsItTakes) {
    Holder holder;
    const std::vector all{holder.run(0, 500, 0), holder.run(510, 590, 500)};
    ASSERT_TRUE(holder.part.source.store_blocks(holder.file.get(), all));
    for (int round = 0; round < 2; ++round) {  // Nothing of the first state is in the second.
        holder.write(std::vector<std::byte>(holder.bytes.size(), std::byte{0x5a}));
        ASSERT_TRUE(
            holder.part.target.load_blocks(holder.file.get(), std::span(all).first(1), true));
        ASSERT_TRUE(holder.part.target.load_blocks(holder.file.get(), std::span(all).subspan(1)));
        EXPECT_EQ(holder.part.content.digest_after_copies().value(),
                  holder.part.content.digest().value());
        std::vector<std::byte> expected = holder.bytes;
        std::fill_n(&expected[500 * kBlockBytes], 10 * kBlockBytes, std::byte{0x5a});
        EXPECT_EQ(holder.memory(), expected);
    }
}

TEST(FileBlocks, AreReadAgainWhileOthersAreOnTheirWay) {
    Holder holder;
    const std::vector runs{holder.run(0, 500, 0), holder.run(510, 590, 500)};
    ASSERT_TRUE(holder.part.source.store_blocks(holder.file.get(), runs));
    const auto right = holder.part.content.digest().value();
    ASSERT_TRUE(holder.part.target.load_blocks(holder.file.get(), runs));
    EXPECT_EQ(holder.part.content.digest_after_copies().value(), right);
    const auto change = [&](std::uint64_t block) {
        EXPECT_TRUE(holder.part.target.load_blocks(holder.file.get(), runs).ok());
        std::vector<std::byte> bytes = holder.bytes;
        bytes[block * kBlockBytes] ^= std::byte{1};
        holder.write(bytes);
        const bool is_seen = holder.part.content.digest_after_copies().value() != right;
        EXPECT_NE(holder.part.content.digest().value(), right);
        return is_seen;
    };
    EXPECT_FALSE(change(499)) << "read before";
    EXPECT_TRUE(change(505)) << "not copied";
    EXPECT_TRUE(change(1033)) << "of the sample";
}

TEST(FileBlocks, AFileThatIsCutIsRefused) {
    Holder holder;
    const std::vector runs{holder.run(0, 8, 0)};
    ASSERT_EQ(ftruncate(holder.file.get(), kFileBegin + 8 * kBlockBytes - 1), 0);
    const auto loaded = holder.part.target.load_blocks(holder.file.get(), runs);
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().reason, "snapshot.truncated");
    EXPECT_EQ(holder.memory(), holder.bytes);
}

TEST(FileBlocks, PlacesOutOfOrderAreRefused) {
    Holder holder;
    const std::vector runs{holder.run(0, 2, 1), holder.run(2, 1, 0)};
    const auto stored = holder.part.source.store_blocks(holder.file.get(), runs);
    ASSERT_FALSE(stored.ok());
    EXPECT_EQ(stored.error().reason, "worker.protocol");
}

}  // namespace
}  // namespace gantry::worker
