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

}  // namespace
}  // namespace gantry::engine
