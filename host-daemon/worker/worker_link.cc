#include "host-daemon/worker/worker_link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "proto/control/process_end.h"

namespace gantry::worker {
namespace {

constexpr int kChildControlFd = 3;

[[noreturn]] void run_child(int listener, std::uint32_t spin_us,
                            std::optional<std::uint32_t> visible_device) {
    if (visible_device) {
        setenv("CUDA_VISIBLE_DEVICES", std::to_string(*visible_device).c_str(), 1);
    }
    personality(ADDR_NO_RANDOMIZE);  // A driver that picks addresses then picks the same again.
    if (listener == kChildControlFd) {
        fcntl(listener, F_SETFD, 0);
    } else {
        dup2(listener, kChildControlFd);
    }
    const std::string spin = std::to_string(spin_us);
    execl("/proc/self/exe", "gantry-worker", "--control-fd", "3", "--spin-us", spin.c_str(),
          static_cast<char*>(nullptr));
    _exit(127);
}

}  // namespace

Result<WorkerLink> WorkerLink::launch(const std::string& directory, std::uint32_t spin_us,
                                      std::optional<std::uint32_t> visible_device) {
    static std::atomic<std::uint64_t> counter{0};
    const std::string path =
        fmt::format("{}/worker-{}-{}.sock", directory, getpid(), counter.fetch_add(1));
    GANTRY_ASSIGN(control::PacketListener listener, control::PacketListener::bind(path));
    const pid_t pid = fork();
    if (pid < 0) {
        return Error{Code::kResourceExhausted, "worker.start", std::strerror(errno)};
    }
    if (pid == 0) {
        run_child(listener.fd(), spin_us, visible_device);
    }
    WorkerLink link;
    link.pid_ = pid;
    auto connected = control::PacketSocket::connect(path);
    unlink(path.c_str());
    if (!connected.ok()) {
        return connected.error();
    }
    link.socket_ = std::move(connected).value();
    return link;
}

WorkerLink::WorkerLink(WorkerLink&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      next_request_(other.next_request_),
      socket_(std::move(other.socket_)) {}

WorkerLink& WorkerLink::operator=(WorkerLink&& other) noexcept {
    if (this != &other) {
        end();
        pid_ = std::exchange(other.pid_, -1);
        next_request_ = other.next_request_;
        socket_ = std::move(other.socket_);
    }
    return *this;
}

WorkerLink::~WorkerLink() { end(); }

Result<WorkerLink::Answer> WorkerLink::call(control::ToWorker request,
                                            std::span<const int> descriptors,
                                            std::chrono::milliseconds deadline) {
    request.set_request_id(next_request_++);
    request.set_descriptor_count(static_cast<std::uint32_t>(descriptors.size()));
    GANTRY_TRY(socket_.send_message(request, descriptors));
    for (;;) {
        Answer answer;
        GANTRY_ASSIGN(answer.descriptors, socket_.receive_message(answer.message, deadline));
        if (answer.message.request_id() == 0) {
            continue;  // An event; the caller watches the guest itself.
        }
        if (answer.message.request_id() != request.request_id()) {
            return Error{Code::kInternal, "worker.protocol", "an answer to another request"};
        }
        const control::WorkerStatus& status = answer.message.status();
        if (status.code() != 0) {
            return Error{static_cast<Code>(status.code()), status.reason(), status.text()};
        }
        return answer;
    }
}

void WorkerLink::end() {
    if (pid_ <= 0) {
        return;
    }
    control::ToWorker request;
    request.mutable_shutdown();
    if (socket_.valid()) {
        (void)call(std::move(request), {}, std::chrono::milliseconds(2000));
    }
    socket_.close();
    for (int i = 0; i < 100; ++i) {
        if (waitpid(pid_, nullptr, WNOHANG) != 0) {
            pid_ = -1;
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    kill_now();
}

void WorkerLink::kill_now() {
    if (pid_ > 0) {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        pid_ = -1;
    }
}

std::string WorkerLink::how_it_ended() {
    for (int i = 0; pid_ > 0 && i < 50; ++i) {
        siginfo_t info{};
        if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) == 0 &&
            info.si_pid == pid_) {
            pid_ = -1;
            return control::describe_end(info);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    kill_now();
    return "killed after it broke off";
}

bool WorkerLink::has_broken_off() const {
    pollfd connection{socket_.fd(), 0, 0};
    return poll(&connection, 1, 0) > 0 && (connection.revents & POLLHUP) != 0;
}

}  // namespace gantry::worker
