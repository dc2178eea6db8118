// A source that a test leads from step to step: what the peer, libvirt and the workers say goes in,
// and what the machine does about it comes back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "migration/engine/source_machine.h"

namespace gantry::engine {

inline constexpr MigrationId kId{1, 2};

/// What does not depend on who may take the session: source_ticket_test.cc has that.
inline Settings unbound() {
    Settings settings;
    settings.is_bound_to_hypervisor = false;
    return settings;
}

class Source : public testing::Test {
protected:
    SourceActions step(const SourceEvent& event) {
        now_ += Duration{1'000};
        return machine_.step(event, now_);
    }
    SourceActions receive(MessageBody body, MigrationId id = kId) {
        return step(source_event::Received{{id, std::move(body)}, {}});
    }
    template <typename A>
    static const A* find(const SourceActions& actions) {
        const auto it = std::find_if(actions.begin(), actions.end(), [](const SourceAction& one) {
            return std::holds_alternative<A>(one);
        });
        return it == actions.end() ? nullptr : &std::get<A>(*it);
    }
    template <typename T>
    static bool sends(const SourceActions& actions) {
        return std::any_of(actions.begin(), actions.end(), [](const SourceAction& one) {
            const auto* sent = std::get_if<action::Send>(&one);
            return sent != nullptr && std::holds_alternative<T>(sent->message.body);
        });
    }

    SourceActions prepare(MigrationId id = kId) {
        TargetCapabilities target;
        target.gpu_name = "gpu";
        target.cc = {9, 0};
        return receive(MsgPrepare{kEngineProtocolVersion, "vm", target}, id);
    }
    /// Up to the first round of precopy.
    void to_precopy(MigrationId id = kId) {
        prepare(id);
        source_event::Described described;
        described.needs = SessionNeeds{};
        step(described);
        receive(MsgReady{}, id);
        step(source_event::PrecopyBegun{});
        ASSERT_EQ(machine_.state(), SourceState::kPrecopy);
    }
    void finish_round(std::uint64_t round) {
        step(source_event::RoundSent{round, {}});
        receive(MsgRoundAck{round});
    }
    FreezeToken to_final_round() {
        to_precopy();
        finish_round(1);
        const SourceActions actions = step(source_event::GuestSuspended{});
        const FreezeToken token = find<action::Freeze>(actions)->token;
        step(source_event::Frozen{token});
        return token;
    }
    FreezeToken to_frozen() {
        const FreezeToken token = to_final_round();
        step(source_event::RoundSent{2, {}});
        step(source_event::CompleteSent{token});
        EXPECT_EQ(machine_.state(), SourceState::kFrozen);
        return token;
    }
    MsgGrantRequest request(FreezeToken token) const { return {token, {8}, {}}; }

    TimePoint now_{};
    SourceMachine machine_{"vm", Epoch{7}, unbound()};
};

}  // namespace gantry::engine
