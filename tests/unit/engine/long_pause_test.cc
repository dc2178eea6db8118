// The source's bound of the pause: a guest that writes faster than the link carries it is not
// paused for it, unless an operator wants that. The simulator (tests/sim) covers the rest.
#include <gtest/gtest.h>

#include <algorithm>

#include "migration/engine/source_machine.h"
#include "migration/engine/transfer.h"

namespace gantry::engine {
namespace {

constexpr MigrationId kLongMove{5, 6};
constexpr std::uint64_t kGib = 1ULL << 30;

/// Who may take the session is not the matter here.
Settings for_anybody() {
    Settings settings;
    settings.is_bound_to_hypervisor = false;
    return settings;
}

class LongPause : public testing::Test {
protected:
    SourceActions step(const SourceEvent& event) { return machine_.step(event, now_); }
    SourceActions receive(MessageBody body, MigrationId id = kLongMove) {
        return step(source_event::Received{{id, std::move(body)}, {}});
    }
    template <typename T>
    static const T* sent(const SourceActions& actions) {
        for (const SourceAction& one : actions) {
            const auto* send = std::get_if<action::Send>(&one);
            if (send != nullptr && std::holds_alternative<T>(send->message.body)) {
                return &std::get<T>(send->message.body);
            }
        }
        return nullptr;
    }
    static bool aborts_job(const SourceActions& actions) {
        return std::ranges::any_of(actions, [](const SourceAction& one) {
            return std::holds_alternative<action::AbortJob>(one);
        });
    }
    static const action::Finished* finished(const SourceActions& actions) {
        for (const SourceAction& one : actions) {
            if (const auto* end = std::get_if<action::Finished>(&one)) {
                return end;
            }
        }
        return nullptr;
    }

    SourceActions prepare(MigrationId id = kLongMove) {
        TargetCapabilities target;
        target.gpu_name = "gpu";
        target.cc = {9, 0};
        target.memory_total_bytes = target.memory_free_bytes = 80 * kGib;
        return receive(MsgPrepare{kEngineProtocolVersion, "vm", target}, id);
    }
    void to_precopy(MigrationId id = kLongMove) {
        prepare(id);
        source_event::Described described;
        described.needs.parts.push_back({});
        described.needs.parts.back().resident_bytes = 16 * kGib;
        step(described);
        receive(MsgReady{}, id);
        step(source_event::PrecopyBegun{});
        ASSERT_EQ(machine_.state(), SourceState::kPrecopy);
        round_ = 1;
    }
    RoundStats stats(std::uint64_t changed, std::uint64_t acknowledged) const {
        RoundStats stats;
        stats.bytes_resident = 16 * kGib;
        stats.bytes_changed = changed;
        stats.bytes_acknowledged = acknowledged;
        return stats;
    }
    /// The round under way finds so much changed and takes so long.
    SourceActions round(std::uint64_t changed, Duration took, MigrationId id = kLongMove) {
        now_ += took;
        step(source_event::RoundSent{round_, stats(changed, changed)});
        SourceActions actions = receive(MsgRoundAck{round_++}, id);
        if (sent<MsgConverged>(actions) != nullptr) {
            idle();
        }
        return actions;
    }
    /// To the next idle round.
    void idle() {
        now_ += Duration{500'000};
        step(source_event::Timer{});
    }
    /// The first goes over 16 GiB at 1 GiB/s, the others find what the programs wrote meanwhile:
    /// `set` at most. Until the machine says something.
    SourceActions rounds_until_verdict(std::uint64_t set) {
        SourceActions actions = round(16 * kGib, Duration{16'000'000});
        for (int i = 0; i < 40; ++i) {
            if (sent<MsgConverged>(actions) != nullptr || finished(actions) != nullptr) {
                return actions;
            }
            actions = round(set, Duration{static_cast<std::int64_t>(1e6 * double(set) / kGib)});
        }
        return {};
    }

    TimePoint now_{};
    std::uint64_t round_ = 0;
    SourceMachine machine_{"vm", Epoch{7}, for_anybody()};
};

TEST_F(LongPause, IsRefusedWhileTheGuestRunsWithTheFigures) {
    to_precopy();
    const SourceActions actions = rounds_until_verdict(14 * kGib);
    EXPECT_EQ(sent<MsgConverged>(actions), nullptr);
    const auto* end = finished(actions);
    ASSERT_NE(end, nullptr);
    EXPECT_EQ(end->outcome, Outcome::kRefused);
    EXPECT_EQ(end->error.reason, "migration.not_converging");
    for (const char* figure : {"14.1 s", "allows 10.0 s", "14336 MiB are left", "change 1024 MiB/s",
                               "link takes 1024 MiB/s", "gantry force-complete"}) {
        EXPECT_NE(end->error.text.find(figure), std::string::npos) << end->error.text;
    }
    const auto* abort = sent<MsgAbort>(actions);
    ASSERT_NE(abort, nullptr) << "the target's hook says why";
    EXPECT_EQ(abort->reason, "migration.not_converging");
    EXPECT_TRUE(machine_.serves());
    EXPECT_FALSE(machine_.awaits_attempt()) << "for an operator the move is over";
}

TEST_F(LongPause, OfASessionWithoutAVmIsExpectedAtOnce) {
    to_precopy();
    round(1'600'000'000, Duration{16'000'000});
    // 1.6 GB were written in 16 s. In the second that they took it was another tenth of a GB, and
    // nobody waits for the middle of an idle interval.
    const SourceActions actions = round(1'600'000'000, Duration{1'000'000});
    ASSERT_NE(sent<MsgConverged>(actions), nullptr);
    EXPECT_EQ(sent<MsgConverged>(actions)->downtime_estimate, kDowntimeFixed + Duration{62'500});
}

TEST_F(LongPause, WithinTheBoundItIsTaken) {
    to_precopy();
    const SourceActions actions = rounds_until_verdict(8 * kGib);
    ASSERT_NE(sent<MsgConverged>(actions), nullptr);
    EXPECT_GT(sent<MsgConverged>(actions)->downtime_estimate, Duration{8'000'000});
}

TEST_F(LongPause, WithoutABoundAnyIsTaken) {
    Settings settings = for_anybody();
    settings.downtime_max = Duration{};
    machine_ = SourceMachine{"vm", Epoch{7}, settings};
    to_precopy();
    EXPECT_NE(sent<MsgConverged>(rounds_until_verdict(14 * kGib)), nullptr);
}

TEST_F(LongPause, AnOperatorMayAcceptItOnce) {
    to_precopy();
    round(16 * kGib, Duration{16'000'000});
    round(14 * kGib, Duration{14'000'000});
    const SourceActions forced = step(source_event::OperatorForce{});
    ASSERT_NE(sent<MsgConverged>(forced), nullptr) << "at once, and not after the round";
    for (int i = 0; i < 40; ++i) {
        EXPECT_EQ(finished(round(14 * kGib, Duration{14'000'000})), nullptr);
    }
    step(source_event::JobFailed{});
    const MigrationId next{7, 8};
    to_precopy(next);
    SourceActions actions;
    for (int i = 0; i < 10 && finished(actions) == nullptr; ++i) {
        actions = round(14 * kGib, Duration{14'000'000}, next);
    }
    EXPECT_NE(finished(actions), nullptr) << "it was for that move";
}

TEST_F(LongPause, AcceptedAfterARefusalItHoldsForTheNextMove) {
    to_precopy();
    ASSERT_NE(finished(rounds_until_verdict(14 * kGib)), nullptr);
    step(source_event::OperatorForce{});
    const MigrationId next{7, 8};
    to_precopy(next);
    EXPECT_NE(sent<MsgConverged>(round(16 * kGib, Duration{16'000'000}, next)), nullptr);
}

TEST_F(LongPause, OfAnAdmittedGuestCancelsLibvirtsJobAndNoAttemptBeginsMeanwhile) {
    to_precopy();
    ASSERT_NE(sent<MsgConverged>(rounds_until_verdict(2 * kGib)), nullptr);
    EXPECT_EQ(finished(round(14 * kGib, Duration{14'000'000})), nullptr) << "one slow round";
    EXPECT_EQ(finished(round(2 * kGib, Duration{2'000'000})), nullptr);
    SourceActions actions;
    for (int i = 0; i < 8 && finished(actions) == nullptr; ++i) {
        actions = round(14 * kGib, Duration{14'000'000});
    }
    ASSERT_NE(finished(actions), nullptr);
    EXPECT_EQ(finished(actions)->error.reason, "migration.not_converging");
    EXPECT_TRUE(aborts_job(actions));
    EXPECT_TRUE(machine_.serves());
    const MigrationId next{7, 8};
    EXPECT_TRUE(prepare(next).empty()) << "libvirt is about to end the job";
    now_ += Duration{1'000'000};
    step(source_event::GuestSuspended{});
    EXPECT_FALSE(prepare(next).empty()) << "it was too late: the session goes with its guest";
}

TEST_F(LongPause, AnAttemptBeginsAtOnceWhenTheCancelledJobHasEnded) {
    to_precopy();
    ASSERT_NE(sent<MsgConverged>(rounds_until_verdict(2 * kGib)), nullptr);
    SourceActions actions;
    for (int i = 0; i < 8 && finished(actions) == nullptr; ++i) {
        actions = round(14 * kGib, Duration{14'000'000});
    }
    ASSERT_TRUE(aborts_job(actions));
    const MigrationId next{7, 8};
    EXPECT_TRUE(prepare(next).empty());
    step(source_event::JobFailed{});
    EXPECT_FALSE(prepare(next).empty()) << "there is no job left that would end it";
}

TEST_F(LongPause, WhereLibvirtMayNotBeAskedAnAdmittedGuestKeepsItsSession) {
    Settings settings = for_anybody();
    settings.may_abort_job = false;
    machine_ = SourceMachine{"vm", Epoch{7}, settings};
    to_precopy();
    ASSERT_NE(sent<MsgConverged>(rounds_until_verdict(2 * kGib)), nullptr);
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(finished(round(14 * kGib, Duration{14'000'000})), nullptr);
    }
}

TEST_F(LongPause, WhatIsLeftIsTrueAtAnyTime) {
    to_precopy();
    const auto left = [this] { return machine_.progress().bytes_remaining; };
    EXPECT_EQ(left(), 16 * kGib) << "nothing was sent";
    step(source_event::RoundProgress{1, stats(16 * kGib, 4 * kGib)});
    EXPECT_EQ(left(), 12 * kGib);
    step(source_event::RoundProgress{1, stats(16 * kGib, 15 * kGib)});
    EXPECT_EQ(left(), kGib);
    round(16 * kGib, Duration{16'000'000});
    EXPECT_EQ(left(), 16 * kGib) << "no scan has said what was written meanwhile";
    step(source_event::RoundProgress{2, stats(6 * kGib, 2 * kGib)});
    EXPECT_EQ(left(), 4 * kGib);
    round(6 * kGib, Duration{6'000'000});
    const std::uint64_t expected = left();
    EXPECT_GT(expected, 0U);
    EXPECT_LE(expected, 16 * kGib);
    step(source_event::RoundProgress{3, stats(0, 0)});
    EXPECT_EQ(left(), expected) << "the scan is not over";
}

}  // namespace
}  // namespace gantry::engine
