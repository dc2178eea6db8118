// ChannelState: what a channel's commands need to go on after a move, beside the objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "host-daemon/execution/dispatch/mirror_state.h"
#include "host-daemon/execution/memory/pinned_writes.h"
#include "host-daemon/execution/process/error_ledger.h"
#include "host-daemon/execution/ring/callback_broker.h"
#include "host-daemon/execution/ring/reply_board.h"

namespace gantry::worker {

struct ChannelState {
    std::uint64_t next_position = 0;
    std::set<std::uint64_t> executed_ahead;
    std::vector<Answer> answers;
    std::vector<std::uint64_t> confirmed;
    std::optional<CallbackBroker::Parked> parked_callback;
    std::optional<CallbackBroker::Open> open_callback;  ///< The guest runs it meanwhile.
    std::vector<wire::CallbackReply> loose_callbacks;   ///< That it has not been given yet.
    ErrorLedger::OfLanes async_errors{};
    std::vector<std::byte> pending_output;
    std::uint32_t profile = 0;          ///< HostWords.profile
    std::int64_t frozen_unix_ns = 0;    ///< While profiled: when the freeze began.
    std::vector<PinnedBytes> pinned;    ///< What copies wrote and no stream of memory carries.
    std::optional<MirrorState> mirror;  ///< Of a guest over TCP.
};

}  // namespace gantry::worker
