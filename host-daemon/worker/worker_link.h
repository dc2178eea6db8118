// WorkerLink: a started worker process and the control connection to it, as a supervisor holds
// them.
//
// Threads: one at a time. Failure: Result; a worker that does not answer in time is ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "host-daemon/replacement/replacement.h"
#include "proto/control/channel.h"
#include "proto/control/worker.pb.h"

namespace gantry::worker {

class WorkerLink {
public:
    /// Starts this very program with --control-fd on a socket in `directory`. With `visible_device`
    /// its CUDA driver shows it that device alone, as number 0.
    static Result<WorkerLink> launch(const std::string& directory, std::uint32_t spin_us,
                                     std::optional<std::uint32_t> visible_device = {});
    WorkerLink() = default;
    WorkerLink(WorkerLink&& other) noexcept;
    WorkerLink& operator=(WorkerLink&& other) noexcept;
    ~WorkerLink();

    using Answer = replacement::Answer;
    Result<Answer> call(control::ToWorker request, std::span<const int> descriptors = {},
                        std::chrono::milliseconds deadline = std::chrono::seconds(120));

    [[nodiscard]] bool valid() const { return pid_ > 0; }
    [[nodiscard]] pid_t pid() const { return pid_; }
    [[nodiscard]] int fd() const { return socket_.fd(); }
    /// Shutdown, then SIGKILL when it does not go.
    void end();
    /// SIGKILL, and waits for its end.
    void kill_now();
    /// Its end of the connection is closed: it has ended, or is of no use any more.
    [[nodiscard]] bool has_broken_off() const;
    /// Of one that has broken off, in words; it is killed when it has not ended within a second.
    [[nodiscard]] std::string how_it_ended();

private:
    pid_t pid_ = -1;
    std::uint64_t next_request_ = 1;
    control::PacketSocket socket_;
};

}  // namespace gantry::worker
