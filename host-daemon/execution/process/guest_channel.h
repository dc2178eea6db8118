// GuestChannel: the region that one guest process shares with this worker, and what is told and
// asked through it.
//
// Owner: GuestProcess. Threads: open(), close() and the hooks' owner: the control thread, while no
// command is executed; the members as their headers say.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/ring/callback_broker.h"
#include "host-daemon/execution/ring/channel_memory.h"
#include "host-daemon/execution/ring/event_board.h"
#include "host-daemon/execution/ring/output_capture.h"
#include "host-daemon/execution/ring/profile_board.h"
#include "host-daemon/execution/ring/reply_board.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

/// The guest's process, for people.
struct GuestProgram {
    std::uint32_t pid = 0;  ///< Its number in the guest; 0: not known.
    std::string name;
};

class GuestChannel {
public:
    GuestChannel(Device& device, OutputCapture& output_in);
    GuestChannel(const GuestChannel&) = delete;
    GuestChannel& operator=(const GuestChannel&) = delete;

    [[nodiscard]] ChannelMemory* memory() const { return memory_.get(); }
    [[nodiscard]] bool is_open() const { return memory_ != nullptr; }
    void open(std::unique_ptr<ChannelMemory> memory);
    /// Gives the region back.
    std::unique_ptr<ChannelMemory> close() { return std::move(memory_); }

    /// Replaces what a terminal cannot show in the name, and cuts it to the length that a hello has
    /// room for.
    void set_program(GuestProgram program);
    [[nodiscard]] GuestProgram program() const;

    OutputCapture& output;
    ReplyBoard replies;
    EventBoard event_board;
    ProfileBoard profile;
    CallbackBroker callbacks;

    /// The guest has said that it ends.
    std::function<void()> on_goodbye;
    /// Is called now and then while the guest runs a callback (CommandLoop::help_callbacks).
    std::function<void()> help_callbacks;

private:
    std::unique_ptr<ChannelMemory> memory_;
    mutable Mutex program_mutex_;
    GuestProgram program_ GANTRY_GUARDED_BY(program_mutex_);
};

}  // namespace gantry::worker
