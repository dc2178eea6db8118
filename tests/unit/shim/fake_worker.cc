#include "tests/unit/shim/fake_worker.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>

#include "guest-shim/session/connection.h"
#include "proto/base/assert.h"
#include "proto/base/packet.h"
#include "proto/wire/wait.h"

// Of the shim's driver half, which these tests do without: FakeWorker::hello_hash by default.
namespace gantry::session {
std::uint64_t table_hash() noexcept { return 0x1234; }
}  // namespace gantry::session

namespace gantry::test {

FakeWorker::FakeWorker() {
    on_call = [](FakeWorker& worker, const Seen& command) { worker.answer(command, 0); };
}

FakeWorker::~FakeWorker() {
    stop_ = true;
    if (thread_.joinable()) {
        thread_.join();
    }
    unlink(path_.c_str());
}

void FakeWorker::start() {
    path_ = "/tmp/gantry-shim-test-" + std::to_string(getpid()) + (by_file ? ".region" : ".sock");
    unlink(path_.c_str());
    setenv("GANTRY_TRANSPORT", ((by_file ? "file:" : "unix:") + path_).c_str(), 1);
    make_region();
    if (!by_file) {
        make_listener();
    }
    thread_ = std::thread([this] { serve(); });
}

void FakeWorker::make_listener() {
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    GANTRY_ASSERT(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0,
                  "bind %s", path_.c_str());
    GANTRY_ASSERT(listen(listener_, 1) == 0, "listen");
}

void FakeWorker::make_region() {
    memfd_ = by_file ? open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
                     : memfd_create("gantry-test-region", MFD_CLOEXEC);
    const auto bytes = static_cast<off_t>(region_bytes);
    GANTRY_ASSERT(ftruncate(memfd_, bytes) == 0, "ftruncate");
    region_ = static_cast<std::byte*>(
        mmap(nullptr, region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_, 0));
    guest_directory_ = reinterpret_cast<wire::GuestDirectory*>(region_);
    host_directory_ = reinterpret_cast<wire::HostDirectory*>(region_ + wire::kPageBytes);
    if (!by_file) {
        find_words(1);
    }
}

void FakeWorker::find_words(std::uint32_t channels) {
    GANTRY_ASSERT(wire::compute_layout(region_bytes, channels, 0, &layout_), "layout");
    guest_ = reinterpret_cast<wire::GuestWords*>(region_ + layout_.guest_words);
    host_ = reinterpret_cast<wire::HostWords*>(region_ + layout_.host_words);
    replies_ = reinterpret_cast<wire::ReplyPage*>(region_ + layout_.replies);
    has_words_.store(true);
}

void FakeWorker::await_words() const {
    while (!has_words_.load()) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}

bool FakeWorker::attach() {
    pollfd waiting{listener_, POLLIN, 0};
    while (poll(&waiting, 1, 20) == 0) {
        if (stop_) {
            return false;
        }
    }
    link_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    wire::AttachRequest request;
    if (recv(link_, &request, sizeof(request), 0) != sizeof(request)) {
        return false;
    }
    on_attach();
    wire::AttachReply reply;
    reply.accepted = accept;
    reply.wire_version = attach_wire_version;
    reply.region_bytes = region_bytes;
    std::strcpy(reply.text, "the quota of this user is used up");
    const ssize_t sent =
        send_packet_with(link_, &reply, attach_reply_bytes, &memfd_, accept == 1 ? 1 : 0);
    return sent == sizeof(reply) && accept == 1;
}

void FakeWorker::open_channel() {
    wire::ChannelClaim& claim = guest_directory_->claims[0];
    while (!stop_ && claim.state.load() != wire::ClaimState::kOpen) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    if (stop_) {
        return;
    }
    if (by_file) {
        find_words(guest_directory_->channel_count);
    }
    const std::uint64_t start = claim.generation << wire::kGenerationShift;
    host_->head.store(start);
    host_->worker_state.store(wire::WorkerState::kRunning);
    consumer_.attach(region_ + layout_.ring, layout_.ring_bytes, start);
    host_directory_->channels[0].state.store(wire::ServeState::kServing);
    host_directory_->channels[0].generation.store(claim.generation);
}

void FakeWorker::serve() {
    if (!by_file && !attach()) {
        return;
    }
    open_channel();
    while (!stop_) {
        wire::CommandView view;
        const char* reason = nullptr;
        if (held_ || consumer_.peek(&view, &reason) != wire::PeekStatus::kReady) {
            GANTRY_ASSERT(reason == nullptr, "%s", reason);
            std::this_thread::sleep_for(std::chrono::microseconds(50));
            continue;
        }
        Seen command{view.op, view.lane, view.context, view.position, view.flags, {}, {}};
        command.args.assign(view.args, view.args + view.args_bytes);
        command.trailing.assign(view.trailing, view.trailing + view.trailing_bytes);
        consumer_.advance(view);
        host_->head.store(consumer_.next(), std::memory_order_release);
        execute(command);
    }
}

void FakeWorker::execute(const Seen& command) {
    if (command.op < 64) {
        control(command);
        return;
    }
    while (seen_lock_.test_and_set()) {
    }
    seen_.push_back(command);
    seen_lock_.clear();
    if ((command.flags & wire::kCommandWantsReply) != 0) {
        on_call(*this, command);
    }
}

void FakeWorker::control(const Seen& command) {
    if (on_control && on_control(*this, command)) {
        return;
    }
    switch (static_cast<wire::ControlOp>(command.op)) {
        case wire::ControlOp::kHello: {
            const wire::HelloReply reply{wire::kWireVersion, 13000, hello_hash, 1, 0};
            answer(command, 0, &reply, sizeof(reply));
            return;
        }
        case wire::ControlOp::kDeviceFacts: {
            wire::DeviceFactsCall call;
            std::memcpy(&call, command.args.data(), sizeof(call));
            wire::DeviceFacts facts{};
            std::strcpy(facts.name, "Fake GPU");
            std::memcpy(bulk() + call.bulk_offset, &facts, sizeof(facts));
            answer_bulk(command, call.bulk_offset, sizeof(facts));
            return;
        }
        case wire::ControlOp::kConfirm:
            while (pause_confirms && !stop_) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            ++confirms;
            host_->confirm_seq[command.lane].store(command.position + 1);
            return;
        case wire::ControlOp::kReadDevice: {
            wire::ReadDeviceCall call;
            std::memcpy(&call, command.args.data(), sizeof(call));
            std::memset(bulk() + call.bulk_offset, static_cast<int>(call.device_address & 0xff),
                        call.bytes);
            answer_bulk(command, call.bulk_offset, call.bytes);
            return;
        }
        case wire::ControlOp::kDrainOutput: {
            wire::DrainOutputCall call;
            std::memcpy(&call, command.args.data(), sizeof(call));
            const std::uint32_t head[2] = {1, static_cast<std::uint32_t>(printed.size())};
            std::memcpy(bulk() + call.bulk_offset, head, sizeof(head));
            std::memcpy(bulk() + call.bulk_offset + sizeof(head), printed.data(), printed.size());
            answer_bulk(command, call.bulk_offset,
                        printed.empty() ? 0 : sizeof(head) + printed.size());
            printed.clear();
            return;
        }
        default:
            while (seen_lock_.test_and_set()) {
            }
            seen_.push_back(command);
            seen_lock_.clear();
            return;  // kWaitCallback stays parked; posts have no answer.
    }
}

void FakeWorker::answer_bulk(const Seen& command, std::uint64_t offset, std::uint64_t bytes) {
    replies_[command.lane].bulk_offset = offset;
    replies_[command.lane].bulk_bytes = bytes;
    answer(command, 0);
}

void FakeWorker::answer(const Seen& command, std::uint32_t status, const void* payload,
                        std::uint32_t payload_bytes, std::uint32_t flags) {
    wire::ReplyPage& page = replies_[command.lane];
    page.status = status;
    page.flags = flags;
    page.payload_bytes = payload_bytes;
    if (payload_bytes != 0) {
        std::memcpy(page.payload, payload, payload_bytes);
    }
    page.seq.store(command.position + 1, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (guest_->lane_waiting[command.lane].load() != 0) {
        wire::futex_wake_all(reinterpret_cast<std::atomic<std::uint32_t>*>(&page.seq));
    }
}

void FakeWorker::die(bool leave_a_note) {
    if (leave_a_note) {
        host().worker_state.store(wire::WorkerState::kDead);
    }
    close(link_);
    stop_ = true;
}

std::vector<Seen> FakeWorker::take_seen() {
    while (seen_lock_.test_and_set()) {
    }
    std::vector<Seen> out = std::move(seen_);
    seen_.clear();
    seen_lock_.clear();
    return out;
}

}  // namespace gantry::test
