// The arbiter's promises, one by one. The simulator (tests/sim) covers what nobody thought of.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/engine/source_fixture.h"

namespace gantry::engine {
namespace {

TEST_F(Source, GrantLeavesOnlyAfterItsRecordIsDurable) {
    const FreezeToken token = to_frozen();
    const SourceActions asked = receive(request(token));
    const auto* persist = find<action::PersistGrant>(asked);
    ASSERT_NE(persist, nullptr);
    EXPECT_EQ(persist->record.epoch.value, 7U);
    EXPECT_TRUE(persist->record.granted);
    EXPECT_EQ(persist->record.granted_token, token);
    EXPECT_FALSE(sends<MsgGrant>(asked));
    EXPECT_FALSE(sends<MsgGrant>(receive(request(token)))) << "asked again while writing";
    const SourceActions durable = step(source_event::GrantDurable{});
    EXPECT_TRUE(sends<MsgGrant>(durable));
    const auto* fence = find<action::Fence>(durable);
    ASSERT_NE(fence, nullptr);
    EXPECT_FALSE(fence->guest_is_here) << "it runs at the target, and may pull its memory";
    EXPECT_TRUE(sends<MsgGrant>(receive(request(token)))) << "repeated: answered again";
    EXPECT_FALSE(machine_.serves());
}

TEST_F(Source, NoGrantBeforeFreezeNorForAnotherToken) {
    to_precopy();
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request({kId, 1}))));
    machine_ = SourceMachine{"vm", Epoch{7}, unbound()};
    const FreezeToken token = to_frozen();
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request({kId, token.count + 1}))));
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request({{5, 5}, token.count}))));
    EXPECT_EQ(machine_.state(), SourceState::kFrozen);
}

TEST_F(Source, AFinalStateThatCouldNotBeSentIsSentWithAnotherRound) {
    for (const bool has_arrived : {false, true}) {
        machine_ = SourceMachine{"vm", Epoch{7}, unbound()};
        const FreezeToken token = to_final_round();
        ASSERT_NE(find<action::SendComplete>(step(source_event::RoundSent{2, {}})), nullptr);
        if (has_arrived) {
            receive(MsgRoundAck{2});
        }
        source_event::CompleteFailed failed;
        failed.token = {kId, token.count + 1};
        EXPECT_TRUE(step(failed).empty()) << "of another freeze";
        failed.token = token;
        const SourceActions again = step(failed);
        const auto* round = find<action::ResendRound>(again);
        ASSERT_NE(round, nullptr) << has_arrived;
        EXPECT_EQ(round->round, 3U);
        const SourceActions whole = step(source_event::RoundSent{3, {}});
        const auto* complete = find<action::SendComplete>(whole);
        ASSERT_NE(complete, nullptr);
        EXPECT_EQ(complete->round, 3U);
        EXPECT_EQ(complete->token, token);
    }
}

TEST_F(Source, AFrozenStateThatCannotBeSaidTakesTheMoveBack) {
    const auto fail_final_round = [&](Code code, std::uint64_t round) {
        return step(source_event::RoundFailed{
            round, {code, "feature.stream.capture.not_movable", "a stream is captured"}});
    };
    to_final_round();
    std::uint64_t round = 2;
    for (; round < 20; ++round) {  // A link may be away for as long as it likes.
        EXPECT_NE(find<action::ResendRound>(fail_final_round(Code::kUnavailable, round)), nullptr);
    }
    for (; round < 23; ++round) {
        EXPECT_NE(find<action::ResendRound>(fail_final_round(Code::kFailedPrecondition, round)),
                  nullptr);
    }
    const SourceActions given_up = fail_final_round(Code::kFailedPrecondition, round);
    EXPECT_EQ(find<action::ResendRound>(given_up), nullptr);
    EXPECT_NE(find<action::AbortJob>(given_up), nullptr);
    EXPECT_TRUE(sends<MsgAbort>(given_up));
    EXPECT_NE(find<action::Thaw>(step(source_event::GuestResumed{})), nullptr);
}

TEST_F(Source, WhoMayHaveAllOfALostSessionIsNotSentAway) {
    const FreezeToken token = to_frozen();
    step(source_event::WorkerLost{});
    EXPECT_FALSE(sends<MsgAbort>(receive(MsgVerified{token})));
    EXPECT_FALSE(sends<MsgAbort>(receive(MsgAlive{})));
    EXPECT_TRUE(sends<MsgAbort>(receive(MsgFreezeRequest{}))) << "it lacks something";
    EXPECT_NE(find<action::PersistGrant>(receive(request(token))), nullptr);
}

TEST_F(Source, ResumedBeforeTheGrantIsARollback) {
    const FreezeToken token = to_frozen();
    const SourceActions resumed = step(source_event::GuestResumed{});
    EXPECT_NE(find<action::Thaw>(resumed), nullptr);
    EXPECT_TRUE(sends<MsgThawed>(resumed));
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request(token))));
    step(source_event::Thawed{});
    EXPECT_TRUE(machine_.serves());
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request(token))));
}

TEST_F(Source, ResumedWhileTheGrantIsWrittenIsSplitBrainAndTheGrantStands) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    EXPECT_EQ(find<action::Thaw>(step(source_event::GuestResumed{})), nullptr);
    const SourceActions durable = step(source_event::GrantDurable{});
    EXPECT_TRUE(sends<MsgGrant>(durable));
    const auto* alert = find<action::Alert>(durable);
    ASSERT_NE(alert, nullptr);
    EXPECT_EQ(alert->kind, AlertKind::kSplitBrain);
    EXPECT_TRUE(std::any_of(durable.begin(), durable.end(), [](const SourceAction& one) {
        const auto* fence = std::get_if<action::Fence>(&one);
        return fence != nullptr && fence->guest_is_here;
    })) << "its guest is told";
    EXPECT_FALSE(machine_.serves());
}

TEST_F(Source, ResumedWhileAFailingGrantIsWrittenIsARollback) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(source_event::GuestResumed{});
    EXPECT_NE(find<action::Thaw>(step(source_event::GrantWriteFailed{})), nullptr);
    step(source_event::Thawed{});
    EXPECT_TRUE(machine_.serves());
}

TEST_F(Source, SilenceAloneNeverThaws) {
    to_frozen();
    for (int i = 0; i < 500 && machine_.next_deadline(); ++i) {
        now_ = *machine_.next_deadline();
        const SourceActions actions = machine_.step(source_event::Timer{}, now_);
        EXPECT_EQ(find<action::Thaw>(actions), nullptr);
    }
    EXPECT_FALSE(machine_.serves());
}

TEST_F(Source, WithdrawnTokenIsReplacedBeforeTheFinalRefusal) {
    const FreezeToken token = to_frozen();
    const SourceActions withdrawn = receive(MsgAbort{"migration.withdrawn", ""});
    const auto* freeze = find<action::Freeze>(withdrawn);
    ASSERT_NE(freeze, nullptr);
    EXPECT_NE(freeze->token, token);
    EXPECT_FALSE(sends<MsgGrantRefused>(withdrawn)) << "only once the workers have the new token";
    EXPECT_TRUE(sends<MsgGrantRefused>(step(source_event::Frozen{freeze->token})));
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request(token)))) << "a late repeat";
}

TEST_F(Source, RestartKnowsTheGrant) {
    source_event::Restarted restarted;
    restarted.record = {Epoch{7}, true, kId, {kId, 1}};
    EXPECT_NE(find<action::Fence>(step(restarted)), nullptr);
    EXPECT_TRUE(sends<MsgGrant>(receive(request({kId, 1}))));
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request({{3, 3}, 1}), {3, 3})));
    EXPECT_FALSE(machine_.serves());
}

TEST_F(Source, RestartWithFrozenWorkersAsksLibvirtFirst) {
    source_event::Restarted restarted;
    restarted.record = {Epoch{7}, false, {}, {}};
    restarted.frozen = FreezeToken{kId, 1};
    EXPECT_NE(find<action::QueryDomain>(step(restarted)), nullptr);
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request({kId, 1}))));
    source_event::Domain domain;
    domain.report = {DomainState::kAbsent, JobState::kNone};
    step(domain);
    EXPECT_NE(find<action::PersistGrant>(receive(request({kId, 1}))), nullptr);
}

TEST_F(Source, ALateRequestForAnOlderStateIsNotRefusedForGood) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(source_event::GrantDurable{});
    FreezeToken older = token;
    --older.count;
    const SourceActions answer = receive(request(older));
    ASSERT_TRUE(sends<MsgGrantRefused>(answer));
    EXPECT_FALSE(std::get<MsgGrantRefused>(find<action::Send>(answer)->message.body).is_final)
        << "whoever withdraws would take it for the proof that nothing was granted";
}

TEST_F(Source, ARefusalIsTheLastWordWhereAskingAgainCannotHelp) {
    const FreezeToken token = to_frozen();
    const auto refused = [&](const SourceActions& actions) {
        const auto* sent = find<action::Send>(actions);
        return sent != nullptr && std::holds_alternative<MsgGrantRefused>(sent->message.body)
                   ? std::get<MsgGrantRefused>(sent->message.body)
                   : MsgGrantRefused{};
    };
    MsgGrantRequest wanted = request(token);
    wanted.epoch = Epoch{9};
    const MsgGrantRefused of_epoch = refused(receive(wanted));
    EXPECT_EQ(of_epoch.reason, grant_refusal::kEpoch) << "7 is owned, 8 is due";
    EXPECT_TRUE(of_epoch.is_final);
    wanted = request({{5, 5}, token.count});
    const MsgGrantRefused of_another = refused(receive(wanted));
    EXPECT_EQ(of_another.reason, grant_refusal::kOtherMigration);
    EXPECT_TRUE(of_another.is_final);
    wanted = request(token);
    wanted.epoch = Epoch{0};  // Forgotten in a restart: whichever is due.
    EXPECT_NE(find<action::PersistGrant>(receive(wanted)), nullptr);
}

TEST_F(Source, AnAnnouncementOutlivesTheAttemptsOfOneJob) {
    to_precopy();
    EXPECT_TRUE(machine_.announced());
    const SourceActions aborted = receive(MsgAbort{"migration.withdrawn", ""});
    EXPECT_NE(find<action::EndPrecopy>(aborted), nullptr);
    EXPECT_EQ(find<action::EndAnnouncement>(aborted), nullptr) << "QEMU goes on copying";
    const auto report = [&](DomainState domain, JobState job) {
        return step(source_event::Domain{{domain, job}});
    };
    // Neither while libvirt's job goes on, nor while the guest is away, nor by one report alone.
    for (int i = 0; i < 3; ++i) {
        now_ += Settings{}.job_absent_grace;
        EXPECT_EQ(find<action::EndAnnouncement>(report(DomainState::kRunning, JobState::kOutgoing)),
                  nullptr);
        EXPECT_EQ(find<action::EndAnnouncement>(report(DomainState::kPaused, JobState::kNone)),
                  nullptr);
        EXPECT_EQ(find<action::EndAnnouncement>(report(DomainState::kRunning, JobState::kNone)),
                  nullptr);
    }
    EXPECT_TRUE(machine_.announced());
    now_ += Settings{}.job_absent_grace;
    EXPECT_NE(find<action::QueryDomain>(step(source_event::Timer{})), nullptr) << "it keeps asking";
    EXPECT_NE(find<action::EndAnnouncement>(report(DomainState::kRunning, JobState::kNone)),
              nullptr);
    EXPECT_FALSE(machine_.announced());
    EXPECT_EQ(machine_.next_deadline(), std::nullopt);
}

TEST_F(Source, TheAttemptsOfOneJobAreOneMoveForAnOperator) {
    to_precopy();
    source_event::RoundProgress progress;
    progress.round = 1;
    progress.stats.bytes_changed = progress.stats.bytes_content = 100 * kBlockBytes;
    progress.stats.bytes_sent = 70;
    progress.stats.bytes_acknowledged = 50 * kBlockBytes;
    step(progress);
    const Progress before = machine_.progress();
    EXPECT_EQ(before.bytes_sent, 70U);
    EXPECT_EQ(before.bytes_content, 100 * kBlockBytes);
    EXPECT_GT(before.percent, 30.0) << "half of the first round is acknowledged";
    EXPECT_LT(before.percent, 40.0);
    EXPECT_FALSE(machine_.awaits_attempt());
    receive(MsgAbort{"migration.withdrawn", ""});
    EXPECT_TRUE(machine_.awaits_attempt());
    prepare({5, 6});
    EXPECT_FALSE(machine_.awaits_attempt());
    const Progress after = machine_.progress();
    EXPECT_EQ(after.percent, before.percent);
    EXPECT_EQ(after.bytes_sent, before.bytes_sent);
    EXPECT_EQ(after.bytes_content, before.bytes_content);
    EXPECT_GE(after.round, before.round);
    EXPECT_GT(after.elapsed, before.elapsed);
}

TEST_F(Source, AMoveIsOverWithItsJobAndTheNextBeginsAtZero) {
    for (const JobState job : {JobState::kOutgoing, JobState::kNone}) {
        const MigrationId id{3, job == JobState::kNone ? 1U : 2U};
        to_precopy(id);
        EXPECT_EQ(machine_.progress().round, 0U);  // Nothing of it has been told yet.
        EXPECT_LT(machine_.progress().percent, 3.0);
        source_event::RoundProgress progress;
        progress.round = 1;
        progress.stats.bytes_changed = progress.stats.bytes_acknowledged = kBlockBytes;
        step(progress);
        EXPECT_GT(machine_.progress().percent, 60.0);
        receive(MsgAbort{"migration.withdrawn", ""}, id);
        source_event::Domain domain;
        domain.report = {DomainState::kPaused, job};  // An operator's pause counts as well.
        step(domain);
        now_ += Settings{}.job_absent_grace;
        step(domain);
        EXPECT_EQ(machine_.awaits_attempt(), job == JobState::kOutgoing);
        step(source_event::GuestResumed{});
        domain.report = {DomainState::kRunning, JobState::kNone};
        step(domain);
        now_ += Settings{}.job_absent_grace;
        step(domain);
        EXPECT_FALSE(machine_.awaits_attempt());
    }
}

TEST_F(Source, AnAbortOrTheJobsEndEndsTheMoveAtOnce) {
    for (const SourceEvent& event :
         {SourceEvent{source_event::OperatorAbort{}}, SourceEvent{source_event::JobFailed{}}}) {
        to_precopy({4, event.index()});
        const SourceActions ended = step(event);
        EXPECT_NE(find<action::Finished>(ended), nullptr);
        EXPECT_FALSE(machine_.awaits_attempt());
    }
}

TEST_F(Source, AGuestThatLeftUnannouncedIsToldOf) {
    step(source_event::GuestGone{});
    const SourceActions begun = prepare();
    const auto* alert = find<action::Alert>(begun);
    ASSERT_NE(alert, nullptr);
    EXPECT_EQ(alert->error.reason, "migration.not_announced");
}

TEST_F(Source, ANewAttemptWhileTheGuestIsAwayKeepsTheAnnouncement) {
    to_frozen();
    step(source_event::GuestGone{});
    const SourceActions begun = prepare({5, 6});
    EXPECT_NE(find<action::Describe>(begun), nullptr);
    EXPECT_EQ(find<action::EndAnnouncement>(begun), nullptr);
    EXPECT_EQ(find<action::Alert>(begun), nullptr);
    EXPECT_TRUE(machine_.announced());
}

TEST_F(Source, RestartEndsAnAnnouncementOnlyWithTheJob) {
    source_event::Restarted restarted;
    restarted.record = {Epoch{7}, false, {}, {}};
    restarted.announced = true;
    step(restarted);
    source_event::Domain domain;
    domain.report = {DomainState::kRunning, JobState::kNone};
    EXPECT_EQ(find<action::EndAnnouncement>(step(domain)), nullptr);
    EXPECT_TRUE(machine_.next_deadline().has_value());
    now_ += Settings{}.job_absent_grace;
    EXPECT_NE(find<action::EndAnnouncement>(step(domain)), nullptr);
}

TEST_F(Source, PausedArrivalIsGrantedOnlyWhenTheGuestIsGone) {
    const FreezeToken token = to_frozen();
    MsgGrantRequest paused = request(token);
    paused.evidence = ArrivalEvidence::kPausedArrival;
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(paused)));
    step(source_event::GuestGone{});
    EXPECT_NE(find<action::PersistGrant>(receive(paused)), nullptr);
}

TEST_F(Source, AReturnedGrantIsTakenBackUnderAnEpochOfItsOwn) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(source_event::GrantDurable{});
    const SourceActions returned = receive(MsgGrantReturned{{8}});
    const auto* persist = find<action::PersistGrant>(returned);
    ASSERT_NE(persist, nullptr);
    EXPECT_EQ(persist->record.epoch.value, 9U);
    EXPECT_FALSE(persist->record.granted);
    EXPECT_FALSE(sends<MsgGrantRefused>(returned)) << "answered only once it is durable";
    EXPECT_FALSE(sends<MsgGrant>(receive(request(token)))) << "a late repeat";
    EXPECT_FALSE(machine_.serves());
    const SourceActions durable = step(source_event::GrantDurable{});
    EXPECT_TRUE(sends<MsgGrantRefused>(durable));
    ASSERT_NE(find<action::Unfence>(durable), nullptr);
    EXPECT_EQ(find<action::Unfence>(durable)->epoch.value, 9U);
    EXPECT_EQ(find<action::Thaw>(durable), nullptr) << "only libvirt's word thaws";
    EXPECT_EQ(machine_.epoch().value, 9U);
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request(token)))) << "a late repeat";
    // Repeated: as a withdrawal, whose token the workers forget before it is answered.
    const SourceActions repeated = receive(MsgGrantReturned{{8}});
    ASSERT_NE(find<action::Freeze>(repeated), nullptr);
    EXPECT_TRUE(
        sends<MsgGrantRefused>(step(source_event::Frozen{find<action::Freeze>(repeated)->token})));
    EXPECT_NE(find<action::Thaw>(step(source_event::GuestResumed{})), nullptr);
    step(source_event::Thawed{});
    EXPECT_TRUE(machine_.serves());
}

TEST_F(Source, ARequestFromBeforeAGrantCameBackIsNotGrantedAfterARestart) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(source_event::GrantDurable{});
    source_event::Restarted restarted;
    restarted.record = find<action::PersistGrant>(receive(MsgGrantReturned{{8}}))->record;
    restarted.frozen = token;
    machine_ = SourceMachine{"vm", Epoch{7}, unbound()};
    step(restarted);
    source_event::Domain domain;
    domain.report = {DomainState::kAbsent, JobState::kNone};
    step(domain);
    const MsgGrantRequest late{token, {}, {}};  // of a target that a restart let forget its epoch
    const SourceActions answer = receive(late);
    EXPECT_EQ(find<action::PersistGrant>(answer), nullptr);
    EXPECT_TRUE(sends<MsgGrantRefused>(answer));
}

/// The same where what was frozen here is gone as well, and the restart forgot what it was.
TEST_F(Source, ARequestFromBeforeAGrantCameBackIsNotGrantedWhereTheStateIsGone) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(source_event::GrantDurable{});
    source_event::Restarted restarted;
    restarted.record = find<action::PersistGrant>(receive(MsgGrantReturned{{8}}))->record;
    restarted.workers_alive = false;
    machine_ = SourceMachine{"vm", Epoch{7}, unbound()};
    step(restarted);
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(MsgGrantRequest{token, {}, {}})));
    const source_event::Domain gone{{DomainState::kAbsent, JobState::kNone}};
    EXPECT_EQ(find<action::PersistGrant>(step(gone)), nullptr);
}

TEST_F(Source, OnlyTheMigrationThatFrozeTheSessionIsGrantedThatState) {
    source_event::Restarted restarted;
    restarted.record = {Epoch{7}, false, {}, {}};
    restarted.frozen = FreezeToken{kId, 1};
    step(restarted);
    step(source_event::Domain{{DomainState::kAbsent, JobState::kNone}});
    ASSERT_EQ(machine_.state(), SourceState::kHolding);  // and no migration is under way
    const MigrationId other{kId.high + 1, kId.low};
    const SourceActions answer = step(source_event::Received{{other, request({kId, 1})}, {}});
    EXPECT_EQ(find<action::PersistGrant>(answer), nullptr);
    EXPECT_TRUE(sends<MsgGrantRefused>(answer));
    EXPECT_NE(find<action::PersistGrant>(receive(request({kId, 1}))), nullptr);
}

TEST_F(Source, AGrantOfAnotherEpochIsRefusedAlsoWhenTheWorkersHereDied) {
    const FreezeToken token = to_frozen();
    step(source_event::WorkerLost{});
    for (const std::uint64_t epoch : {7U, 9U}) {
        const SourceActions answer = receive(MsgGrantRequest{token, {epoch}, {}});
        EXPECT_EQ(find<action::PersistGrant>(answer), nullptr) << epoch;
        EXPECT_TRUE(sends<MsgGrantRefused>(answer)) << epoch;
    }
    EXPECT_NE(find<action::PersistGrant>(receive(request(token))), nullptr);
}

TEST_F(Source, AGuestThatResumedAfterAFailedFreezeIsFrozenWhenItLeavesAgain) {
    to_precopy();
    finish_round(1);
    step(source_event::GuestSuspended{});
    step(
        source_event::FreezeFailed{{Code::kDeadlineExceeded, "drain.timeout", "a kernel runs on"}});
    step(source_event::GuestResumed{});
    EXPECT_EQ(machine_.state(), SourceState::kPrecopy);
    EXPECT_NE(find<action::Freeze>(step(source_event::GuestSuspended{})), nullptr);
}

TEST_F(Source, AGrantIsReturnedOnlyByTheMigrationThatHasIt) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(source_event::GrantDurable{});
    EXPECT_EQ(find<action::PersistGrant>(receive(MsgGrantReturned{{8}}, {3, 3})), nullptr);
    EXPECT_EQ(find<action::PersistGrant>(receive(MsgGrantReturned{{7}})), nullptr);
    EXPECT_EQ(machine_.state(), SourceState::kGranted);
    receive(MsgActivated{{8}});
    step(source_event::Released{});
    EXPECT_TRUE(sends<MsgReleased>(receive(MsgGrantReturned{{8}}))) << "nothing is left here";
}

TEST_F(Source, AReturnedGrantWhoseStateIsGoneIsNotTakenBack) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(source_event::GrantDurable{});
    step(source_event::WorkerLost{});
    const SourceActions returned = receive(MsgGrantReturned{{8}});
    EXPECT_EQ(find<action::PersistGrant>(returned), nullptr);
    EXPECT_NE(find<action::Release>(returned), nullptr);
    const SourceActions released = step(source_event::Released{});
    EXPECT_TRUE(sends<MsgReleased>(released));
    EXPECT_EQ(find<action::Finished>(released)->outcome, Outcome::kLost);
}

TEST_F(Source, AWorkerThatDiesInPrecopyEndsTheMoveAndTheSessionCanMoveAgain) {
    to_precopy();
    const SourceActions lost = step(source_event::WorkerLost{});
    EXPECT_TRUE(sends<MsgAbort>(lost));
    EXPECT_EQ(find<action::Finished>(lost)->error.reason, "session.worker_lost");
    EXPECT_EQ(machine_.state(), SourceState::kServing);
    EXPECT_TRUE(machine_.serves()) << "the session's other programs go on";
    to_precopy({3, 4});
}

TEST_F(Source, AWorkerThatDiesInTheFreezeTakesTheJobBackAndTheSessionCanMoveAgain) {
    to_precopy();
    finish_round(1);
    step(source_event::GuestSuspended{});
    ASSERT_EQ(machine_.state(), SourceState::kFreezing);
    const SourceActions lost = step(source_event::WorkerLost{});
    EXPECT_NE(find<action::AbortJob>(lost), nullptr);
    EXPECT_TRUE(sends<MsgAbort>(lost));
    step(source_event::FreezeFailed{{Code::kUnavailable, "worker.gone", "process 1 has ended"}});
    EXPECT_EQ(machine_.state(), SourceState::kServing);
    step(source_event::GuestResumed{});
    EXPECT_TRUE(machine_.serves());
    to_precopy({3, 4});
}

TEST_F(Source, AWorkerThatDiesFrozenLeavesTheGrantToTheTarget) {
    const FreezeToken token = to_frozen();
    EXPECT_FALSE(sends<MsgAbort>(step(source_event::WorkerLost{})));
    EXPECT_EQ(machine_.state(), SourceState::kLost);
    EXPECT_TRUE(sends<MsgRefused>(prepare({3, 4})));
    EXPECT_NE(find<action::PersistGrant>(receive(request(token))), nullptr);
    EXPECT_TRUE(sends<MsgGrant>(step(source_event::GrantDurable{})));
}

TEST_F(Source, AWorkerThatDiedFrozenIsForgottenWhenTheGuestIsBack) {
    for (const bool is_told : {true, false}) {  // by the event, or when libvirt is asked
        machine_ = SourceMachine{"vm", Epoch{7}, unbound()};
        const FreezeToken token = to_frozen();
        EXPECT_NE(find<action::QueryDomain>(step(source_event::WorkerLost{})), nullptr);
        SourceEvent runs = source_event::GuestResumed{};
        if (!is_told) {
            runs = source_event::Domain{{DomainState::kRunning, JobState::kUnknown}};
        }
        EXPECT_NE(find<action::Thaw>(step(runs)), nullptr) << "the other workers are frozen";
        EXPECT_EQ(find<action::PersistGrant>(receive(request(token))), nullptr);
        step(source_event::Thawed{});
        EXPECT_EQ(machine_.state(), SourceState::kServing);
        EXPECT_TRUE(machine_.serves());
        EXPECT_EQ(find<action::PersistGrant>(receive(request(token))), nullptr);
        to_precopy({3, 4});
    }
}

TEST_F(Source, AWorkerThatDiedWhileGantrydWasAwayHoldsUpNothingOnceTheGuestRuns) {
    source_event::Restarted restarted;
    restarted.record.epoch = Epoch{7};
    restarted.workers_alive = false;
    EXPECT_NE(find<action::QueryDomain>(step(restarted)), nullptr);
    EXPECT_FALSE(machine_.serves());
    const source_event::Domain runs{{DomainState::kRunning, JobState::kUnknown}};
    EXPECT_NE(find<action::Thaw>(step(runs)), nullptr);
    step(source_event::Thawed{});
    EXPECT_TRUE(machine_.serves());
    to_precopy();
}

/// It does not know which state it froze last, and the target's copy is all that is left.
TEST_F(Source, ARestartThatFindsNoWorkersGrantsTheNewestStateThatIsAskedFor) {
    source_event::Restarted restarted;
    restarted.record.epoch = Epoch{7};
    restarted.workers_alive = false;
    const source_event::Domain gone{{DomainState::kAbsent, JobState::kNone}};

    step(restarted);
    const SourceActions refused = receive(request({kId, 0}));
    ASSERT_TRUE(sends<MsgGrantRefused>(refused)) << "it names no freeze";
    const auto& answer = std::get<MsgGrantRefused>(find<action::Send>(refused)->message.body);
    EXPECT_FALSE(answer.is_final) << "the target would let the only copy go";
    EXPECT_EQ(find<action::PersistGrant>(step(gone)), nullptr);

    receive(request({kId, 2}));
    receive(request({kId, 1}));  // late, from before
    const SourceActions granted = step(gone);
    const auto* persist = find<action::PersistGrant>(granted);
    ASSERT_NE(persist, nullptr);
    EXPECT_EQ(persist->record.granted_token, (FreezeToken{kId, 2}));

    machine_ = SourceMachine{"vm", Epoch{7}, unbound()};
    step(restarted);
    receive(request({kId, 1}));
    receive(request({kId, 2}));
    const SourceActions newer = step(gone);
    ASSERT_NE(find<action::PersistGrant>(newer), nullptr);
    EXPECT_EQ(find<action::PersistGrant>(newer)->record.granted_token, (FreezeToken{kId, 2}));
}

TEST_F(Source, RefusesByPreflightWithTheSameFindingsWhenAskedAgain) {
    const MsgPrepare prepare{kEngineProtocolVersion, "vm", {}};
    receive(prepare);
    source_event::Described described;
    described.needs = SessionNeeds{};
    EXPECT_TRUE(sends<MsgRefused>(step(described)));
    EXPECT_EQ(machine_.state(), SourceState::kServing);
    EXPECT_TRUE(sends<MsgRefused>(receive(prepare)));
}

}  // namespace
}  // namespace gantry::engine
