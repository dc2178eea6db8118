// What a host keeps of its moves: bounds, files, and how the other host's clock stands to its own.
#include "host-daemon/supervisor/moves/move_records.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace gantry::supervisor {
namespace {

class MoveRecordsTest : public testing::Test {
protected:
    ~MoveRecordsTest() override { std::filesystem::remove_all(folder_); }

    static MoveRecords::Whose whose(std::uint64_t migration, const std::string& session = "s1",
                                    MoveSide side = MoveSide::kOutgoing) {
        return {side, {migration, 7}, session, "vm-" + session};
    }
    static std::string id(std::uint64_t migration) {
        char text[33];
        std::snprintf(text, sizeof(text), "%016x%016llx", 7U,
                      static_cast<unsigned long long>(migration));
        return text;
    }

    std::string folder_ = [] {
        char pattern[] = "/tmp/move_records_test.XXXXXX";
        return std::string(::mkdtemp(pattern));
    }();
};

TEST_F(MoveRecordsTest, AreThereForTheNextGantrydByIdAndByVm) {
    {
        MoveRecords records(folder_, "hosta");
        records.note(whose(1), {"asked", "hostb"});
        records.note(whose(2), {"asked", "hostb"});
        records.note(whose(2), {"round_sent", "", 1, 4096});
        control::SessionStatus ended;
        ended.mutable_move()->set_migration_id(id(2));
        ended.mutable_move()->set_direction("outgoing");
        ended.mutable_move()->set_outcome("moved");
        records.note_ended(ended);
    }
    const MoveRecords records(folder_, "hosta");
    for (const char* name : {"s1", "vm-s1"}) {
        const auto found = records.find(name, "");
        ASSERT_TRUE(found.ok()) << found.error().text;
        EXPECT_EQ(found->own().migration_id(), id(2));
        EXPECT_EQ(found->own().last().outcome(), "moved");
        EXPECT_EQ(found->own().events(1).bytes(), 4096U);
        EXPECT_EQ(found->own().host(), "hosta");
    }
    const auto first = records.find("s1", id(1));
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(first->own().last().outcome(), "tried again") << "the second attempt took its place";
    EXPECT_EQ(records.find("s2", "").error().reason, "migration.unrecorded");
    EXPECT_EQ(records.find("s1", id(3)).error().reason, "migration.unrecorded");
}

TEST_F(MoveRecordsTest, AreBounded) {
    MoveRecords records(folder_, "hosta");
    for (int i = 1; i <= MoveRecords::kEventsMax + 5; ++i) {
        records.note(whose(1), {"round_sent", "", static_cast<std::uint64_t>(i)});
    }
    records.note(whose(1), {"alert", std::string(5000, 'x')});
    control::MoveRecord own = *records.own(MoveSide::kOutgoing, id(1));
    EXPECT_EQ(own.events_size(), MoveRecords::kEventsMax);
    EXPECT_EQ(own.events_left_out(), 6U);

    engine::Progress progress;
    for (int i = 0; i < 20; ++i) {
        progress.bytes_remaining = static_cast<std::uint64_t>(i);
        records.sample(whose(1), progress);
        ::usleep(1000);
    }
    own = *records.own(MoveSide::kOutgoing, id(1));
    EXPECT_LT(own.samples_size(), 20) << "they came faster than they are kept";
    EXPECT_EQ(own.samples(own.samples_size() - 1).bytes_remaining(), 19U) << "the newest counts";
}

TEST_F(MoveRecordsTest, ARepeatedMessageIsOneStamp) {
    MoveRecords records(folder_, "hosta");
    for (int i = 0; i < 3; ++i) {
        records.note(whose(1), {"grant_asked"});
    }
    EXPECT_EQ(records.own(MoveSide::kOutgoing, id(1))->events_size(), 1);
}

TEST_F(MoveRecordsTest, OldFilesGo) {
    const auto moves = std::filesystem::path(folder_) / "moves";
    std::filesystem::create_directory(moves);
    const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours{1};
    for (std::size_t i = 0; i < MoveRecords::kRecordsKept + 3; ++i) {
        const auto path = moves / (std::to_string(i) + ".json");
        std::ofstream(path) << "{}";
        std::filesystem::last_write_time(path, old + std::chrono::seconds{i});
    }
    { MoveRecords(folder_, "hosta").note(whose(1), {"asked"}); }
    EXPECT_FALSE(std::filesystem::exists(moves / "3.json"));
    EXPECT_TRUE(std::filesystem::exists(moves / "4.json"));
    EXPECT_TRUE(std::filesystem::exists(moves / (id(1) + ".outgoing.json")));
}

/// Hosts whose clocks differ by 500: the messages took 3 and 5.
TEST_F(MoveRecordsTest, TheClocksAreBoundByMessagesOfBothDirections) {
    MoveRecords a(folder_ + "/a", "a");
    MoveRecords b(folder_ + "/b", "b");
    const auto in = whose(1, "s1", MoveSide::kIncoming);
    a.note_heard(whose(1), {1000, std::nullopt}, 1503);  // from b: sent 1000 of b's, a is ahead
    EXPECT_FALSE(a.own(MoveSide::kOutgoing, id(1))->clock().is_known());
    ASSERT_EQ(a.stamp_message(whose(1)).least_us, 503);
    b.note_heard(in, {2000, 503}, 1505);
    const control::PeerClock clock = b.own(MoveSide::kIncoming, id(1))->clock();
    EXPECT_TRUE(clock.is_known());
    EXPECT_EQ(clock.own_minus_peer_us_min(), -503);
    EXPECT_EQ(clock.own_minus_peer_us_max(), -495);
    b.note_heard(in, {3000, 503}, 2600);  // slower: says nothing new
    EXPECT_EQ(b.own(MoveSide::kIncoming, id(1))->clock().own_minus_peer_us_max(), -495);
}

TEST_F(MoveRecordsTest, AnotherHostsRecordIsCutAndJoinsAKnownMoveOnly) {
    MoveRecords records(folder_, "hosta");
    control::MoveRecord theirs;
    theirs.set_migration_id(id(1));
    theirs.set_host(std::string(399, 'h') + "\xC3\xA4");  // cut in the middle of a letter
    for (int i = 0; i < 2 * MoveRecords::kEventsMax; ++i) {
        theirs.add_events()->set_what(std::string(1000, 'w'));
    }
    EXPECT_FALSE(records.join_peer(MoveSide::kOutgoing, theirs)) << "no such move was here";
    theirs.set_migration_id("../../etc/passwd");
    EXPECT_FALSE(records.join_peer(MoveSide::kOutgoing, theirs));
    EXPECT_FALSE(records.own(MoveSide::kOutgoing, "../../etc/passwd").has_value());
    records.note(whose(1), {"asked"});
    theirs.set_migration_id(id(1));
    theirs.set_gantry_version("1\n\033[2Jx");
    EXPECT_TRUE(records.join_peer(MoveSide::kOutgoing, theirs));
    const auto found = records.find("s1", "");
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->peer().events_size(), MoveRecords::kEventsMax);
    EXPECT_LE(found->peer().events(0).what().size(), 400U);
    EXPECT_EQ(found->peer().host(), std::string(399, 'h'));
    EXPECT_EQ(found->peer().gantry_version(), "1??[2Jx");
}

TEST_F(MoveRecordsTest, OnlyTheHostThatAMoveWentToIsToldOfIt) {
    MoveRecords records(folder_, "hosta");
    control::MoveRecord theirs;
    theirs.set_migration_id(id(1));
    theirs.set_host("hostb");
    EXPECT_EQ(records.exchange(theirs, "hostb/10.0.0.2").error().reason, "migration.unrecorded");
    records.note(whose(1), {"asked"});
    EXPECT_EQ(records.exchange(theirs, "").error().reason, "migration.unrecorded") << "no name yet";
    records.note_peer(whose(1), "hostb/10.0.0.2");
    EXPECT_EQ(records.exchange(theirs, "hostc").error().reason, "migration.unrecorded");
    EXPECT_FALSE(records.find("s1", "")->has_peer());
    const auto own = records.exchange(theirs, "hostb/10.0.0.2");
    ASSERT_TRUE(own.ok()) << own.error().text;
    EXPECT_EQ(own->host(), "hosta");
    EXPECT_EQ(records.find("s1", "")->peer().host(), "hostb");
}

TEST_F(MoveRecordsTest, TheVmsWordGoesToTheNewestOpenRecordOfItsSession) {
    MoveRecords records(folder_, "hosta");
    records.note_session("s1", {"vm_paused"});  // no move: nothing is kept
    records.note(whose(1, "s2"), {"asked"});
    records.note(whose(2, "s1"), {"asked"});
    records.note_session("s1", {"vm_paused", "SuspendedMigrated"});
    EXPECT_TRUE(records.has(MoveSide::kOutgoing, id(2), "vm_paused"));
    EXPECT_FALSE(records.has(MoveSide::kOutgoing, id(1), "vm_paused"));
}

TEST_F(MoveRecordsTest, AFolderThatCannotBeMadeCostsTheRecordAlone) {
    MoveRecords records("/proc/nowhere", "hosta");
    records.note(whose(1), {"asked"});
    EXPECT_TRUE(records.find("s1", "").ok());
}

}  // namespace
}  // namespace gantry::supervisor
