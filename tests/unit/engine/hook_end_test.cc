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

}  // namespace
}  // namespace gantry::engine
