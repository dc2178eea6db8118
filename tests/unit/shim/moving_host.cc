#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "host-daemon/execution/ring/reply_board.h"
#include "proto/base/assert.h"
#include "proto/base/packet.h"
#include "proto/wire/attach.h"
#include "proto/wire/ring.h"
#include "tests/unit/shim/moving_rig.h"

namespace gantry::test {
namespace {

MovingRig* g_host_rig = nullptr;
std::byte* g_watched = nullptr;  ///< The region as this host has it mapped.

void note_host_write(int, siginfo_t* info, void*) {
    auto* const at = static_cast<std::byte*>(info->si_addr);
    if (at < g_watched || at >= g_watched + kMovedBytes) {
        _exit(3);
    }
    const auto page = static_cast<std::size_t>(at - g_watched) / wire::kPageBytes;
    g_host_rig->host_dirty[page].store(true);
    mprotect(g_watched + page * wire::kPageBytes, wire::kPageBytes, PROT_READ | PROT_WRITE);
}

class MovedHost {
public:
    MovedHost(MovingRig* rig, int region) : rig_(rig) {
        worker::ChannelMemory::Where where;
        where.region_bytes = kMovedBytes;
        auto memory = worker::ChannelMemory::map(control::UniqueFd(dup(region)), where);
        GANTRY_ASSERT(memory.ok(), "%s", memory.error().text.c_str());
        memory_ = std::move(memory).value();
        board_.attach(memory_.get());
    }

    /// As gantryd and a worker do for a program that comes.
    void hand_out(int region, int listener) {
        rig_->serving.store(true);
        const int link = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        wire::AttachRequest request;
        GANTRY_ASSERT(recv(link, &request, sizeof(request), 0) == sizeof(request), "attach");
        wire::AttachReply reply;
        reply.accepted = 1;
        reply.wire_version = wire::kWireVersion;
        reply.region_bytes = kMovedBytes;
        GANTRY_ASSERT(send_packet_with(link, &reply, sizeof(reply), &region, 1) == sizeof(reply),
                      "attach");
        wire::ChannelClaim& claim = memory_->guest_directory().claims[0];
        while (claim.state.load() != wire::ClaimState::kOpen) {
            usleep(200);
        }
        const std::uint64_t start = claim.generation << wire::kGenerationShift;
        memory_->host_words().head.store(start);
        memory_->host_words().worker_state.store(wire::WorkerState::kRunning);
        consumer_.attach(memory_->ring(), memory_->layout().ring_bytes, start);
        wire::HostChannel& served = memory_->host_directory().channels[0];
        served.state.store(wire::ServeState::kServing);
        served.generation.store(claim.generation);
    }

    /// In the order of Execution::take_over().
    void take_over() {
        CarriedState& carried = rig_->carried;
        std::vector<worker::Answer> answers;
        for (std::uint32_t i = 0; i < carried.answer_count; ++i) {
            const CarriedState::Kept& kept = carried.answers[i];
            answers.push_back(answer_of(kept.lane, kept.position, kept.value));
        }
        GANTRY_ASSERT(board_.load(answers, carried.confirmed).ok(), "load");
        for (std::uint32_t lane = 0; lane < wire::kLaneCount; ++lane) {
            counts_[lane] = carried.counts[lane];
            if (carried.left[lane] != 0) {
                write_word(carried.left[lane], counts_[lane]);
                words_[lane] = carried.left[lane];
            }
        }
        wire::HostWords& words = memory_->host_words();
        words.epoch.fetch_add(1);
        words.announce.store((words.announce.load() + 1) & ~1u);
        words.head.store(carried.next_position);
        board_.republish();
        words.worker_state.store(wire::WorkerState::kRunning);
        consumer_.attach(memory_->ring(), memory_->layout().ring_bytes, carried.next_position);
        rig_->serving.store(true);
    }

    [[noreturn]] void serve() {
        for (;;) {
            obey();
            wire::CommandView view;
            const char* reason = nullptr;
            if (rig_->frozen.load() || consumer_.peek(&view, &reason) != wire::PeekStatus::kReady) {
                GANTRY_ASSERT(reason == nullptr, "%s", reason);
                usleep(50);
                continue;
            }
            if (rig_->held.load()) {
                rig_->pending.store(true);
                usleep(50);
                continue;
            }
            execute(view);
        }
    }

private:
    static worker::Answer answer_of(std::uint32_t lane, std::uint64_t position,
                                    std::uint64_t value) {
        worker::Answer answer;
        answer.lane = lane;
        answer.position = position;
        const auto bytes = std::as_bytes(std::span(&value, 1));
        answer.payload.assign(bytes.begin(), bytes.end());
        return answer;
    }

    void publish(const worker::Answer& answer) { board_.publish(answer, answer.payload); }

    void write_word(std::uint64_t address, std::uint64_t value) {
        GANTRY_ASSERT(memory_->pinned_contains(address, sizeof(value)), "not page-locked");
        std::memcpy(reinterpret_cast<void*>(address), &value, sizeof(value));
    }

    void execute(const wire::CommandView& view) {
        const std::vector<std::byte> args(view.args, view.args + view.args_bytes);
        consumer_.advance(view);
        memory_->host_words().head.store(consumer_.next(), std::memory_order_release);
        if (view.op == kMovedOp) {
            MovedCall call;
            std::memcpy(&call, args.data(), sizeof(call));
            write_word(call.word, ++counts_[view.lane]);
            words_[view.lane] = call.word;
            publish(answer_of(view.lane, view.position, counts_[view.lane]));
            rig_->answered.fetch_add(1);
            return;
        }
        worker::Answer answer = answer_of(view.lane, view.position, 0);
        switch (static_cast<wire::ControlOp>(view.op)) {
            case wire::ControlOp::kConfirm:
                words_[view.lane] = 0;
                board_.confirm(view.lane, view.position);
                return;
            case wire::ControlOp::kHello: {
                const wire::HelloReply reply{wire::kWireVersion, 13000, 0x1234, 1, 0};
                const auto bytes = std::as_bytes(std::span(&reply, 1));
                answer.payload.assign(bytes.begin(), bytes.end());
                break;
            }
            case wire::ControlOp::kDeviceFacts: {
                wire::DeviceFactsCall call;
                std::memcpy(&call, args.data(), sizeof(call));
                answer.bulk_offset = call.bulk_offset;
                answer.bulk_bytes = sizeof(wire::DeviceFacts);
                std::memset(memory_->bulk(call.bulk_offset, answer.bulk_bytes).data(), 0,
                            answer.bulk_bytes);
                break;
            }
            default: return;  // kWaitCallback stays parked; posts have no answer.
        }
        publish(answer);
    }

    void obey() {
        wire::HostWords& words = memory_->host_words();
        if (rig_->announced.load() != rig_->announced_done.load()) {
            words.announce.fetch_add(1);
            rig_->announced_done.store(rig_->announced.load());
        }
        if (rig_->watch.load() && !rig_->watching.load()) {
            watch();
        }
        if (rig_->freeze.load() && !rig_->frozen.load()) {
            carry();
            rig_->frozen.store(true);
        }
        if (rig_->disown.load() && !rig_->disowned.load()) {
            words.worker_state.store(wire::WorkerState::kDisowned);
            rig_->disowned.store(true);
        }
    }

    void watch() {
        g_host_rig = rig_;
        g_watched = reinterpret_cast<std::byte*>(&memory_->guest_directory());
        struct sigaction action {};
        action.sa_sigaction = note_host_write;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &action, nullptr);
        mprotect(g_watched, kMovedBytes, PROT_READ);
        rig_->watching.store(true);
    }

    void carry() {
        CarriedState& carried = rig_->carried;
        carried.next_position = consumer_.next();
        carried.answer_count = 0;
        for (const worker::Answer& answer : board_.log()) {
            std::uint64_t value = 0;
            std::memcpy(&value, answer.payload.data(),
                        std::min(sizeof(value), answer.payload.size()));
            carried.answers[carried.answer_count++] = {answer.position, answer.lane, value};
        }
        const auto confirmed = board_.confirmed();
        for (std::uint32_t lane = 0; lane < wire::kLaneCount; ++lane) {
            carried.confirmed[lane] = confirmed[lane];
            carried.counts[lane] = counts_[lane];
            carried.left[lane] = words_[lane];
        }
    }

    MovingRig* rig_;
    std::unique_ptr<worker::ChannelMemory> memory_;
    worker::ReplyBoard board_;
    wire::RingConsumer consumer_;
    std::uint64_t counts_[wire::kLaneCount] = {};
    std::uint64_t words_[wire::kLaneCount] = {};  ///< Of the last call; 0 once confirmed.
};

}  // namespace

void run_moved_host(MovingRig* rig, int region, int listener) {
    MovedHost host(rig, region);
    if (listener >= 0) {
        host.hand_out(region, listener);
    } else {
        host.take_over();
    }
    host.serve();
}

}  // namespace gantry::test
