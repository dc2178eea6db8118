#include "host-daemon/execution/process/guest_channel.h"

#include <algorithm>
#include <span>
#include <utility>

namespace gantry::worker {

GuestChannel::GuestChannel(Device& device, OutputCapture& output_in)
    : output(output_in),
      event_board(device),
      callbacks(
          [this](const CallbackBroker::Parked& parked, const wire::CallbackReply& reply) {
              AnswerHead answer;
              answer.position = parked.position;
              answer.lane = parked.lane;
              replies.publish(answer, std::as_bytes(std::span(&reply, 1)));
          },
          [this] { help_callbacks(); }) {}

void GuestChannel::open(std::unique_ptr<ChannelMemory> memory) {
    memory_ = std::move(memory);
    replies.attach(memory_.get());
}

void GuestChannel::set_program(GuestProgram program) {
    program.name.resize(std::min(program.name.size(), sizeof(wire::HelloCall::program)));
    const auto is_hidden = [](char c) { return c < ' ' || c > '~'; };
    std::replace_if(program.name.begin(), program.name.end(), is_hidden, '?');
    const MutexLock lock(program_mutex_);
    program_ = std::move(program);
}

GuestProgram GuestChannel::program() const {
    const MutexLock lock(program_mutex_);
    return program_;
}

}  // namespace gantry::worker
