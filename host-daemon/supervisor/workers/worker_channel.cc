#include "host-daemon/supervisor/workers/worker_channel.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>

namespace gantry::supervisor {
namespace {

/// A worker that takes no request has hundreds before it: nothing else in gantryd waits for it.
constexpr timeval kSendPatience{1, 0};

control::PacketSocket patient(control::PacketSocket socket) {
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &kSendPatience, sizeof kSendPatience);
    return socket;
}

constexpr std::size_t kReasonMax = 64;
constexpr std::size_t kTextMax = 4096;

/// Fit for a log and for whom gantryd answers, whatever a worker has written.
std::string reason_of(const std::string& told) {
    const auto is_fit = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
    };
    return told.empty() || told.size() > kReasonMax ||
                   !std::all_of(told.begin(), told.end(), is_fit)
               ? "worker.unknown"
               : told;
}

std::string text_of(std::string told) {
    told.resize(std::min(told.size(), kTextMax));
    std::replace_if(
        told.begin(), told.end(), [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; }, ' ');
    return told;
}

}  // namespace

Error to_error(const control::WorkerStatus& status) {
    const bool known =
        status.code() != 0 && status.code() <= static_cast<std::uint32_t>(Code::kUnauthenticated);
    return Error{known ? static_cast<Code>(status.code()) : Code::kUnknown,
                 reason_of(status.reason()), text_of(status.text())};
}

WorkerChannel::WorkerChannel(control::PacketSocket socket, std::string name, EventHandler on_event,
                             ClosedHandler on_closed)
    : socket_(patient(std::move(socket))),
      name_(std::move(name)),
      on_event_(std::move(on_event)),
      on_closed_(std::move(on_closed)),
      reader_([this] { read_loop(); }) {}

WorkerChannel::~WorkerChannel() {
    open_ = false;
    socket_.shut_down();
    reader_.join();
}

Result<WorkerChannel::Sent> WorkerChannel::send(control::ToWorker request,
                                                std::chrono::milliseconds deadline,
                                                std::span<const int> descriptors) {
    Sent sent{0, {}, deadline, std::make_shared<Pending>()};
    const MutexLock sending(send_mutex_);
    {
        const MutexLock lock(mutex_);
        if (!open_) {
            return closed_why_.text.empty()
                       ? Error{Code::kUnavailable, "worker.gone", name_ + " is closed"}
                       : closed_why_;
        }
        sent.id = next_id_++;
        pending_[sent.id] = sent.pending;
    }
    request.set_request_id(sent.id);
    request.set_descriptor_count(static_cast<std::uint32_t>(descriptors.size()));
    if (auto done = socket_.send_message(request, descriptors); !done) {
        const MutexLock lock(mutex_);
        pending_.erase(sent.id);
        if (done.error().code == Code::kDeadlineExceeded) {
            return Error{Code::kDeadlineExceeded, "worker.deadline",
                         name_ + " takes no requests: those before this one lie unread"};
        }
        return Error{done.error().code, "worker.gone", name_ + ": " + done.error().text};
    }
    sent.at = std::chrono::steady_clock::now();
    return sent;
}

Result<WorkerReply> WorkerChannel::await(Sent sent) {
    MutexLock lock(mutex_);
    changed_.wait_until(lock, sent.at + sent.deadline,
                        [&] { return sent.pending->done || !open_; });
    if (!sent.pending->done) {
        if (!open_) {
            pending_.erase(sent.id);
            return closed_why_;
        }
        // The entry stays, so that the late reply is recognised and dropped.
        return Error{Code::kDeadlineExceeded, "worker.deadline",
                     fmt::format("{} did not answer request {} within {} ms", name_, sent.id,
                                 sent.deadline.count())};
    }
    pending_.erase(sent.id);
    if (sent.pending->reply.message.status().code() != 0) {
        return to_error(sent.pending->reply.message.status());
    }
    return std::move(sent.pending->reply);
}

void WorkerChannel::read_loop() {
    for (;;) {
        if (auto taken = take_packet(); !taken) {
            close(taken.error());
            return;
        }
    }
}

Result<void> WorkerChannel::take_packet() {
    WorkerReply reply;
    GANTRY_ASSIGN(reply.descriptors, socket_.receive_message(reply.message));
    if (reply.message.descriptor_count() != reply.descriptors.size()) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     fmt::format("a packet announced {} descriptors and carried {}",
                                 reply.message.descriptor_count(), reply.descriptors.size())};
    }
    if (reply.message.request_id() == 0) {
        if (!reply.message.has_event()) {
            return Error{Code::kInvalidArgument, "worker.protocol", "a reply without request id"};
        }
        on_event_(reply.message.event());
        return {};
    }
    const MutexLock lock(mutex_);
    const auto found = pending_.find(reply.message.request_id());
    if (found == pending_.end() || found->second->done) {
        return Error{
            Code::kInvalidArgument, "worker.protocol",
            fmt::format("a reply to request {}, which was not asked", reply.message.request_id())};
    }
    found->second->reply = std::move(reply);
    found->second->done = true;
    if (found->second.use_count() == 1) {
        pending_.erase(found);  // its caller has given up
    } else {
        changed_.notify_all();
    }
    return {};
}

void WorkerChannel::close(const Error& why) {
    const bool wanted = !open_.load();  // our own destructor
    Error closed_why;
    {
        const MutexLock lock(mutex_);
        open_ = false;
        closed_why = Error{Code::kUnavailable, "worker.gone", name_ + " is gone: " + why.text};
        closed_why_ = closed_why;
        changed_.notify_all();
    }
    if (!wanted) {
        socket_.shut_down();
        on_closed_(closed_why);
    }
}

}  // namespace gantry::supervisor
