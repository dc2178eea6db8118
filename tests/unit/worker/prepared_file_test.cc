// A snapshot's file made ready before the blocks come, on the soft GPU's driver.
#include "host-daemon/state/prepared_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "proto/snapshot/large_pages.h"
#include "tests/unit/worker/holder.h"

namespace gantry::worker {
namespace {

constexpr std::uint64_t kLarge = snapshot::kLargePageBytes;
/// All of the blocks, from the file's begin.
constexpr std::uint64_t kFileEnd = (kFileBegin + kBlocks * kBlockBytes) / kLarge * kLarge + kLarge;

bool comes(const std::function<bool()>& condition) {
    for (int i = 0; i < 20'000 && !condition(); ++i) {
        std::this_thread::sleep_for(500us);
    }
    return condition();
}

struct Preparer : Holder {
    Preparer() { EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(kFileEnd)), 0); }
    ~Preparer() {
        process->captures = 0;
        EXPECT_TRUE(is_gone());
    }
    Result<void> prepare(snapshot::FileRange range, FileWay way) {
        return part.prepare_file(control::UniqueFd(dup(file.get())), range, way);
    }
    state::PreparedFile::Progress done() {
        EXPECT_TRUE(comes([&] { return part.prepared_file()->progress().is_done; }));
        return part.prepared_file()->progress();
    }
    bool is_gone() {
        part.drop_prepared_file();
        return comes([&] { return part.prepared_file() == nullptr; });
    }
    std::string store(const control::UniqueFd& to, FileWay way) {
        const std::vector runs{run(0, 3, 0), run(10, 1, 3), run(12, 1088, 4)};
        const auto stored = part.store_blocks(to.get(), runs, way);
        EXPECT_TRUE(stored.ok()) << stored.error().text;
        std::vector<std::byte> content(1092 * kBlockBytes);
        EXPECT_EQ(pread(to.get(), content.data(), content.size(), kFileBegin),
                  static_cast<ssize_t>(content.size()));
        const auto is_at = [&](std::uint64_t place, std::uint64_t block, std::uint64_t count) {
            return std::memcmp(&content[place * kBlockBytes], &bytes[block * kBlockBytes],
                               count * kBlockBytes) == 0;
        };
        EXPECT_TRUE(is_at(0, 0, 3) && is_at(3, 10, 1) && is_at(4, 12, 1088));
        return stored.ok() ? stored->how : "";
    }
};

class PreparedFile : public ::testing::TestWithParam<FileWay> {};
INSTANTIATE_TEST_SUITE_P(Ways, PreparedFile,
                         ::testing::Values(FileWay::kRegistered, FileWay::kStaged),
                         [](const auto& way) {
                             return way.param == FileWay::kStaged ? "Staged" : "Registered";
                         });

TEST_P(PreparedFile, TakesTheBlocks) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}, GetParam()));
    const auto progress = preparer.done();
    EXPECT_TRUE(progress.outcome.ok());
    EXPECT_EQ(progress.page_bytes, kFileEnd);
    const bool is_locked = GetParam() == FileWay::kRegistered;
    EXPECT_EQ(progress.locked_bytes, is_locked ? kFileEnd : 0);
    const std::string how = preparer.store(preparer.file, GetParam());
    EXPECT_NE(how.find(is_locked ? "of 3 chunks 3 were page-locked before"
                                 : "of 3 chunks 0 were page-locked before"),
              std::string::npos)
        << how;
    EXPECT_NE(preparer.part.prepared_file(), nullptr) << "there may be more to store";
    EXPECT_TRUE(preparer.is_gone());
}

TEST_P(PreparedFile, APartOfItIsEnough) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({state::PreparedFile::kPieceBytes, kFileEnd}, GetParam()));
    EXPECT_EQ(preparer.done().page_bytes, kFileEnd - state::PreparedFile::kPieceBytes);
    preparer.store(preparer.file, GetParam());
}

TEST_P(PreparedFile, AnEstimateTooHighIsCutOff) {
    Preparer preparer;
    ASSERT_EQ(ftruncate(preparer.file.get(), static_cast<off_t>(2 * kFileEnd)), 0);
    ASSERT_TRUE(preparer.prepare({0, 2 * kFileEnd}, GetParam()));
    preparer.done();
    preparer.store(preparer.file, GetParam());
    ASSERT_EQ(ftruncate(preparer.file.get(), static_cast<off_t>(kFileEnd)), 0);
    EXPECT_TRUE(preparer.is_gone());
}

TEST_P(PreparedFile, AStoreWaitsForNothingThatIsStillToBeMade) {
    constexpr std::uint64_t kMuch = std::uint64_t{8} << 30;
    Preparer preparer;
    ASSERT_EQ(ftruncate(preparer.file.get(), kMuch), 0);
    const auto locks = GetParam() == FileWay::kStaged ? state::PreparedFile::Locks::kNo
                                                      : state::PreparedFile::Locks::kYes;
    auto begun = state::PreparedFile::begin(
        *preparer.process, control::UniqueFd(dup(preparer.file.get())), {0, kMuch}, locks);
    ASSERT_TRUE(begun.ok()) << begun.error().text;
    EXPECT_TRUE((*begun)->settle());
    EXPECT_TRUE((*begun)->progress().is_done);
    EXPECT_LT((*begun)->progress().page_bytes, kMuch);
    (*begun)->give_up();
    EXPECT_FALSE((*begun)->settle()) << "nobody may use what is being let go";
}

TEST(OnePreparedFile, ThatIsBeingLetGoTakesNothing) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}, FileWay::kRegistered));
    preparer.done();
    preparer.process->captures = 1;  // So that it stays for a while.
    preparer.part.drop_prepared_file();
    const std::string how = preparer.store(preparer.file, FileWay::kStaged);
    EXPECT_EQ(how.find("before"), std::string::npos) << how;
    EXPECT_NE(preparer.part.prepared_file(), nullptr);
}

TEST_P(PreparedFile, AnotherFileIsWrittenWithoutIt) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}, GetParam()));
    preparer.done();
    const control::UniqueFd other(memfd_create("other", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(other.get(), static_cast<off_t>(kFileEnd)), 0);
    EXPECT_EQ(preparer.store(other, GetParam()).find("before"), std::string::npos);
}

TEST(OnePreparedFile, AtATimeUntilItIsLetGo) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}, FileWay::kRegistered));
    const auto second = preparer.prepare({0, kFileEnd}, FileWay::kRegistered);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().reason, "worker.file_busy");
    ASSERT_TRUE(preparer.is_gone());
    EXPECT_TRUE(preparer.prepare({0, kFileEnd}, FileWay::kRegistered));
}

TEST(OnePreparedFile, LocksAndUnlocksNothingWhileAStreamIsCaptured) {
    Preparer preparer;
    preparer.process->captures = 1;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}, FileWay::kRegistered));
    const auto progress = preparer.done();
    EXPECT_EQ(progress.page_bytes, kFileEnd);
    EXPECT_EQ(progress.locked_bytes, 0U);
    ASSERT_TRUE(preparer.is_gone());

    preparer.process->captures = 0;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}, FileWay::kRegistered));
    EXPECT_EQ(preparer.done().locked_bytes, kFileEnd);
    preparer.process->captures = 1;
    preparer.part.drop_prepared_file();
    std::this_thread::sleep_for(50ms);
    EXPECT_NE(preparer.part.prepared_file(), nullptr) << "let go while a stream is captured";
    preparer.process->captures = 0;
    EXPECT_TRUE(preparer.is_gone());
}

TEST(OnePreparedFile, MayBeCutByItsOwner) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}, FileWay::kRegistered));
    preparer.done();
    ASSERT_EQ(ftruncate(preparer.file.get(), 0), 0);
    EXPECT_TRUE(preparer.is_gone());
}

TEST(OnePreparedFile, WhatCannotBePreparedIsRefused) {
    Preparer preparer;
    for (const snapshot::FileRange range :
         {snapshot::FileRange{0, 0}, {kLarge, 0}, {1, kLarge}, {0, kLarge - 1},
          {0, kFileEnd + kLarge}, {~std::uint64_t{0} / kLarge * kLarge, 0}}) {
        const auto refused = preparer.prepare(range, FileWay::kRegistered);
        ASSERT_FALSE(refused.ok()) << range.begin << " to " << range.end;
        EXPECT_EQ(refused.error().reason, "worker.protocol");
    }
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const control::UniqueFd other(ends[1]);
    const auto refused = preparer.part.prepare_file(control::UniqueFd(ends[0]), {0, kLarge},
                                                    FileWay::kRegistered);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().reason, "worker.protocol");
}

}  // namespace
}  // namespace gantry::worker
