// When the target lets libvirt's hook end. The simulator (tests/sim) covers the rest.
#include "migration/engine/target_machine.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gantry::engine {
namespace {

constexpr MigrationId kMove{3, 4};

class HookEnd : public testing::Test {
protected:
    Actions step(TargetEvent event) {
        now_ += Duration{1'000};
        return machine_.step(event, now_);
    }
    Actions receive(MessageBody body) {
        TargetEvent event;
        event.kind = TargetEventKind::kMessage;
        event.message = Message{kMove, std::move(body)};
        return step(std::move(event));
    }
    Actions tell(TargetEventKind kind, std::uint64_t round = 0, FreezeToken token = {}) {
        TargetEvent event;
        event.kind = kind;
        event.round = round;
        event.token = token;
        return step(std::move(event));
    }
    static bool has(const Actions& actions, ActionKind kind) {
        return std::any_of(actions.begin(), actions.end(),
                           [&](const Action& action) { return action.kind == kind; });
    }
    /// The hook waits, and the first round is on its way.
    void to_receiving() {
        TargetEvent asked;
        asked.kind = TargetEventKind::kAdmissionAsked;
        asked.migration = kMove;
        asked.capabilities = TargetCapabilities{};
        asked.capabilities->gpu_name = "gpu";
        asked.capabilities->cc = {9, 0};
        step(std::move(asked));
        MsgOffer offer;
        offer.epoch = Epoch{7};
        receive(std::move(offer));
        tell(TargetEventKind::kReserved);
        ASSERT_EQ(machine_.state(), TargetState::kReceiving);
    }

    TargetMachine machine_{"vm", {}};
    TimePoint now_{};
};

TEST_F(HookEnd, WhenPrecopyHasConverged) {
    to_receiving();
    receive(MsgRoundEnd{1, 0});
    EXPECT_FALSE(has(tell(TargetEventKind::kRoundApplied, 1), ActionKind::kAdmit));
    EXPECT_TRUE(has(receive(MsgConverged{}), ActionKind::kAdmit));
}

// virsh migrate --timeout-suspend may pause the guest while the hook still waits: no round says
// that precopy has converged then, and every second of waiting is one of the pause.
TEST_F(HookEnd, WhenThePausedGuestsStateIsComplete) {
    to_receiving();
    const FreezeToken token{kMove, 1};
    receive(MsgRoundEnd{1, 0});
    EXPECT_FALSE(has(receive(MsgComplete{token, 1, {}}), ActionKind::kAdmit));
    EXPECT_FALSE(has(tell(TargetEventKind::kRoundApplied, 1), ActionKind::kAdmit));
    ASSERT_EQ(machine_.state(), TargetState::kApplying);
    EXPECT_TRUE(has(tell(TargetEventKind::kApplied, 0, token), ActionKind::kAdmit));
    EXPECT_EQ(machine_.state(), TargetState::kComplete);
}

}  // namespace
}  // namespace gantry::engine
