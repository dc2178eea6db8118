// A snapshot's file made ready before the blocks come, on the soft GPU's driver.
#include "host-daemon/state/files/prepared_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>

#include "proto/snapshot/large_pages.h"
#include "tests/unit/worker/holder.h"

namespace gantry::worker {
namespace {

/// Whether pages may be locked while the file is made ready: not while a stream is captured.
enum class Locks { kNo, kYes };

constexpr std::uint64_t kLarge = snapshot::kLargePageBytes;
/// All of the blocks, from the file's begin.
constexpr std::uint64_t kFileEnd = (kFileBegin + kBlocks * kBlockBytes) / kLarge * kLarge + kLarge;

/// The key of a capture: while there is one, pages stay locked.
constexpr std::uint64_t kCapture = 1;

bool comes(const std::function<bool()>& condition) {
    for (int i = 0; i < 20'000 && !condition(); ++i) {
        std::this_thread::sleep_for(500us);
    }
    return condition();
}

struct Preparer : Holder {
    Preparer() { EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(kFileEnd)), 0); }
    ~Preparer() {
        process->graphs.captures.end(kCapture);
        EXPECT_TRUE(is_gone());
    }
    /// Memory is not page-locked while a stream is captured.
    void set_locks(Locks locks) {
        if (locks == Locks::kNo) {
            process->graphs.captures.begin(kCapture);
        } else {
            process->graphs.captures.end(kCapture);
        }
    }
    Result<void> prepare(snapshot::FileRange range, Locks locks = Locks::kYes) {
        set_locks(locks);
        return part.source.prepare_file(control::UniqueFd(dup(file.get())), range);
    }
    state::PreparedFile::Progress done() {
        EXPECT_TRUE(comes([&] { return part.source.prepared_file()->progress().is_done; }));
        return part.source.prepared_file()->progress();
    }
    bool is_gone() {
        part.source.drop_prepared_file();
        return comes([&] { return part.source.prepared_file() == nullptr; });
    }
    std::string store(const control::UniqueFd& to) {
        const std::vector runs{run(0, 3, 0), run(10, 1, 3), run(12, 1088, 4)};
        const auto stored = part.source.store_blocks(to.get(), runs);
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

class PreparedFile : public ::testing::TestWithParam<Locks> {};
INSTANTIATE_TEST_SUITE_P(Ways, PreparedFile, ::testing::Values(Locks::kYes, Locks::kNo),
                         [](const auto& locks) {
                             return locks.param == Locks::kYes ? "Locked" : "Unlocked";
                         });

TEST_P(PreparedFile, TakesTheBlocks) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}, GetParam()));
    const auto progress = preparer.done();
    EXPECT_TRUE(progress.outcome.ok());
    EXPECT_EQ(progress.page_bytes, kFileEnd);
    const bool is_locked = GetParam() == Locks::kYes;
    EXPECT_EQ(progress.locked_bytes, is_locked ? kFileEnd : 0);
    const std::string how = preparer.store(preparer.file);
    EXPECT_NE(how.find(is_locked ? "of 5 chunks 5 were page-locked before"
                                 : "of 5 chunks 0 were page-locked before"),
              std::string::npos)
        << how;
    EXPECT_NE(preparer.part.source.prepared_file(), nullptr) << "there may be more to store";
    EXPECT_TRUE(preparer.is_gone());
}

TEST(StoredBlocks, AreReadOnceMoreAfterTheyWereCopied) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}));
    preparer.done();
    state::Part& part = preparer.part;
    const auto store = [&](std::uint64_t at, std::uint64_t count) {
        const std::vector runs{preparer.run(at, count, at)};
        return part.source.store_blocks(preparer.file.get(), runs).ok();
    };
    const auto change = [&](std::uint64_t block) {
        const std::byte other{0x5a};
        return preparer.device->api().cuMemcpyHtoD_v2((preparer.first + block) * kBlockBytes,
                                                      &other, 1) == CUDA_SUCCESS;
    };
    ASSERT_TRUE(
        preparer.execution->serve(map_region(ChannelMemory::create_region(kRegionBytes)->get()), 1)
            .ok());
    EXPECT_FALSE(part.content.digest_after_copies().ok()) << "served";
    ASSERT_TRUE(preparer.execution->freeze(1s).ok());
    const auto all = part.content.digest().value();
    ASSERT_TRUE(store(0, 500) && store(500, 300));
    EXPECT_EQ(part.content.digest_after_copies().value(), all);
    ASSERT_TRUE(change(3));
    EXPECT_EQ(part.content.digest_after_copies().value(), all)
        << "read while the others were copied";
    ASSERT_TRUE(change(600));
    EXPECT_NE(part.content.digest_after_copies().value(), all) << "not read since it was copied";
    preparer.write(preparer.bytes);
    ASSERT_TRUE(store(800, 300) && change(600) && change(900));
    EXPECT_NE(part.content.digest_after_copies().value(), all);
    part.content.end_files();
    preparer.write(preparer.bytes);
    EXPECT_EQ(part.content.digest_after_copies().value(), all);
    ASSERT_TRUE(change(3));
    EXPECT_NE(part.content.digest_after_copies().value(), all) << "another snapshot's copies";
    preparer.execution->thaw();
}

TEST_P(PreparedFile, OtherBlocksAreLookedAtMeanwhile) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}, GetParam()));
    preparer.done();
    preparer.set_locks(Locks::kYes);
    state::Part& part = preparer.part;
    using Found = std::map<std::uint64_t, state::Fingerprint>;
    const auto to = [](Found* found) {
        return [found](const state::BlockRange& range,
                       std::span<const state::Fingerprint> fingerprints) {
            for (std::uint64_t i = 0; i < range.count; ++i) {
                EXPECT_TRUE(found->emplace(range.first + i, fingerprints[i]).second);
            }
        };
    };
    Found found;
    ASSERT_TRUE(
        preparer.execution->serve(map_region(ChannelMemory::create_region(kRegionBytes)->get()), 1)
            .ok());
    EXPECT_EQ(part.source.look_at_first(100, to(&found)).error().reason, "worker.state");
    ASSERT_TRUE(preparer.execution->freeze(1s).ok());
    Found all;
    const auto digest = part.content.digest(to(&all)).value();

    auto looked = part.source.look_at_first(100, to(&found)).value();
    EXPECT_EQ(found, Found(all.begin(), std::next(all.begin(), 100)));
    EXPECT_EQ(looked.left_count, all.size() - 100);
    engine::BlockSetDigest sum = looked.digest;
    const auto store = [&](std::uint64_t at, std::uint64_t look_count) {
        const std::vector runs{preparer.run(at, 50, at)};
        int calls = 0;
        const auto stored =
            part.source.store_blocks(preparer.file.get(), runs, [&]() -> Result<void> {
                ++calls;
                GANTRY_ASSIGN(looked, part.source.look_on(look_count, to(&found)));
                sum.merge(looked.digest);
                return {};
            });
        EXPECT_EQ(calls, 1);
        return stored.ok();
    };
    ASSERT_TRUE(store(0, 500));
    EXPECT_EQ(found, Found(all.begin(), std::next(all.begin(), 600)));
    ASSERT_TRUE(store(50, 100'000)) << "more than there are";
    EXPECT_EQ(looked.left_count, 0U);
    EXPECT_EQ(found, all);
    EXPECT_EQ(sum, digest);

    const auto failed =
        part.source.store_blocks(preparer.file.get(), std::vector{preparer.run(0, 1, 0)}, [] {
            return Result<void>(Error{Code::kInternal, "state.test", "no look"});
        });
    EXPECT_EQ(failed.error().reason, "state.test");
    preparer.execution->thaw();
}

TEST_P(PreparedFile, APartOfItIsEnough) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({state::PreparedFile::kPieceBytes, kFileEnd}, GetParam()));
    EXPECT_EQ(preparer.done().page_bytes, kFileEnd - state::PreparedFile::kPieceBytes);
    preparer.store(preparer.file);
}

TEST_P(PreparedFile, AnEstimateTooHighIsCutOff) {
    Preparer preparer;
    ASSERT_EQ(ftruncate(preparer.file.get(), static_cast<off_t>(2 * kFileEnd)), 0);
    ASSERT_TRUE(preparer.prepare({0, 2 * kFileEnd}, GetParam()));
    preparer.done();
    preparer.store(preparer.file);
    ASSERT_EQ(ftruncate(preparer.file.get(), static_cast<off_t>(kFileEnd)), 0);
    EXPECT_TRUE(preparer.is_gone());
}

TEST_P(PreparedFile, AStoreWaitsForNothingThatIsStillToBeMade) {
    constexpr std::uint64_t kMuch = std::uint64_t{8} << 30;
    Preparer preparer;
    ASSERT_EQ(ftruncate(preparer.file.get(), kMuch), 0);
    preparer.set_locks(GetParam());
    auto begun = state::PreparedFile::begin(
        *preparer.process, control::UniqueFd(dup(preparer.file.get())), {0, kMuch});
    ASSERT_TRUE(begun.ok()) << begun.error().text;
    EXPECT_TRUE((*begun)->settle());
    EXPECT_TRUE((*begun)->progress().is_done);
    EXPECT_LT((*begun)->progress().page_bytes, kMuch);
    (*begun)->give_up();
    EXPECT_FALSE((*begun)->settle()) << "nobody may use what is being let go";
}

TEST(OnePreparedFile, ThatIsBeingLetGoTakesNothing) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}));
    preparer.done();
    preparer.process->graphs.captures.begin(kCapture);  // So that it stays for a while.
    preparer.part.source.drop_prepared_file();
    const std::string how = preparer.store(preparer.file);
    EXPECT_EQ(how.find("before"), std::string::npos) << how;
    EXPECT_NE(preparer.part.source.prepared_file(), nullptr);
}

TEST_P(PreparedFile, AnotherFileIsWrittenWithoutIt) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}, GetParam()));
    preparer.done();
    const control::UniqueFd other(memfd_create("other", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(other.get(), static_cast<off_t>(kFileEnd)), 0);
    EXPECT_EQ(preparer.store(other).find("before"), std::string::npos);
}

TEST(OnePreparedFile, AtATimeUntilItIsLetGo) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}));
    const auto second = preparer.prepare({0, kFileEnd});
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().reason, "worker.file_busy");
    ASSERT_TRUE(preparer.is_gone());
    EXPECT_TRUE(preparer.prepare({0, kFileEnd}));
}

TEST(OnePreparedFile, LocksAndUnlocksNothingWhileAStreamIsCaptured) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}, Locks::kNo));
    const auto progress = preparer.done();
    EXPECT_EQ(progress.page_bytes, kFileEnd);
    EXPECT_EQ(progress.locked_bytes, 0U);
    ASSERT_TRUE(preparer.is_gone());

    ASSERT_TRUE(preparer.prepare({0, kFileEnd}));
    EXPECT_EQ(preparer.done().locked_bytes, kFileEnd);
    preparer.process->graphs.captures.begin(kCapture);
    preparer.part.source.drop_prepared_file();
    std::this_thread::sleep_for(50ms);
    EXPECT_NE(preparer.part.source.prepared_file(), nullptr) << "let go while a stream is captured";
    preparer.process->graphs.captures.end(kCapture);
    EXPECT_TRUE(preparer.is_gone());
}

TEST(OnePreparedFile, MayBeCutByItsOwner) {
    Preparer preparer;
    ASSERT_TRUE(preparer.prepare({0, kFileEnd}));
    preparer.done();
    ASSERT_EQ(ftruncate(preparer.file.get(), 0), 0);
    EXPECT_TRUE(preparer.is_gone());
}

TEST(OnePreparedFile, WhatCannotBePreparedIsRefused) {
    Preparer preparer;
    for (const snapshot::FileRange range : {snapshot::FileRange{0, 0},
                                            {kLarge, 0},
                                            {1, kLarge},
                                            {0, kLarge - 1},
                                            {0, kFileEnd + kLarge},
                                            {~std::uint64_t{0} / kLarge * kLarge, 0}}) {
        const auto refused = preparer.prepare(range);
        ASSERT_FALSE(refused.ok()) << range.begin << " to " << range.end;
        EXPECT_EQ(refused.error().reason, "worker.protocol");
    }
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const control::UniqueFd other(ends[1]);
    const auto refused = preparer.part.source.prepare_file(control::UniqueFd(ends[0]), {0, kLarge});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().reason, "worker.protocol");
}

}  // namespace
}  // namespace gantry::worker
