// EventPool: events of the worker's own, which tell when what was queued in a stream has ended.
//
// An event belongs to the context in which it was made, and dies with it: a program may destroy a
// context in which the worker has queued copies, and a destroyed event is not to be touched again.
// So the pool knows each event's context; once that has ended, all that its events were to tell of
// has ended too, as a context's work is waited for before it is destroyed.
//
// Threads: all calls lock, but not while the driver records: it may wait for room. Failure: no
// event where the driver gives none, or where the stream is of another context than the calling
// thread's. Cost: a look-up beside the driver's call.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "host-daemon/execution/device/device.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

class EventPool {
public:
    struct Event {
        CUevent native = nullptr;
        CUcontext context = nullptr;
        std::uint64_t life = 0;  ///< Of the context: another one may get its address.
        bool is_timed = false;
        explicit operator bool() const { return native != nullptr; }
    };

    explicit EventPool(Device& device) : device_(device) {}
    ~EventPool();
    EventPool(const EventPool&) = delete;
    EventPool& operator=(const EventPool&) = delete;

    /// An event behind what is queued in the stream now; none on failure.
    [[nodiscard]] Event record(CUstream stream) { return record(stream, Kind::kPlain); }
    enum class Kind { kPlain, kTimed };
    [[nodiscard]] Event record(CUstream stream, Kind kind);
    /// Between two timed ones that have told; nothing where that cannot be known.
    [[nodiscard]] std::optional<std::chrono::nanoseconds> between(const Event& before,
                                                                  const Event& behind);
    /// CUDA_SUCCESS, CUDA_ERROR_NOT_READY, or the error that a driver told.
    [[nodiscard]] CUresult query(const Event& event);
    /// The event has told what it was for; nothing for none.
    void keep(const Event& event);
    /// The context, whose work was waited for, is about to be destroyed.
    void context_ends(CUcontext context);

private:
    struct Context {
        std::uint64_t life = 0;
        std::vector<CUevent> free;
        std::vector<CUevent> free_timed;
    };
    /// A free event of the calling thread's context, or where one would belong.
    [[nodiscard]] Event take(Kind kind);
    [[nodiscard]] Context* find_locked(const Event& event) GANTRY_REQUIRES(mutex_);

    Device& device_;
    Mutex mutex_;
    std::map<CUcontext, Context> contexts_ GANTRY_GUARDED_BY(mutex_);
    std::uint64_t last_life_ GANTRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace gantry::worker
