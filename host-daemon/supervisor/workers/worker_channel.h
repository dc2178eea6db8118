// gantryd's end of the private protocol with one worker: calls with deadlines, and events.
//
// Invariant: a reply reaches exactly the call whose request id it echoes; a packet that breaks the
// protocol (unknown id, wrong number of descriptors, unparsable) ends the connection, since the
// worker may have been taken over by its guest.
// Threads: call() and send() may be used by any number of threads; the worker executes requests in
// the order they were sent. Events and the closing come on the channel's own thread; handlers must
// not call back into the channel's destructor.
// Failure: kUnavailable (reason `worker.gone`) once the connection has ended, kDeadlineExceeded
// (`worker.deadline`) when no reply came in time (the request may still take effect) or the worker
// takes no more requests, or whatever status the worker answered. Cost: two system calls and one
// thread switch per call.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/control/channel.h"
#include "proto/control/worker.pb.h"

namespace gantry::supervisor {

struct WorkerReply {
    control::FromWorker message;
    std::vector<control::UniqueFd> descriptors;
};

class WorkerChannel {
    struct Pending {
        bool done = false;
        WorkerReply reply;
    };

public:
    /// A request that has been sent, for one await().
    struct Sent {
        std::uint64_t id = 0;
        std::chrono::steady_clock::time_point at;
        std::chrono::milliseconds deadline{};  ///< For the reply, from then on.
        std::shared_ptr<Pending> pending;
    };

    using EventHandler = std::function<void(const control::Event&)>;
    using ClosedHandler = std::function<void(const Error& why)>;

    /// Takes over a connected socket; `name` is for messages ("worker 2 of session ...").
    WorkerChannel(control::PacketSocket socket, std::string name, EventHandler on_event,
                  ClosedHandler on_closed);
    ~WorkerChannel();
    WorkerChannel(const WorkerChannel&) = delete;
    WorkerChannel& operator=(const WorkerChannel&) = delete;

    /// Fills in request_id and descriptor_count, sends, waits for the reply.
    Result<WorkerReply> call(control::ToWorker request, std::chrono::milliseconds deadline,
                             std::span<const int> descriptors = {}) {
        GANTRY_ASSIGN(Sent sent, send(std::move(request), deadline, descriptors));
        return await(std::move(sent));
    }
    /// The same in two steps, for whoever has to have several under way in a certain order.
    Result<Sent> send(control::ToWorker request, std::chrono::milliseconds deadline,
                      std::span<const int> descriptors = {});
    Result<WorkerReply> await(Sent sent);
    void set_name(std::string name) {
        const MutexLock lock(mutex_);
        name_ = std::move(name);
    }
    /// As if the worker had ended it.
    void shut_down() { socket_.shut_down(); }
    [[nodiscard]] bool open() const { return open_.load(); }

private:
    void read_loop();
    Result<void> take_packet();
    void close(const Error& why);

    control::PacketSocket socket_;
    std::string name_ GANTRY_GUARDED_BY(mutex_);
    EventHandler on_event_;
    ClosedHandler on_closed_;
    std::atomic<bool> open_{true};

    Mutex send_mutex_
        GANTRY_ACQUIRED_BEFORE(mutex_);  // held across id assignment and send: ids go out in order
    Mutex mutex_;
    CondVar changed_;
    std::uint64_t next_id_ GANTRY_GUARDED_BY(mutex_) = 1;
    std::map<std::uint64_t, std::shared_ptr<Pending>> pending_ GANTRY_GUARDED_BY(mutex_);
    Error closed_why_ GANTRY_GUARDED_BY(mutex_);
    std::thread reader_;
};

/// The error that a status stands for. A worker may say anything: success is kUnknown, a reason
/// that is none is `worker.unknown`, and the text is one line of at most 4 KiB.
Error to_error(const control::WorkerStatus& status);

}  // namespace gantry::supervisor
