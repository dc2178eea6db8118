// LegacyStream: which of the driver's streams stands for the guest's legacy default stream.
//
// A driver takes a fifth longer for a launch on its legacy stream, which waits for all blocking
// streams and is waited for by them. While a guest has no such stream, a stream of the worker's own
// that blocks for nobody cannot be told from it: so runs of launches go there. Before any command
// that names the legacy stream without saying so, or might, the driver's own waits for what is in
// the worker's (leave()), and stands for itself again.
//
// Invariant: whichever stream is native(), all earlier work of the guest's legacy stream comes
// before what is queued to it. Threads: native() anywhere, the rest on the loop's thread; a command
// that has gone to another thread is not ordered with what the loop does meanwhile. Failure:
// without a stream or an event of its own it stays with the driver's.
// Cost: an event record and an event wait to enter and to leave.
#pragma once

#include <atomic>
#include <cstdint>

#include "host-daemon/worker/device.h"

namespace gantry::worker {

class LegacyStream {
public:
    explicit LegacyStream(Device& device);
    ~LegacyStream();
    LegacyStream(const LegacyStream&) = delete;
    LegacyStream& operator=(const LegacyStream&) = delete;

    [[nodiscard]] CUstream native() const {
        return is_own_.load(std::memory_order_acquire) ? own_ : nullptr;
    }
    [[nodiscard]] bool is_own() const { return is_own_.load(std::memory_order_relaxed); }

    /// A launch on the legacy stream comes. True when it is time to ask whether enter() is allowed.
    bool count_launch() {
        return event_ != nullptr && !is_own() && ++launches_ >= launches_wanted_;
    }
    /// It is not; asks again later.
    void put_off();
    void enter();
    /// Work of the legacy stream goes to the driver's own again, behind what is in ours.
    void leave();
    /// Leaves for good: the guest has given its legacy stream properties that ours lacks.
    void give_up();

private:
    static constexpr std::uint32_t kLaunchesMin = 32;
    static constexpr std::uint32_t kLaunchesMax = 4096;

    /// What is queued to `later` from here on comes behind all that is in `earlier` now.
    bool order(CUstream earlier, CUstream later);

    Device& device_;
    CUstream own_ = nullptr;
    CUevent event_ = nullptr;  ///< Null: stays with the driver's stream.
    std::atomic<bool> is_own_{false};
    std::uint32_t launches_ = 0;
    std::uint32_t launches_wanted_ = kLaunchesMin;
};

}  // namespace gantry::worker
