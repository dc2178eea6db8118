// The arbiter's promises, one by one. The simulator (tests/sim) covers what nobody thought of.
#include "migration/engine/source_machine.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gantry::engine {
namespace {

constexpr MigrationId kId{1, 2};

class Source : public testing::Test {
protected:
    Actions step(SourceEventKind kind) {
        SourceEvent event;
        event.kind = kind;
        return step(event);
    }
    Actions step(const SourceEvent& event) {
        now_ += Duration{1'000};
        return machine_.step(event, now_);
    }
    Actions receive(MessageBody body, MigrationId id = kId) {
        SourceEvent event;
        event.kind = SourceEventKind::kMessage;
        event.message = Message{id, std::move(body)};
        return step(event);
    }
    static const Action* find(const Actions& actions, ActionKind kind) {
        const auto it = std::find_if(actions.begin(), actions.end(),
                                     [&](const Action& a) { return a.kind == kind; });
        return it == actions.end() ? nullptr : &*it;
    }
    template <typename T>
    static bool sends(const Actions& actions) {
        return std::any_of(actions.begin(), actions.end(), [](const Action& action) {
            return action.message && std::holds_alternative<T>(action.message->body);
        });
    }

    Actions prepare(MigrationId id = kId) {
        TargetCapabilities target;
        target.gpu_name = "gpu";
        target.cc = {9, 0};
        return receive(MsgPrepare{kEngineProtocolVersion, "vm", target}, id);
    }
    /// Up to the first round of precopy.
    void to_precopy(MigrationId id = kId) {
        prepare(id);
        SourceEvent described;
        described.kind = SourceEventKind::kDescribed;
        described.needs = SessionNeeds{};
        step(described);
        receive(MsgReady{}, id);
        step(SourceEventKind::kPrecopyBegun);
        ASSERT_EQ(machine_.state(), SourceState::kPrecopy);
    }
    void finish_round(std::uint64_t round) {
        SourceEvent sent;
        sent.kind = SourceEventKind::kRoundSent;
        sent.round = round;
        step(sent);
        receive(MsgRoundAck{round});
    }
    FreezeToken to_final_round() {
        to_precopy();
        finish_round(1);
        const Actions actions = step(SourceEventKind::kGuestSuspended);
        SourceEvent frozen;
        frozen.kind = SourceEventKind::kFrozen;
        frozen.token = find(actions, ActionKind::kFreeze)->token;
        step(frozen);
        return frozen.token;
    }
    FreezeToken to_frozen() {
        const FreezeToken token = to_final_round();
        SourceEvent sent;
        sent.kind = SourceEventKind::kRoundSent;
        sent.round = 2;
        step(sent);
        SourceEvent complete;
        complete.kind = SourceEventKind::kCompleteSent;
        complete.token = token;
        step(complete);
        EXPECT_EQ(machine_.state(), SourceState::kFrozen);
        return token;
    }
    MsgGrantRequest request(FreezeToken token) const { return {token, {8}, {}}; }

    TimePoint now_{};
    SourceMachine machine_{"vm", Epoch{7}, Settings{}};
};

TEST_F(Source, GrantLeavesOnlyAfterItsRecordIsDurable) {
    const FreezeToken token = to_frozen();
    const Actions asked = receive(request(token));
    const Action* persist = find(asked, ActionKind::kPersistGrant);
    ASSERT_NE(persist, nullptr);
    EXPECT_EQ(persist->record->epoch.value, 7U);
    EXPECT_TRUE(persist->record->granted);
    EXPECT_EQ(persist->record->granted_token, token);
    EXPECT_FALSE(sends<MsgGrant>(asked));
    EXPECT_FALSE(sends<MsgGrant>(receive(request(token)))) << "asked again while writing";
    const Actions durable = step(SourceEventKind::kGrantDurable);
    EXPECT_TRUE(sends<MsgGrant>(durable));
    const Action* fence = find(durable, ActionKind::kFence);
    ASSERT_NE(fence, nullptr);
    EXPECT_FALSE(fence->guest_is_here) << "it runs at the target, and may pull its memory";
    EXPECT_TRUE(sends<MsgGrant>(receive(request(token)))) << "repeated: answered again";
    EXPECT_FALSE(machine_.serves());
}

TEST_F(Source, NoGrantBeforeFreezeNorForAnotherToken) {
    to_precopy();
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request({kId, 1}))));
    machine_ = SourceMachine{"vm", Epoch{7}, Settings{}};
    const FreezeToken token = to_frozen();
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request({kId, token.count + 1}))));
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request({{5, 5}, token.count}))));
    EXPECT_EQ(machine_.state(), SourceState::kFrozen);
}

TEST_F(Source, AFinalStateThatCouldNotBeSentIsSentWithAnotherRound) {
    for (const bool has_arrived : {false, true}) {
        machine_ = SourceMachine{"vm", Epoch{7}, Settings{}};
        const FreezeToken token = to_final_round();
        SourceEvent sent;
        sent.kind = SourceEventKind::kRoundSent;
        sent.round = 2;
        ASSERT_NE(find(step(sent), ActionKind::kSendComplete), nullptr);
        if (has_arrived) {
            receive(MsgRoundAck{2});
        }
        SourceEvent failed;
        failed.kind = SourceEventKind::kCompleteFailed;
        failed.token = {kId, token.count + 1};
        EXPECT_TRUE(step(failed).empty()) << "of another freeze";
        failed.token = token;
        const Actions again = step(failed);
        const Action* round = find(again, ActionKind::kResendRound);
        ASSERT_NE(round, nullptr) << has_arrived;
        EXPECT_EQ(round->round, 3U);
        sent.round = 3;
        const Actions whole = step(sent);
        const Action* complete = find(whole, ActionKind::kSendComplete);
        ASSERT_NE(complete, nullptr);
        EXPECT_EQ(complete->round, 3U);
        EXPECT_EQ(complete->token, token);
    }
}

TEST_F(Source, AFrozenStateThatCannotBeSaidTakesTheMoveBack) {
    const auto fail_final_round = [&](Code code, std::uint64_t round) {
        SourceEvent failed;
        failed.kind = SourceEventKind::kRoundFailed;
        failed.round = round;
        failed.error = {code, "feature.stream.capture.not_movable", "a stream is captured"};
        return step(failed);
    };
    to_final_round();
    std::uint64_t round = 2;
    for (; round < 20; ++round) {  // A link may be away for as long as it likes.
        EXPECT_NE(find(fail_final_round(Code::kUnavailable, round), ActionKind::kResendRound),
                  nullptr);
    }
    for (; round < 23; ++round) {
        EXPECT_NE(
            find(fail_final_round(Code::kFailedPrecondition, round), ActionKind::kResendRound),
            nullptr);
    }
    const Actions given_up = fail_final_round(Code::kFailedPrecondition, round);
    EXPECT_EQ(find(given_up, ActionKind::kResendRound), nullptr);
    EXPECT_NE(find(given_up, ActionKind::kAbortJob), nullptr);
    EXPECT_TRUE(sends<MsgAbort>(given_up));
    EXPECT_NE(find(step(SourceEventKind::kGuestResumed), ActionKind::kThaw), nullptr);
}

TEST_F(Source, WhoMayHaveAllOfALostSessionIsNotSentAway) {
    const FreezeToken token = to_frozen();
    step(SourceEventKind::kWorkerLost);
    EXPECT_FALSE(sends<MsgAbort>(receive(MsgVerified{token})));
    EXPECT_FALSE(sends<MsgAbort>(receive(MsgAlive{})));
    EXPECT_TRUE(sends<MsgAbort>(receive(MsgFreezeRequest{}))) << "it lacks something";
    EXPECT_NE(find(receive(request(token)), ActionKind::kPersistGrant), nullptr);
}

TEST_F(Source, ResumedBeforeTheGrantIsARollback) {
    const FreezeToken token = to_frozen();
    const Actions resumed = step(SourceEventKind::kGuestResumed);
    EXPECT_NE(find(resumed, ActionKind::kThaw), nullptr);
    EXPECT_TRUE(sends<MsgThawed>(resumed));
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request(token))));
    step(SourceEventKind::kThawed);
    EXPECT_TRUE(machine_.serves());
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request(token))));
}

TEST_F(Source, ResumedWhileTheGrantIsWrittenIsSplitBrainAndTheGrantStands) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    EXPECT_EQ(find(step(SourceEventKind::kGuestResumed), ActionKind::kThaw), nullptr);
    const Actions durable = step(SourceEventKind::kGrantDurable);
    EXPECT_TRUE(sends<MsgGrant>(durable));
    const Action* alert = find(durable, ActionKind::kAlert);
    ASSERT_NE(alert, nullptr);
    EXPECT_EQ(alert->alert, AlertKind::kSplitBrain);
    EXPECT_TRUE(std::any_of(durable.begin(), durable.end(), [](const Action& action) {
        return action.kind == ActionKind::kFence && action.guest_is_here;
    })) << "its guest is told";
    EXPECT_FALSE(machine_.serves());
}

TEST_F(Source, ResumedWhileAFailingGrantIsWrittenIsARollback) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(SourceEventKind::kGuestResumed);
    EXPECT_NE(find(step(SourceEventKind::kGrantWriteFailed), ActionKind::kThaw), nullptr);
    step(SourceEventKind::kThawed);
    EXPECT_TRUE(machine_.serves());
}

TEST_F(Source, SilenceAloneNeverThaws) {
    to_frozen();
    for (int i = 0; i < 500 && machine_.next_deadline(); ++i) {
        now_ = *machine_.next_deadline();
        SourceEvent timer;
        const Actions actions = machine_.step(timer, now_);
        EXPECT_EQ(find(actions, ActionKind::kThaw), nullptr);
    }
    EXPECT_FALSE(machine_.serves());
}

TEST_F(Source, WithdrawnTokenIsReplacedBeforeTheFinalRefusal) {
    const FreezeToken token = to_frozen();
    const Actions withdrawn = receive(MsgAbort{"migration.withdrawn", ""});
    const Action* freeze = find(withdrawn, ActionKind::kFreeze);
    ASSERT_NE(freeze, nullptr);
    EXPECT_NE(freeze->token, token);
    EXPECT_FALSE(sends<MsgGrantRefused>(withdrawn)) << "only once the workers have the new token";
    SourceEvent frozen;
    frozen.kind = SourceEventKind::kFrozen;
    frozen.token = freeze->token;
    EXPECT_TRUE(sends<MsgGrantRefused>(step(frozen)));
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request(token)))) << "a late repeat";
}

TEST_F(Source, RestartKnowsTheGrant) {
    SourceEvent restarted;
    restarted.kind = SourceEventKind::kRestarted;
    restarted.record = {Epoch{7}, true, kId, {kId, 1}};
    EXPECT_NE(find(step(restarted), ActionKind::kFence), nullptr);
    EXPECT_TRUE(sends<MsgGrant>(receive(request({kId, 1}))));
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request({{3, 3}, 1}), {3, 3})));
    EXPECT_FALSE(machine_.serves());
}

TEST_F(Source, RestartWithFrozenWorkersAsksLibvirtFirst) {
    SourceEvent restarted;
    restarted.kind = SourceEventKind::kRestarted;
    restarted.record = {Epoch{7}, false, {}, {}};
    restarted.frozen = FreezeToken{kId, 1};
    EXPECT_NE(find(step(restarted), ActionKind::kQueryDomain), nullptr);
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request({kId, 1}))));
    SourceEvent domain;
    domain.kind = SourceEventKind::kDomain;
    domain.domain = {DomainState::kAbsent, JobState::kNone};
    step(domain);
    EXPECT_NE(find(receive(request({kId, 1})), ActionKind::kPersistGrant), nullptr);
}

TEST_F(Source, ALateRequestForAnOlderStateIsNotRefusedForGood) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(SourceEventKind::kGrantDurable);
    FreezeToken older = token;
    --older.count;
    const Actions answer = receive(request(older));
    ASSERT_TRUE(sends<MsgGrantRefused>(answer));
    EXPECT_FALSE(std::get<MsgGrantRefused>(find(answer, ActionKind::kSend)->message->body).is_final)
        << "whoever withdraws would take it for the proof that nothing was granted";
}

TEST_F(Source, AnAnnouncementOutlivesTheAttemptsOfOneJob) {
    to_precopy();
    EXPECT_TRUE(machine_.announced());
    const Actions aborted = receive(MsgAbort{"migration.withdrawn", ""});
    EXPECT_NE(find(aborted, ActionKind::kEndPrecopy), nullptr);
    EXPECT_EQ(find(aborted, ActionKind::kEndAnnouncement), nullptr) << "QEMU goes on copying";
    const auto report = [&](DomainState domain, JobState job) {
        SourceEvent event;
        event.kind = SourceEventKind::kDomain;
        event.domain = {domain, job};
        return step(event);
    };
    // Neither while libvirt's job goes on, nor while the guest is away, nor by one report alone.
    for (int i = 0; i < 3; ++i) {
        now_ += Settings{}.job_absent_grace;
        EXPECT_EQ(
            find(report(DomainState::kRunning, JobState::kOutgoing), ActionKind::kEndAnnouncement),
            nullptr);
        EXPECT_EQ(find(report(DomainState::kPaused, JobState::kNone), ActionKind::kEndAnnouncement),
                  nullptr);
        EXPECT_EQ(
            find(report(DomainState::kRunning, JobState::kNone), ActionKind::kEndAnnouncement),
            nullptr);
    }
    EXPECT_TRUE(machine_.announced());
    now_ += Settings{}.job_absent_grace;
    EXPECT_NE(find(step(SourceEventKind::kTimer), ActionKind::kQueryDomain), nullptr)
        << "it keeps asking";
    EXPECT_NE(find(report(DomainState::kRunning, JobState::kNone), ActionKind::kEndAnnouncement),
              nullptr);
    EXPECT_FALSE(machine_.announced());
    EXPECT_EQ(machine_.next_deadline(), std::nullopt);
}

TEST_F(Source, TheAttemptsOfOneJobAreOneMoveForAnOperator) {
    to_precopy();
    SourceEvent progress;
    progress.kind = SourceEventKind::kRoundProgress;
    progress.round = 1;
    progress.stats.bytes_changed = progress.stats.bytes_content = 100 * kBlockBytes;
    progress.stats.bytes_sent = 70;
    progress.stats.bytes_acknowledged = 50 * kBlockBytes;
    step(progress);
    const Progress before = machine_.progress();
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
        SourceEvent progress;
        progress.kind = SourceEventKind::kRoundProgress;
        progress.round = 1;
        progress.stats.bytes_changed = progress.stats.bytes_acknowledged = kBlockBytes;
        step(progress);
        EXPECT_GT(machine_.progress().percent, 60.0);
        receive(MsgAbort{"migration.withdrawn", ""}, id);
        SourceEvent report;
        report.kind = SourceEventKind::kDomain;
        report.domain = {DomainState::kPaused, job};  // An operator's pause counts as well.
        step(report);
        now_ += Settings{}.job_absent_grace;
        step(report);
        EXPECT_EQ(machine_.awaits_attempt(), job == JobState::kOutgoing);
        step(SourceEventKind::kGuestResumed);
        report.domain = {DomainState::kRunning, JobState::kNone};
        step(report);
        now_ += Settings{}.job_absent_grace;
        step(report);
        EXPECT_FALSE(machine_.awaits_attempt());
    }
}

TEST_F(Source, AnAbortOrTheJobsEndEndsTheMoveAtOnce) {
    for (const SourceEventKind kind :
         {SourceEventKind::kOperatorAbort, SourceEventKind::kJobFailed}) {
        to_precopy({4, static_cast<std::uint64_t>(kind)});
        const Actions ended = step(kind);
        EXPECT_NE(find(ended, ActionKind::kFinished), nullptr);
        EXPECT_FALSE(machine_.awaits_attempt());
    }
}

TEST_F(Source, AGuestThatLeftUnannouncedIsToldOf) {
    step(SourceEventKind::kGuestGone);
    const Actions begun = prepare();
    const Action* alert = find(begun, ActionKind::kAlert);
    ASSERT_NE(alert, nullptr);
    EXPECT_EQ(alert->error.reason, "migration.not_announced");
}

TEST_F(Source, ANewAttemptWhileTheGuestIsAwayKeepsTheAnnouncement) {
    to_frozen();
    step(SourceEventKind::kGuestGone);
    const Actions begun = prepare({5, 6});
    EXPECT_NE(find(begun, ActionKind::kDescribe), nullptr);
    EXPECT_EQ(find(begun, ActionKind::kEndAnnouncement), nullptr);
    EXPECT_EQ(find(begun, ActionKind::kAlert), nullptr);
    EXPECT_TRUE(machine_.announced());
}

TEST_F(Source, RestartEndsAnAnnouncementOnlyWithTheJob) {
    SourceEvent restarted;
    restarted.kind = SourceEventKind::kRestarted;
    restarted.record = {Epoch{7}, false, {}, {}};
    restarted.announced = true;
    step(restarted);
    SourceEvent domain;
    domain.kind = SourceEventKind::kDomain;
    domain.domain = {DomainState::kRunning, JobState::kNone};
    EXPECT_EQ(find(step(domain), ActionKind::kEndAnnouncement), nullptr);
    EXPECT_TRUE(machine_.next_deadline().has_value());
    now_ += Settings{}.job_absent_grace;
    EXPECT_NE(find(step(domain), ActionKind::kEndAnnouncement), nullptr);
}

TEST_F(Source, PausedArrivalIsGrantedOnlyWhenTheGuestIsGone) {
    const FreezeToken token = to_frozen();
    MsgGrantRequest paused = request(token);
    paused.evidence = ArrivalEvidence::kPausedArrival;
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(paused)));
    step(SourceEventKind::kGuestGone);
    EXPECT_NE(find(receive(paused), ActionKind::kPersistGrant), nullptr);
}

TEST_F(Source, AReturnedGrantIsTakenBackUnderAnEpochOfItsOwn) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(SourceEventKind::kGrantDurable);
    const Actions returned = receive(MsgGrantReturned{{8}});
    const Action* persist = find(returned, ActionKind::kPersistGrant);
    ASSERT_NE(persist, nullptr);
    EXPECT_EQ(persist->record->epoch.value, 9U);
    EXPECT_FALSE(persist->record->granted);
    EXPECT_FALSE(sends<MsgGrantRefused>(returned)) << "answered only once it is durable";
    EXPECT_FALSE(sends<MsgGrant>(receive(request(token)))) << "a late repeat";
    EXPECT_FALSE(machine_.serves());
    const Actions durable = step(SourceEventKind::kGrantDurable);
    EXPECT_TRUE(sends<MsgGrantRefused>(durable));
    ASSERT_NE(find(durable, ActionKind::kUnfence), nullptr);
    EXPECT_EQ(find(durable, ActionKind::kUnfence)->epoch.value, 9U);
    EXPECT_EQ(find(durable, ActionKind::kThaw), nullptr) << "only libvirt's word thaws";
    EXPECT_EQ(machine_.epoch().value, 9U);
    EXPECT_TRUE(sends<MsgGrantRefused>(receive(request(token)))) << "a late repeat";
    // Repeated: as a withdrawal, whose token the workers forget before it is answered.
    const Actions repeated = receive(MsgGrantReturned{{8}});
    ASSERT_NE(find(repeated, ActionKind::kFreeze), nullptr);
    SourceEvent frozen;
    frozen.kind = SourceEventKind::kFrozen;
    frozen.token = find(repeated, ActionKind::kFreeze)->token;
    EXPECT_TRUE(sends<MsgGrantRefused>(step(frozen)));
    EXPECT_NE(find(step(SourceEventKind::kGuestResumed), ActionKind::kThaw), nullptr);
    step(SourceEventKind::kThawed);
    EXPECT_TRUE(machine_.serves());
}

TEST_F(Source, ARequestFromBeforeAGrantCameBackIsNotGrantedAfterARestart) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(SourceEventKind::kGrantDurable);
    SourceEvent restarted;
    restarted.kind = SourceEventKind::kRestarted;
    restarted.record = *find(receive(MsgGrantReturned{{8}}), ActionKind::kPersistGrant)->record;
    restarted.frozen = token;
    machine_ = SourceMachine{"vm", Epoch{7}, Settings{}};
    step(restarted);
    SourceEvent domain;
    domain.kind = SourceEventKind::kDomain;
    domain.domain = {DomainState::kAbsent, JobState::kNone};
    step(domain);
    const MsgGrantRequest late{token, {}, {}};  // of a target that a restart let forget its epoch
    const Actions answer = receive(late);
    EXPECT_EQ(find(answer, ActionKind::kPersistGrant), nullptr);
    EXPECT_TRUE(sends<MsgGrantRefused>(answer));
}

TEST_F(Source, AGuestThatResumedAfterAFailedFreezeIsFrozenWhenItLeavesAgain) {
    to_precopy();
    finish_round(1);
    step(SourceEventKind::kGuestSuspended);
    SourceEvent failed;
    failed.kind = SourceEventKind::kFreezeFailed;
    failed.error = {Code::kDeadlineExceeded, "drain.timeout", "a kernel runs on"};
    step(failed);
    step(SourceEventKind::kGuestResumed);
    EXPECT_EQ(machine_.state(), SourceState::kPrecopy);
    EXPECT_NE(find(step(SourceEventKind::kGuestSuspended), ActionKind::kFreeze), nullptr);
}

TEST_F(Source, AGrantIsReturnedOnlyByTheMigrationThatHasIt) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(SourceEventKind::kGrantDurable);
    EXPECT_EQ(find(receive(MsgGrantReturned{{8}}, {3, 3}), ActionKind::kPersistGrant), nullptr);
    EXPECT_EQ(find(receive(MsgGrantReturned{{7}}), ActionKind::kPersistGrant), nullptr);
    EXPECT_EQ(machine_.state(), SourceState::kGranted);
    receive(MsgActivated{{8}});
    step(SourceEventKind::kReleased);
    EXPECT_TRUE(sends<MsgReleased>(receive(MsgGrantReturned{{8}}))) << "nothing is left here";
}

TEST_F(Source, AReturnedGrantWhoseStateIsGoneIsNotTakenBack) {
    const FreezeToken token = to_frozen();
    receive(request(token));
    step(SourceEventKind::kGrantDurable);
    step(SourceEventKind::kWorkerLost);
    const Actions returned = receive(MsgGrantReturned{{8}});
    EXPECT_EQ(find(returned, ActionKind::kPersistGrant), nullptr);
    EXPECT_NE(find(returned, ActionKind::kRelease), nullptr);
    const Actions released = step(SourceEventKind::kReleased);
    EXPECT_TRUE(sends<MsgReleased>(released));
    EXPECT_EQ(find(released, ActionKind::kFinished)->outcome, Outcome::kLost);
}

TEST_F(Source, AWorkerThatDiesInPrecopyEndsTheMoveAndTheSessionCanMoveAgain) {
    to_precopy();
    const Actions lost = step(SourceEventKind::kWorkerLost);
    EXPECT_TRUE(sends<MsgAbort>(lost));
    EXPECT_EQ(find(lost, ActionKind::kFinished)->error.reason, "session.worker_lost");
    EXPECT_EQ(machine_.state(), SourceState::kServing);
    EXPECT_TRUE(machine_.serves()) << "the session's other programs go on";
    to_precopy({3, 4});
}

TEST_F(Source, AWorkerThatDiesInTheFreezeTakesTheJobBackAndTheSessionCanMoveAgain) {
    to_precopy();
    finish_round(1);
    step(SourceEventKind::kGuestSuspended);
    ASSERT_EQ(machine_.state(), SourceState::kFreezing);
    const Actions lost = step(SourceEventKind::kWorkerLost);
    EXPECT_NE(find(lost, ActionKind::kAbortJob), nullptr);
    EXPECT_TRUE(sends<MsgAbort>(lost));
    SourceEvent failed;
    failed.kind = SourceEventKind::kFreezeFailed;
    failed.error = {Code::kUnavailable, "worker.gone", "process 1 has ended"};
    step(failed);
    EXPECT_EQ(machine_.state(), SourceState::kServing);
    step(SourceEventKind::kGuestResumed);
    EXPECT_TRUE(machine_.serves());
    to_precopy({3, 4});
}

TEST_F(Source, AWorkerThatDiesFrozenLeavesTheGrantToTheTarget) {
    const FreezeToken token = to_frozen();
    EXPECT_FALSE(sends<MsgAbort>(step(SourceEventKind::kWorkerLost)));
    EXPECT_EQ(machine_.state(), SourceState::kLost);
    EXPECT_TRUE(sends<MsgRefused>(prepare({3, 4})));
    EXPECT_NE(find(receive(request(token)), ActionKind::kPersistGrant), nullptr);
    EXPECT_TRUE(sends<MsgGrant>(step(SourceEventKind::kGrantDurable)));
}

TEST_F(Source, AWorkerThatDiedFrozenIsForgottenWhenTheGuestIsBack) {
    for (const bool is_told : {true, false}) {  // by the event, or when libvirt is asked
        machine_ = SourceMachine{"vm", Epoch{7}, Settings{}};
        const FreezeToken token = to_frozen();
        EXPECT_NE(find(step(SourceEventKind::kWorkerLost), ActionKind::kQueryDomain), nullptr);
        SourceEvent runs;
        runs.kind = is_told ? SourceEventKind::kGuestResumed : SourceEventKind::kDomain;
        runs.domain.domain = DomainState::kRunning;
        EXPECT_NE(find(step(runs), ActionKind::kThaw), nullptr) << "the other workers are frozen";
        EXPECT_EQ(find(receive(request(token)), ActionKind::kPersistGrant), nullptr);
        step(SourceEventKind::kThawed);
        EXPECT_EQ(machine_.state(), SourceState::kServing);
        EXPECT_TRUE(machine_.serves());
        EXPECT_EQ(find(receive(request(token)), ActionKind::kPersistGrant), nullptr);
        to_precopy({3, 4});
    }
}

TEST_F(Source, AWorkerThatDiedWhileGantrydWasAwayHoldsUpNothingOnceTheGuestRuns) {
    SourceEvent restarted;
    restarted.kind = SourceEventKind::kRestarted;
    restarted.record.epoch = Epoch{7};
    restarted.workers_alive = false;
    EXPECT_NE(find(step(restarted), ActionKind::kQueryDomain), nullptr);
    EXPECT_FALSE(machine_.serves());
    SourceEvent runs;
    runs.kind = SourceEventKind::kDomain;
    runs.domain.domain = DomainState::kRunning;
    EXPECT_NE(find(step(runs), ActionKind::kThaw), nullptr);
    step(SourceEventKind::kThawed);
    EXPECT_TRUE(machine_.serves());
    to_precopy();
}

TEST_F(Source, RefusesByPreflightWithTheSameFindingsWhenAskedAgain) {
    const MsgPrepare prepare{kEngineProtocolVersion, "vm", {}};
    receive(prepare);
    SourceEvent described;
    described.kind = SourceEventKind::kDescribed;
    described.needs = SessionNeeds{};
    EXPECT_TRUE(sends<MsgRefused>(step(described)));
    EXPECT_EQ(machine_.state(), SourceState::kServing);
    EXPECT_TRUE(sends<MsgRefused>(receive(prepare)));
}

}  // namespace
}  // namespace gantry::engine
