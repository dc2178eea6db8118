#include "migration/engine/target_machine.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gantry::engine {
namespace {

/// True when a message that `is_it` holds for is among them.
template <typename Predicate>
bool sends(const TargetActions& actions, Predicate is_it) {
    return std::any_of(actions.begin(), actions.end(), [&](const TargetAction& one) {
        const auto* sent = std::get_if<action::Send>(&one);
        return sent != nullptr && is_it(sent->message.body);
    });
}

bool asks_for_grant(const TargetActions& actions) {
    return sends(actions, [](const MessageBody& body) {
        return std::holds_alternative<MsgGrantRequest>(body);
    });
}

TargetEvent message_event(MessageBody body) {
    return target_event::Received{{MigrationId{1, 2}, std::move(body)}};
}

TargetEvent restarted_with_complete_state() {
    target_event::Restarted event;
    event.migration = MigrationId{1, 2};
    event.complete = FreezeToken{{1, 2}, 3};
    return event;
}

TargetEvent domain_event(DomainState state) {
    return target_event::Domain{{state, JobState::kNone}};
}

TEST(RestartedTarget, AsksForTheGrantWhenItsGuestsEventComesBeforeLibvirtsAnswer) {
    for (const DomainState answer :
         {DomainState::kRunning, DomainState::kPaused, DomainState::kAbsent}) {
        TargetMachine target("s", Settings{});
        (void)target.step(restarted_with_complete_state(), TimePoint{1});
        EXPECT_FALSE(
            asks_for_grant(target.step(target_event::GuestResumedMigrated{}, TimePoint{2})));
        EXPECT_TRUE(asks_for_grant(target.step(domain_event(answer), TimePoint{3})));
        EXPECT_EQ(target.state(), TargetState::kRequesting);
    }
}

TEST(RestartedTarget, LetsGoWhenItsGuestIsNotHere) {
    TargetMachine target("s", Settings{});
    (void)target.step(restarted_with_complete_state(), TimePoint{1});
    EXPECT_FALSE(asks_for_grant(target.step(domain_event(DomainState::kAbsent), TimePoint{2})));
    EXPECT_EQ(target.state(), TargetState::kWithdrawing);
}

/// `step` feeds a fresh target, which is then ready for what the source sends.
template <typename Step>
void begin_to_receive(const Step& step) {
    target_event::AdmissionAsked asked;
    asked.migration = MigrationId{1, 2};
    asked.capabilities.gpu_name = "gpu";
    asked.capabilities.cc = {9, 0};
    (void)step(asked);
    (void)step(message_event(MsgOffer{kEngineProtocolVersion, Epoch{7}, {}, {}, {}}));
    (void)step(target_event::Reserved{});
}

/// Its guest is here already, so that anything else would be tried again.
TEST(Target, ThatIsRefusedByNameAsksNoMore) {
    const auto outcome_of = [](const MessageBody& answer, bool is_requesting) {
        TargetMachine target("s", Settings{});
        std::int64_t now = 0;
        const auto step = [&](const TargetEvent& event) {
            return target.step(event, TimePoint{++now});
        };
        begin_to_receive(step);
        (void)step(target_event::GuestResumedMigrated{});
        if (is_requesting) {
            (void)step(message_event(MsgComplete{FreezeToken{{1, 2}, 1}, 0, {}}));
            (void)step(target_event::Applied{FreezeToken{{1, 2}, 1}});
            EXPECT_EQ(target.state(), TargetState::kRequesting);
        }
        for (const TargetAction& one : step(message_event(answer))) {
            if (const auto* finished = std::get_if<action::Finished>(&one)) {
                return finished->outcome;
            }
        }
        return Outcome::kNone;
    };
    for (const char* reason :
         {"peer.ticket", "migration.other_target", "migration.no_outgoing_job"}) {
        EXPECT_EQ(outcome_of(MsgAbort{reason, ""}, false), Outcome::kRefused) << reason;
        EXPECT_EQ(outcome_of(MsgGrantRefused{reason, "", true}, true), Outcome::kRefused) << reason;
    }
    EXPECT_EQ(outcome_of(MsgAbort{"migration.superseded", ""}, false), Outcome::kRetry);
}

TEST(Target, GivesUpWhatWouldFailAgainAndAsksForTheRest) {
    for (const Code code : {Code::kFailedPrecondition, Code::kDataLoss}) {
        TargetMachine target("s", Settings{});
        std::int64_t now = 0;
        const auto step = [&](const TargetEvent& event) {
            return target.step(event, TimePoint{++now});
        };
        begin_to_receive(step);
        ASSERT_EQ(target.state(), TargetState::kReceiving);
        const TargetActions actions = step(target_event::RoundLost{
            1, {code, "module.globals.not_movable", "a variable lies elsewhere"}});
        const bool aborts = sends(actions, [](const MessageBody& body) {
            const auto* abort = std::get_if<MsgAbort>(&body);
            return abort != nullptr && abort->reason == "module.globals.not_movable";
        });
        const bool asks_again = sends(actions, [](const MessageBody& body) {
            return std::holds_alternative<MsgRoundLost>(body);
        });
        EXPECT_EQ(aborts, code == Code::kFailedPrecondition);
        EXPECT_EQ(asks_again, code == Code::kDataLoss);
        EXPECT_EQ(target.state() == TargetState::kReceiving, asks_again);
    }
}

TEST(Target, TakesNoStateThatItWasToldIsVoid) {
    TargetMachine target("s", Settings{});
    std::int64_t now = 0;
    const auto step = [&](const TargetEvent& event) {
        return target.step(event, TimePoint{++now});
    };
    const auto applies = [&](std::uint64_t count) {
        const TargetActions actions =
            step(message_event(MsgComplete{FreezeToken{{1, 2}, count}, 0, {}}));
        return std::any_of(actions.begin(), actions.end(), [](const TargetAction& one) {
            return std::holds_alternative<action::ApplyComplete>(one);
        });
    };
    begin_to_receive(step);
    ASSERT_EQ(target.state(), TargetState::kReceiving);
    (void)step(message_event(MsgThawed{FreezeToken{{1, 2}, 2}}));
    EXPECT_FALSE(applies(1));
    EXPECT_FALSE(applies(2)) << "overtaken by the word that it is void";
    EXPECT_TRUE(applies(3));
}

TEST(Target, AStateThatCannotBeAppliedIsSaidAndAnotherOneTaken) {
    TargetMachine target("s", Settings{});
    std::int64_t now = 0;
    const auto step = [&](const TargetEvent& event) {
        return target.step(event, TimePoint{++now});
    };
    const auto fails = [&](FreezeToken token) {
        target_event::ApplyFailed failed;
        failed.token = token;
        failed.error = {Code::kDataLoss, "state.digest", "other bytes"};
        return sends(step(failed), [&](const MessageBody& body) {
            const auto* said = std::get_if<MsgVerifyFailed>(&body);
            return said != nullptr && said->token == token && said->detail == "other bytes";
        });
    };
    const FreezeToken first{{1, 2}, 1};
    const FreezeToken second{{1, 2}, 2};
    begin_to_receive(step);
    EXPECT_FALSE(fails(first)) << "nothing is being applied";
    const TargetActions begun = step(message_event(MsgComplete{first, 0, {}}));
    ASSERT_EQ(target.state(), TargetState::kApplying);
    EXPECT_TRUE(std::none_of(begun.begin(), begun.end(), [](const TargetAction& one) {
        return std::holds_alternative<action::UnmarkComplete>(one);
    })) << "none was complete before";
    EXPECT_FALSE(fails(second)) << "another is";
    EXPECT_TRUE(fails(first));
    EXPECT_EQ(target.state(), TargetState::kReceiving);
    (void)step(message_event(MsgComplete{second, 0, {}}));
    (void)step(target_event::Applied{second});
    EXPECT_EQ(target.state(), TargetState::kComplete);
}

TEST(Target, TellsWhatTheSourcesHeartbeatSaysIsLeft) {
    TargetMachine target("s", Settings{});
    std::int64_t now = 0;
    const auto step = [&](const TargetEvent& event) {
        return target.step(event, TimePoint{++now});
    };
    begin_to_receive(step);
    (void)step(message_event(MsgAlive{12'345}));
    EXPECT_EQ(target.progress().bytes_remaining, 12'345U);
    (void)step(message_event(MsgAlive{}));
    EXPECT_EQ(target.progress().bytes_remaining, 12'345U) << "nothing was said of it";
    const FreezeToken token{{1, 2}, 1};
    (void)step(message_event(MsgComplete{token, 0, {}}));
    (void)step(target_event::Applied{token});
    (void)step(message_event(MsgAlive{777}));
    EXPECT_EQ(target.progress().bytes_remaining, 0U) << "all of it is here";
}

/// A target whose source has offered the session; the hook of libvirt's waits.
class OfferedTarget : public testing::Test {
protected:
    static constexpr FreezeToken kFrozen{{1, 2}, 1};

    void SetUp() override {
        target_event::AdmissionAsked asked;
        asked.migration = MigrationId{1, 2};
        asked.capabilities.gpu_name = "gpu";
        asked.capabilities.cc = {9, 0};
        step(asked);
        receive(MsgOffer{kEngineProtocolVersion, Epoch{7}, {}, {}, {}});
        ASSERT_EQ(machine_.state(), TargetState::kReserving);
    }
    TargetActions step(const TargetEvent& event) {
        now_ += Duration{1'000};
        return machine_.step(event, now_);
    }
    TargetActions receive(MessageBody body) { return step(message_event(std::move(body))); }
    TargetActions after(Duration time) {
        now_ += time;
        return step(target_event::Timer{});
    }
    template <typename A>
    static const A* find(const TargetActions& actions) {
        const auto it = std::find_if(actions.begin(), actions.end(), [](const TargetAction& one) {
            return std::holds_alternative<A>(one);
        });
        return it == actions.end() ? nullptr : &std::get<A>(*it);
    }
    template <typename T>
    static bool says(const TargetActions& actions) {
        return sends(actions,
                     [](const MessageBody& body) { return std::holds_alternative<T>(body); });
    }
    /// The state of the first freeze is complete here, behind the first round.
    void to_complete() {
        step(target_event::Reserved{});
        receive(MsgRoundEnd{1, 0});
        step(target_event::RoundApplied{1});
        receive(MsgComplete{kFrozen, 1, {}});
        step(target_event::Applied{kFrozen});
        ASSERT_EQ(machine_.state(), TargetState::kComplete);
    }
    void to_requesting() {
        to_complete();
        ASSERT_TRUE(asks_for_grant(step(target_event::GuestResumedMigrated{})));
    }

    TargetMachine machine_{"s", Settings{}};
    TimePoint now_{};
};

TEST_F(OfferedTarget, AReservationThatTakesTooLongEndsTheMove) {
    const TargetActions late = after(Settings{}.describe_deadline);
    ASSERT_NE(find<action::RefuseAdmission>(late), nullptr);
    EXPECT_EQ(find<action::RefuseAdmission>(late)->error.reason, "network.unreachable");
    EXPECT_TRUE(says<MsgAbort>(late));
    EXPECT_EQ(machine_.state(), TargetState::kDiscarded);
}

TEST_F(OfferedTarget, AReservationThatTakesTooLongIsWaitedForOnceTheGuestIsComing) {
    step(target_event::GuestStarting{});
    const TargetActions late = after(Settings{}.describe_deadline);
    ASSERT_NE(find<action::Alert>(late), nullptr);
    EXPECT_EQ(machine_.state(), TargetState::kReserving);
}

TEST_F(OfferedTarget, AStateOfAnOlderRoundThanTheLastIsNotApplied) {
    step(target_event::Reserved{});
    receive(MsgComplete{kFrozen, 2, {}});
    EXPECT_EQ(find<action::ApplyComplete>(step(target_event::RoundApplied{3})), nullptr)
        << "it was sent again, and so will the state be";
    EXPECT_EQ(machine_.state(), TargetState::kReceiving);
    EXPECT_NE(find<action::ApplyComplete>(receive(MsgComplete{kFrozen, 3, {}})), nullptr);
}

TEST_F(OfferedTarget, ARoundsEndFindsTheStateVerifiedOnlyWhereItIs) {
    step(target_event::Reserved{});
    receive(MsgComplete{kFrozen, 0, {}});
    ASSERT_EQ(machine_.state(), TargetState::kApplying);
    EXPECT_TRUE(receive(MsgRoundEnd{1, 0}).empty()) << "not yet";
    step(target_event::Applied{kFrozen});
    ASSERT_EQ(machine_.state(), TargetState::kComplete);
    EXPECT_TRUE(says<MsgVerified>(receive(MsgRoundEnd{1, 0}))) << "the source has not heard it";
}

TEST_F(OfferedTarget, AGuestThatArrivesPausedIsFoundByAskingLibvirt) {
    EXPECT_FALSE(machine_.guest_is_here());
    step(domain_event(DomainState::kPaused));
    EXPECT_FALSE(machine_.guest_is_here()) << "it was not let in: it waits for its memory";
    to_complete();
    const TargetActions paused = step(domain_event(DomainState::kPaused));
    EXPECT_TRUE(sends(paused, [](const MessageBody& body) {
        const auto* request = std::get_if<MsgGrantRequest>(&body);
        return request != nullptr && request->evidence == ArrivalEvidence::kPausedArrival;
    }));
}

TEST_F(OfferedTarget, AWorkersDeathEndsTheMoveOnlyWhileTheGuestIsNotComing) {
    const auto outcome_of_death = [&] {
        const TargetActions lost = step(target_event::WorkerLost{});
        const auto* finished = find<action::Finished>(lost);
        EXPECT_EQ(machine_.state(), TargetState::kDiscarded);
        return finished == nullptr ? Outcome::kNone : finished->outcome;
    };
    step(target_event::Reserved{});
    EXPECT_EQ(outcome_of_death(), Outcome::kRolledBack) << "libvirt's hook refuses the guest";
    machine_ = TargetMachine{"s", Settings{}};
    SetUp();
    step(target_event::Reserved{});
    receive(MsgConverged{});
    EXPECT_EQ(outcome_of_death(), Outcome::kRetry) << "it was let in";
    machine_ = TargetMachine{"s", Settings{}};
    SetUp();
    step(target_event::Reserved{});
    step(target_event::GuestStarting{});
    EXPECT_EQ(outcome_of_death(), Outcome::kRetry) << "it is coming";
}

TEST_F(OfferedTarget, ServesNothingBeforeItsRecordIsDurable) {
    to_requesting();
    const TargetActions granted = receive(MsgGrant{kFrozen, Epoch{8}});
    EXPECT_NE(find<action::PersistOwned>(granted), nullptr);
    EXPECT_EQ(find<action::Activate>(granted), nullptr);
    EXPECT_EQ(find<action::Activate>(step(domain_event(DomainState::kRunning))), nullptr);
    const TargetActions durable = step(target_event::OwnedDurable{});
    ASSERT_NE(find<action::Activate>(durable), nullptr);
    EXPECT_EQ(find<action::Activate>(durable)->epoch.value, 8U);
}

TEST_F(OfferedTarget, NothingIsActivatedThatIsInServiceAlready) {
    to_requesting();
    receive(MsgGrant{kFrozen, Epoch{8}});
    step(target_event::OwnedDurable{});
    target_event::ActivateFailed failed;
    EXPECT_NE(find<action::Activate>(step(failed)), nullptr) << "the second attempt, at once";
    EXPECT_TRUE(says<MsgActivated>(step(target_event::Activated{})));
    step(failed);  // Of the first attempt, and late.
    EXPECT_EQ(find<action::Activate>(step(domain_event(DomainState::kRunning))), nullptr);
    EXPECT_EQ(machine_.state(), TargetState::kServing);
}

TEST_F(OfferedTarget, WhoseSourceIsFencedOffTakesWhatIsComplete) {
    to_requesting();
    step(target_event::OperatorAbort{});
    ASSERT_EQ(machine_.state(), TargetState::kWithdrawing) << "a grant may be on its way";
    EXPECT_NE(find<action::PersistOwned>(step(target_event::OperatorFenced{})), nullptr);
    EXPECT_EQ(machine_.state(), TargetState::kActivating);
}

TEST(RestartedTarget, TakesNothingBeforeLibvirtHasSaidWhereItsGuestIs) {
    TargetMachine target("s", Settings{});
    (void)target.step(restarted_with_complete_state(), TimePoint{1});
    (void)target.step(target_event::GuestResumedMigrated{}, TimePoint{2});
    EXPECT_TRUE(target.step(target_event::OperatorFenced{}, TimePoint{3}).empty());
    EXPECT_EQ(target.state(), TargetState::kRecovering);
}

}  // namespace
}  // namespace gantry::engine
