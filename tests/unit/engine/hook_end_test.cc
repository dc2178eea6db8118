// When the target lets libvirt's hook end. The simulator (tests/sim) covers the rest.
#include "migration/engine/target_machine.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gantry::engine {
namespace {

constexpr MigrationId kMove{3, 4};

class HookEnd : public testing::Test {
protected:
    TargetActions step(const TargetEvent& event) {
        now_ += Duration{1'000};
        return machine_.step(event, now_);
    }
    TargetActions receive(MessageBody body) {
        return step(target_event::Received{{kMove, std::move(body)}});
    }
    static bool admits(const TargetActions& actions) {
        return std::any_of(actions.begin(), actions.end(), [](const TargetAction& one) {
            return std::holds_alternative<action::Admit>(one);
        });
    }
    /// The hook waits, and the first round is on its way.
    void to_receiving() {
        target_event::AdmissionAsked asked;
        asked.migration = kMove;
        asked.capabilities.gpu_name = "gpu";
        asked.capabilities.cc = {9, 0};
        step(asked);
        MsgOffer offer;
        offer.epoch = Epoch{7};
        receive(std::move(offer));
        step(target_event::Reserved{});
        ASSERT_EQ(machine_.state(), TargetState::kReceiving);
    }

    TargetMachine machine_{"vm", {}};
    TimePoint now_{};
};

TEST_F(HookEnd, WhenPrecopyHasConverged) {
    to_receiving();
    receive(MsgRoundEnd{1, 0});
    EXPECT_FALSE(admits(step(target_event::RoundApplied{1})));
    EXPECT_TRUE(admits(receive(MsgConverged{})));
}

// virsh migrate --timeout-suspend may pause the guest while the hook still waits: no round says
// that precopy has converged then, and every second of waiting is one of the pause.
TEST_F(HookEnd, WhenThePausedGuestsStateIsComplete) {
    to_receiving();
    const FreezeToken token{kMove, 1};
    receive(MsgRoundEnd{1, 0});
    EXPECT_FALSE(admits(receive(MsgComplete{token, 1, {}})));
    EXPECT_FALSE(admits(step(target_event::RoundApplied{1})));
    ASSERT_EQ(machine_.state(), TargetState::kApplying);
    EXPECT_TRUE(admits(step(target_event::Applied{token})));
    EXPECT_EQ(machine_.state(), TargetState::kComplete);
}

/// Time passes, up to `end`; all that the machine does meanwhile.
class HeldHook : public HookEnd {
protected:
    /// `end` of the time since the hook was asked.
    TargetActions wait_until(Duration end) {
        TargetActions all;
        while (machine_.next_deadline() && *machine_.next_deadline() <= end) {
            now_ = *machine_.next_deadline();
            for (TargetAction& one : machine_.step(target_event::Timer{}, now_)) {
                all.push_back(std::move(one));
            }
            for (TargetAction& one :
                 machine_.step(target_event::Received{{kMove, MsgAlive{}}}, now_)) {
                all.push_back(std::move(one));
            }
        }
        now_ = end;
        return all;
    }
    static const Error* refusal(const TargetActions& actions) {
        for (const TargetAction& one : actions) {
            if (const auto* refused = std::get_if<action::RefuseAdmission>(&one)) {
                return &refused->error;
            }
        }
        return nullptr;
    }
};

TEST_F(HeldHook, GoesOnWaitingForTheSourcesVerdictAndNotForEver) {
    to_receiving();
    receive(MsgRoundEnd{1, 0});
    step(target_event::RoundApplied{1});
    TargetActions actions = wait_until(Duration{279'000'000});
    EXPECT_FALSE(admits(actions)) << "whatever the pause would be";
    EXPECT_EQ(refusal(actions), nullptr);
    actions = wait_until(Duration{281'000'000});
    EXPECT_FALSE(admits(actions));
    ASSERT_NE(refusal(actions), nullptr);
    EXPECT_EQ(refusal(actions)->reason, "migration.not_converging");
}

TEST_F(HeldHook, TheSourcesRefusalIsTheHooks) {
    to_receiving();
    wait_until(Duration{40'000'000});
    const TargetActions actions = receive(MsgAbort{"migration.not_converging", "The pause ..."});
    ASSERT_NE(refusal(actions), nullptr);
    EXPECT_EQ(refusal(actions)->text, "The pause ...");
    EXPECT_EQ(machine_.state(), TargetState::kDiscarded);
}

TEST_F(HeldHook, WithoutABoundItEndsAsBefore) {
    Settings settings;
    settings.downtime_max = Duration{};
    machine_ = TargetMachine{"vm", settings};
    to_receiving();
    EXPECT_FALSE(admits(wait_until(Duration{24'000'000})));
    EXPECT_TRUE(admits(wait_until(Duration{26'000'000})));
}

}  // namespace
}  // namespace gantry::engine
