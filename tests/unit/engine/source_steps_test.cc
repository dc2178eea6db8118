// The steps of a move at the source, and what it does when one of them fails, comes late or comes
// twice. The arbiter's promises are in source_machine_test.cc.
#include <gtest/gtest.h>

#include "tests/unit/engine/source_fixture.h"

namespace gantry::engine {
namespace {

/// What a Source does when its next deadline has come.
class SourceSteps : public Source {
protected:
    SourceActions after(Duration time) {
        now_ += time;
        return step(source_event::Timer{});
    }
    SourceActions report(DomainState domain, JobState job) {
        return step(source_event::Domain{{domain, job}});
    }
    /// Frozen, with the last round and the state still on their way.
    FreezeToken freeze() {
        const SourceActions actions = step(source_event::GuestSuspended{});
        const auto* freeze = find<action::Freeze>(actions);
        EXPECT_NE(freeze, nullptr);
        const FreezeToken token = freeze == nullptr ? FreezeToken{} : freeze->token;
        step(source_event::Frozen{token});
        EXPECT_EQ(machine_.state(), SourceState::kFinalRound);
        return token;
    }
    static std::uint64_t round_of(const SourceActions& actions) {
        const auto* round = find<action::SendRound>(actions);
        return round == nullptr ? 0 : round->round;
    }
    static const MsgAbort* abort_in(const SourceActions& actions) {
        const auto* sent = find<action::Send>(actions);
        return sent == nullptr ? nullptr : std::get_if<MsgAbort>(&sent->message.body);
    }
};

TEST_F(SourceSteps, WorkersThatDoNotDescribeTheirStateEndTheMove) {
    prepare();
    const SourceActions failed =
        step(source_event::DescribeFailed{{Code::kUnavailable, "worker.silent", "no answer"}});
    ASSERT_NE(find<action::Finished>(failed), nullptr);
    EXPECT_EQ(find<action::Finished>(failed)->error.reason, "worker.silent");
    EXPECT_TRUE(machine_.serves());
}

TEST_F(SourceSteps, ADescriptionThatFailsLateEndsNothing) {
    to_precopy();
    EXPECT_TRUE(step(source_event::DescribeFailed{}).empty());
    EXPECT_EQ(machine_.state(), SourceState::kPrecopy);
}

TEST_F(SourceSteps, ARoundThatIsSentIsReported) {
    to_precopy();
    source_event::RoundSent sent{1, {}};
    sent.stats.bytes_changed = 100 * kBlockBytes;
    sent.stats.bytes_acknowledged = 30 * kBlockBytes;
    sent.stats.bytes_sent = 40 * kBlockBytes;
    const SourceActions actions = step(sent);
    const auto* told = find<action::ReportProgress>(actions);
    ASSERT_NE(told, nullptr);
    EXPECT_EQ(told->progress.bytes_remaining, 70 * kBlockBytes);
    EXPECT_EQ(told->progress.bytes_sent, 40 * kBlockBytes);
}

TEST_F(SourceSteps, ARoundIsNotAcknowledgedBeforeAllOfItIsSent) {
    to_precopy();
    const SourceActions failed =
        step(source_event::RoundFailed{1, {Code::kUnavailable, "stream.lost", "gone"}});
    ASSERT_NE(find<action::ResendRound>(failed), nullptr);
    EXPECT_EQ(find<action::ResendRound>(failed)->round, 2U);
    const SourceActions early = receive(MsgRoundAck{2});
    EXPECT_FALSE(sends<MsgConverged>(early));
    EXPECT_EQ(round_of(early), 0U);
    step(source_event::RoundSent{2, {}});
    EXPECT_TRUE(sends<MsgConverged>(receive(MsgRoundAck{2}))) << "nothing is left";
}

TEST_F(SourceSteps, TheStateFollowsOnlyARoundThatBeganFrozen) {
    to_precopy();
    freeze();  // The first round is still on its way: the programs wrote meanwhile.
    EXPECT_EQ(find<action::SendComplete>(step(source_event::RoundSent{1, {}})), nullptr);
    EXPECT_EQ(round_of(receive(MsgRoundAck{1})), 2U);
    const SourceActions sent = step(source_event::RoundSent{2, {}});
    ASSERT_NE(find<action::SendComplete>(sent), nullptr);
    EXPECT_EQ(find<action::SendComplete>(sent)->round, 2U);
}

TEST_F(SourceSteps, AFinalRoundThatARollbackOvertookIsNoneForTheNextFreeze) {
    const FreezeToken first = to_final_round();
    step(source_event::GuestResumed{});
    step(source_event::Thawed{});
    ASSERT_EQ(machine_.state(), SourceState::kPrecopy);
    const FreezeToken second = freeze();  // The round of the first is still on its way.
    EXPECT_NE(first, second);
    EXPECT_EQ(find<action::SendComplete>(step(source_event::RoundSent{2, {}})), nullptr)
        << "the programs ran on in the middle of it";
    EXPECT_EQ(round_of(receive(MsgRoundAck{2})), 3U);
    const SourceActions sent = step(source_event::RoundSent{3, {}});
    ASSERT_NE(find<action::SendComplete>(sent), nullptr);
    EXPECT_EQ(find<action::SendComplete>(sent)->token, second);
}

TEST_F(SourceSteps, AFreezeWithoutAnAnswerIsAskedForAgain) {
    to_precopy();
    finish_round(1);
    const SourceActions first = step(source_event::GuestSuspended{});
    ASSERT_NE(find<action::Freeze>(first), nullptr);
    const SourceActions again = after(2 * Settings{}.freeze_deadline);
    ASSERT_NE(find<action::Freeze>(again), nullptr);
    EXPECT_EQ(find<action::Freeze>(again)->token, find<action::Freeze>(first)->token);
}

TEST_F(SourceSteps, AVerifiedStateIsReportedAsTheCommit) {
    const FreezeToken token = to_frozen();
    ASSERT_NE(machine_.progress().phase, Phase::kCommit);
    const SourceActions verified = receive(MsgVerified{token});
    const auto* told = find<action::ReportProgress>(verified);
    ASSERT_NE(told, nullptr);
    EXPECT_EQ(told->progress.phase, Phase::kCommit);
    EXPECT_EQ(told->progress.bytes_remaining, 0U);
}

TEST_F(SourceSteps, ATargetThatAsksAfterAnEndedMoveIsToldWhyItEnded) {
    to_precopy();
    step(source_event::OperatorAbort{});
    const SourceActions answer = receive(MsgAlive{});
    ASSERT_NE(abort_in(answer), nullptr);
    EXPECT_EQ(abort_in(answer)->reason, "migration.aborted_by_operator");
    const SourceActions unknown = receive(MsgAlive{}, {8, 8});
    ASSERT_NE(abort_in(unknown), nullptr);
    EXPECT_NE(abort_in(unknown)->reason, "migration.aborted_by_operator");
}

TEST_F(SourceSteps, AnOperatorForcesOnlyAPrecopyAndOnce) {
    prepare();
    step(source_event::Described{});
    ASSERT_EQ(machine_.state(), SourceState::kOffered);
    EXPECT_FALSE(sends<MsgConverged>(step(source_event::OperatorForce{})));
    receive(MsgReady{});
    EXPECT_FALSE(sends<MsgConverged>(step(source_event::OperatorForce{}))) << "not begun yet";
    step(source_event::PrecopyBegun{});
    EXPECT_TRUE(sends<MsgConverged>(step(source_event::OperatorForce{})));
    EXPECT_FALSE(sends<MsgConverged>(step(source_event::OperatorForce{})));
}

TEST_F(SourceSteps, AMoveEndsWhenLibvirtHasHadNoJobForAWhile) {
    for (const bool is_known : {true, false}) {
        machine_ = SourceMachine{"vm", Epoch{7}, unbound()};
        to_precopy();
        const JobState job = is_known ? JobState::kNone : JobState::kUnknown;
        EXPECT_EQ(find<action::Finished>(report(DomainState::kRunning, job)), nullptr);
        now_ += Settings{}.job_absent_grace;
        const SourceActions late = report(DomainState::kRunning, job);
        const auto* finished = find<action::Finished>(late);
        ASSERT_EQ(finished != nullptr, is_known);
        if (is_known) {
            EXPECT_EQ(finished->error.reason, "migration.job_gone");
        }
    }
}

/// Only libvirt's word, that the guest is paused here and its job goes on, lets it be cancelled.
TEST_F(SourceSteps, AFrozenMoveIsNotGivenUpForTheTargetsSilence) {
    const FreezeToken token = to_frozen();
    const SourceActions silent = after(Settings{}.peer_silence + Duration{1'000});
    EXPECT_EQ(abort_in(silent), nullptr);
    EXPECT_EQ(find<action::AbortJob>(silent), nullptr);
    EXPECT_NE(find<action::QueryDomain>(silent), nullptr);
    EXPECT_NE(find<action::PersistGrant>(receive(request(token))), nullptr);
}

TEST_F(SourceSteps, APrecopyIsGivenUpForTheTargetsSilence) {
    to_precopy();
    const SourceActions silent = after(Settings{}.peer_silence + Duration{1'000});
    EXPECT_NE(find<action::AbortJob>(silent), nullptr);
    ASSERT_NE(find<action::Finished>(silent), nullptr);
    EXPECT_EQ(find<action::Finished>(silent)->error.reason, "migration.peer_silent");
}

TEST_F(SourceSteps, ThatItWaitsForTheTargetIsToldAgainAndAgain) {
    const auto tells = [&](Duration time) {
        const SourceActions actions = after(time);
        const auto* alert = find<action::Alert>(actions);
        return alert != nullptr && alert->kind == AlertKind::kAwaitingPeer;
    };
    const FreezeToken token = to_frozen();
    EXPECT_TRUE(tells(Settings{}.switchover_deadline));
    EXPECT_FALSE(tells(Settings{}.operator_deadline / 2));
    EXPECT_TRUE(tells(Settings{}.operator_deadline / 2));
    EXPECT_TRUE(tells(Settings{}.operator_deadline));
    receive(request(token));
    step(source_event::GrantDurable{});
    EXPECT_TRUE(tells(Settings{}.peer_silence));
    EXPECT_TRUE(tells(Settings{}.operator_deadline));
    EXPECT_TRUE(tells(Settings{}.operator_deadline));
}

/// After a restart nobody announced anything, and still only libvirt knows where the guest is.
TEST_F(SourceSteps, AHeldSessionGoesOnAskingLibvirt) {
    source_event::Restarted restarted;
    restarted.record = {Epoch{7}, false, {}, {}};
    restarted.frozen = FreezeToken{kId, 1};
    step(restarted);
    report(DomainState::kAbsent, JobState::kNone);
    ASSERT_EQ(machine_.state(), SourceState::kHolding);
    for (int i = 0; i < 3; ++i) {
        EXPECT_NE(find<action::QueryDomain>(after(Settings{}.job_poll)), nullptr) << i;
    }
}

TEST_F(SourceSteps, ASecondDeathOfAWorkerLeavesTheGrantToTheTargetToo) {
    const FreezeToken token = to_frozen();
    step(source_event::WorkerLost{});
    EXPECT_TRUE(step(source_event::WorkerLost{}).empty());
    EXPECT_EQ(machine_.state(), SourceState::kLost);
    EXPECT_NE(find<action::PersistGrant>(receive(request(token))), nullptr);
}

TEST_F(SourceSteps, AWorkerThatEndsOnceAllIsReleasedIsNoLoss) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(source_event::GrantDurable{});
    receive(MsgActivated{{8}});
    step(source_event::Released{});
    ASSERT_EQ(machine_.state(), SourceState::kReleased);
    EXPECT_TRUE(step(source_event::WorkerLost{}).empty());
}

/// A restart forgot which state was frozen last: whoever has one may be granted it where the guest
/// is gone. Once the session went on here that is over.
TEST_F(SourceSteps, AStateFromBeforeTheSessionWentOnIsNotGranted) {
    source_event::Restarted restarted;
    restarted.record.epoch = Epoch{7};
    restarted.workers_alive = false;
    const MsgGrantRequest unknown{{kId, 9}, {8}, {}};
    step(restarted);
    EXPECT_EQ(find<action::PersistGrant>(receive(unknown)), nullptr);
    const SourceActions gone = report(DomainState::kAbsent, JobState::kNone);
    EXPECT_NE(find<action::PersistGrant>(gone), nullptr) << "it is all that is left";
    machine_ = SourceMachine{"vm", Epoch{7}, unbound()};
    step(restarted);
    report(DomainState::kRunning, JobState::kUnknown);
    step(source_event::Thawed{});
    to_frozen();
    step(source_event::WorkerLost{});
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(unknown)));
    EXPECT_EQ(find<action::PersistGrant>(report(DomainState::kAbsent, JobState::kNone)), nullptr);
}

TEST_F(SourceSteps, AGrantThatComesBackDuringItsMoveEndsTheMove) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(source_event::GrantDurable{});
    receive(MsgGrantReturned{{8}});
    const SourceActions durable = step(source_event::GrantDurable{});
    const auto* finished = find<action::Finished>(durable);
    ASSERT_NE(finished, nullptr);
    EXPECT_EQ(finished->outcome, Outcome::kRolledBack);
    EXPECT_EQ(finished->error.reason, grant_refusal::kReturned);
    EXPECT_EQ(machine_.migration(), std::nullopt);
    EXPECT_EQ(machine_.state(), SourceState::kHolding);
}

}  // namespace
}  // namespace gantry::engine
