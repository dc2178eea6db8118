#include "migration/engine/target_machine.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gantry::engine {
namespace {

bool asks_for_grant(const Actions& actions) {
    return std::any_of(actions.begin(), actions.end(), [](const Action& action) {
        return action.message && std::holds_alternative<MsgGrantRequest>(action.message->body);
    });
}

TargetEvent target_event(TargetEventKind kind) {
    TargetEvent event;
    event.kind = kind;
    return event;
}

TargetEvent message_event(MessageBody body) {
    TargetEvent event = target_event(TargetEventKind::kMessage);
    event.message = Message{MigrationId{1, 2}, std::move(body)};
    return event;
}

TargetEvent restarted_with_complete_state() {
    TargetEvent event = target_event(TargetEventKind::kRestarted);
    event.migration = MigrationId{1, 2};
    event.complete = FreezeToken{{1, 2}, 3};
    return event;
}

TargetEvent domain_event(DomainState state) {
    TargetEvent event = target_event(TargetEventKind::kDomain);
    event.domain = {state, JobState::kNone};
    return event;
}

TEST(RestartedTarget, AsksForTheGrantWhenItsGuestsEventComesBeforeLibvirtsAnswer) {
    for (const DomainState answer :
         {DomainState::kRunning, DomainState::kPaused, DomainState::kAbsent}) {
        TargetMachine target("s", Settings{});
        (void)target.step(restarted_with_complete_state(), TimePoint{1});
        EXPECT_FALSE(asks_for_grant(
            target.step(target_event(TargetEventKind::kGuestResumedMigrated), TimePoint{2})));
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
    TargetEvent asked = target_event(TargetEventKind::kAdmissionAsked);
    asked.migration = MigrationId{1, 2};
    asked.capabilities.emplace().gpu_name = "gpu";
    asked.capabilities->cc = {9, 0};
    (void)step(asked);
    (void)step(message_event(MsgOffer{kEngineProtocolVersion, Epoch{7}, {}, {}, {}}));
    (void)step(target_event(TargetEventKind::kReserved));
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
        TargetEvent lost = target_event(TargetEventKind::kRoundLost);
        lost.round = 1;
        lost.error = {code, "module.globals.not_movable", "a variable lies elsewhere"};
        const Actions actions = step(lost);
        const auto says = [&](auto is_it) {
            return std::any_of(actions.begin(), actions.end(), [&](const Action& action) {
                return action.message && is_it(action.message->body);
            });
        };
        const bool aborts = says([](const MessageBody& body) {
            const auto* abort = std::get_if<MsgAbort>(&body);
            return abort != nullptr && abort->reason == "module.globals.not_movable";
        });
        const bool asks_again = says(
            [](const MessageBody& body) { return std::holds_alternative<MsgRoundLost>(body); });
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
        const Actions actions = step(message_event(MsgComplete{FreezeToken{{1, 2}, count}, 0, {}}));
        return std::any_of(actions.begin(), actions.end(), [](const Action& action) {
            return action.kind == ActionKind::kApplyComplete;
        });
    };
    begin_to_receive(step);
    ASSERT_EQ(target.state(), TargetState::kReceiving);
    (void)step(message_event(MsgThawed{FreezeToken{{1, 2}, 2}}));
    EXPECT_FALSE(applies(1));
    EXPECT_FALSE(applies(2)) << "overtaken by the word that it is void";
    EXPECT_TRUE(applies(3));
}

}  // namespace
}  // namespace gantry::engine
