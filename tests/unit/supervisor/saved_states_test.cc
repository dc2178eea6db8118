// The books of saved VMs: each state belongs to one file of libvirt's, and is given out once.
#include "host-daemon/supervisor/snapshots/saved_states.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace gantry::supervisor {
namespace {

constexpr const char* kVm = "5f3b7a60-0000-4000-8000-000000000001";
constexpr const char* kOtherVm = "5f3b7a60-0000-4000-8000-000000000002";
constexpr wire::SaveMark kFirst{1, 2};
constexpr wire::SaveMark kSecond{3, 4};

class SavedStatesTest : public testing::Test {
protected:
    SavedStatesTest() {
        char pattern[] = "/tmp/saved_states_test.XXXXXX";
        folder_ = mkdtemp(pattern);
    }
    ~SavedStatesTest() override { std::filesystem::remove_all(folder_); }

    void save(const wire::SaveMark& mark) {
        const auto paths = states().begin(kVm, mark);
        ASSERT_TRUE(paths.ok()) << paths.error().to_string();
        std::ofstream(paths->session) << "session";
        std::ofstream(paths->region) << "region";
        SavedState state;
        state.mark = mark;
        state.seed = {mark.low + 10, mark.high + 10};
        state.epoch = Epoch{7};
        state.channel_count = 2;
        state.region.guest = {5, {6, 7}};
        state.region.host = {8, {9, 10}};
        const auto kept = states().keep(kVm, state);
        ASSERT_TRUE(kept.ok()) << kept.error().to_string();
    }
    std::string reason(const wire::SaveMark& mark, const std::string& vm = kVm) {
        const auto found = states().find(vm, mark);
        return found ? "found" : found.error().reason;
    }
    bool has_files(const wire::SaveMark& mark) {
        const auto paths = states().paths(kVm, mark);
        return std::filesystem::exists(paths.session) || std::filesystem::exists(paths.region);
    }
    /// Anew each time, as after a restart.
    SavedStates& states() {
        states_ = std::make_unique<SavedStates>(folder_ + "/saved");
        return *states_;
    }

    std::string folder_;
    std::unique_ptr<SavedStates> states_;
};

TEST_F(SavedStatesTest, IsFoundByTheMarkOfItsMemoryAlone) {
    EXPECT_EQ(reason(kFirst), "save.unknown");
    save(kFirst);
    const auto found = states().find(kVm, kFirst);
    ASSERT_TRUE(found.ok()) << found.error().to_string();
    EXPECT_EQ(found->seed, (snapshot::Seed{11, 12}));
    EXPECT_EQ(found->epoch, Epoch{7});
    EXPECT_EQ(found->channel_count, 2u);
    EXPECT_EQ(found->region.guest, (snapshot::BlockSetDigest{5, {6, 7}}));
    EXPECT_EQ(found->region.host, (snapshot::BlockSetDigest{8, {9, 10}}));
    EXPECT_EQ(reason(kSecond), "save.unknown");
    EXPECT_EQ(reason(kFirst, kOtherVm), "save.unknown");
}

TEST_F(SavedStatesTest, IsGivenOutOnce) {
    save(kFirst);
    ASSERT_TRUE(states().retire(kVm, kFirst, SavedFate::kUsed).ok());
    EXPECT_EQ(reason(kFirst), "save.used");
    EXPECT_FALSE(has_files(kFirst));
}

TEST_F(SavedStatesTest, GoesWhenItsVmIsSavedAgain) {
    save(kFirst);
    save(kSecond);
    EXPECT_EQ(reason(kFirst), "save.older");
    EXPECT_FALSE(has_files(kFirst));
    EXPECT_EQ(reason(kSecond), "found");
    EXPECT_TRUE(has_files(kSecond));
}

TEST_F(SavedStatesTest, SaysThatItCouldNotBeWritten) {
    save(kFirst);
    ASSERT_TRUE(states().begin(kVm, kSecond).ok());
    ASSERT_TRUE(states().retire(kVm, kSecond, SavedFate::kUnwritten).ok());
    EXPECT_EQ(reason(kSecond), "save.unwritten");
    EXPECT_EQ(reason(kFirst), "found") << "what another file needs stays";
}

TEST_F(SavedStatesTest, FilesWithoutARecordGo) {
    const auto cut_short = states().begin(kVm, kFirst);
    ASSERT_TRUE(cut_short.ok());
    std::ofstream(cut_short->session) << "half";
    EXPECT_EQ(reason(kFirst), "save.unknown");
    save(kSecond);
    EXPECT_FALSE(has_files(kFirst));
    EXPECT_TRUE(has_files(kSecond));
}

TEST_F(SavedStatesTest, RemembersTheNewestFates) {
    for (std::uint64_t i = 1; i <= SavedStates::kFatesMax + 1; ++i) {
        ASSERT_TRUE(states().retire(kVm, {i, 0}, SavedFate::kUsed).ok());
    }
    EXPECT_EQ(reason({1, 0}), "save.unknown");
    EXPECT_EQ(reason({2, 0}), "save.used");
    EXPECT_EQ(reason({SavedStates::kFatesMax + 1, 0}), "save.used");
}

TEST_F(SavedStatesTest, ADamagedRecordIsNoRecord) {
    save(kFirst);
    std::ofstream(folder_ + "/saved/" + kVm + "/record.json") << "{";
    EXPECT_EQ(reason(kFirst), "save.record");
}

/// A region of one claimed channel, as a guest lays it out.
class RegionImageTest : public testing::Test {
protected:
    static constexpr std::uint64_t kBytes = 16 << 20;
    static constexpr snapshot::Seed kSeed{21, 22};

    RegionImageTest() {
        char pattern[] = "/tmp/region_image_test.XXXXXX";
        folder_ = mkdtemp(pattern);
        EXPECT_TRUE(wire::compute_layout(kBytes, 1, 0, &layout_));
        auto region = Region::make_file(folder_ + "/region", kBytes, 1);
        EXPECT_TRUE(region.ok()) << region.error().to_string();
        region_.emplace(std::move(*region));
        EXPECT_TRUE(region_->reserve(1, {0, wire::ClaimState::kOpen, 42, 1}).ok());
        write("ring", layout_.ring);
        write("answer", layout_.replies);
        write("pinned", layout_.pinned);
        file_.reset(open((folder_ + "/image").c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
    }
    ~RegionImageTest() override { std::filesystem::remove_all(folder_); }

    void write(const std::string& text, std::uint64_t at) {
        EXPECT_EQ(pwrite(region_->fd(), text.data(), text.size(), static_cast<off_t>(at)),
                  static_cast<ssize_t>(text.size()));
    }
    std::string read(std::uint64_t at, std::size_t bytes) {
        std::string out(bytes, ' ');
        EXPECT_EQ(pread(region_->fd(), out.data(), bytes, static_cast<off_t>(at)),
                  static_cast<ssize_t>(bytes));
        return out;
    }

    std::string folder_;
    wire::ChannelLayout layout_{};
    std::optional<Region> region_;
    control::UniqueFd file_;
};

TEST_F(RegionImageTest, PutsBackWhatTheHostWroteLast) {
    const auto sums = save_region(*region_, 1, kSeed, file_.get());
    ASSERT_TRUE(sums.ok()) << sums.error().to_string();
    write("staler", layout_.replies);
    write("zzzzzz", layout_.pinned);
    write("more", layout_.bulk);
    const auto same = sum_of_guest(*region_, 1, kSeed);
    ASSERT_TRUE(same.ok());
    EXPECT_EQ(*same, sums->guest) << "the host's pages are none of the guest's sum";
    const auto restored = restore_region(*region_, 1, kSeed, file_.get(), sums->host);
    ASSERT_TRUE(restored.ok()) << restored.error().to_string();
    EXPECT_EQ(read(layout_.replies, 6), "answer");
    EXPECT_EQ(read(layout_.pinned, 6), "pinned");
    EXPECT_EQ(read(layout_.bulk, 4), std::string(4, '\0'));
    EXPECT_EQ(read(layout_.ring, 4), "ring");
}

TEST_F(RegionImageTest, ASumOfTheGuestTellsAnotherMomentOfIt) {
    const auto before = sum_of_guest(*region_, 1, kSeed);
    write("rinG", layout_.ring);
    const auto after = sum_of_guest(*region_, 1, kSeed);
    ASSERT_TRUE(before.ok() && after.ok());
    EXPECT_NE(*before, *after);
}

TEST_F(RegionImageTest, ADamagedImageChangesNothing) {
    const auto sums = save_region(*region_, 1, kSeed, file_.get());
    ASSERT_TRUE(sums.ok());
    EXPECT_EQ(pwrite(file_.get(), "X", 1, static_cast<off_t>(layout_.pinned)), 1);
    write("now", layout_.replies);
    const auto restored = restore_region(*region_, 1, kSeed, file_.get(), sums->host);
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.error().reason, "save.image");
    EXPECT_EQ(read(layout_.replies, 3), "now");
}

}  // namespace
}  // namespace gantry::supervisor
