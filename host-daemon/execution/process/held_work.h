// HeldWork: which executed commands still wait, at the driver, behind a host callback in the guest.
//
// A stream that has reached a host callback stands still until the guest has run it, and a guest
// that is paused runs nothing: so a device with an open callback never runs dry. What stands behind
// the callback has changed nothing yet, and its commands are still in the ring (the ring's head is
// held back for them): a freeze may cut there. The target executes them again, the callback first;
// the source's worker, in whose driver they are queued, is ended without ever running them.
//
// Here is the book of it, by the rules of streams: a command waits behind a callback when one of
// its streams does; the legacy stream and blocking streams wait for each other; a stream that waits
// for an event recorded behind a callback waits too. What has no place in that book (an object
// destroyed, a capture, memory freed) makes the state uncarriable until the callbacks have ended,
// and a freeze waits for them as long as it may.
//
// Invariant: nothing is kept while no callback is open; then the only cost is active().
// Threads: all calls lock; touch() and note() concern the calling thread's own command.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/ring/command.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

class HeldWork {
public:
    /// Positions of the commands that queued the callbacks. Of those in one stream, which close in
    /// their order, the last one stands for all.
    using Roots = std::set<std::uint64_t>;

    explicit HeldWork(Device& device) : device_(device) {}

    /// The key of a lane's own stream.
    static constexpr std::uint64_t key_of_lane(std::uint32_t lane) {
        return 2 + (std::uint64_t{lane} << 8);
    }
    /// The name of a stream in our books: the lane's own stream is another one for each lane.
    [[nodiscard]] static std::uint64_t key_of(const Command& command, std::uint64_t stream);
    [[nodiscard]] static constexpr std::uint64_t key_of(std::uint32_t lane, std::uint64_t stream) {
        return stream <= 1 ? 0 : stream == 2 ? key_of_lane(lane) : stream;
    }
    [[nodiscard]] bool active() const { return active_.load(std::memory_order_relaxed); }

    /// The consumer is about to execute the command at `position`.
    void begin(std::uint64_t position);
    /// The calling thread's command begins to run. True when it has to be noted. `is_capturing`:
    /// some stream is.
    bool begin_touches(const Command& command, bool is_capturing);
    /// ... and concerns this stream, before it does. `key`: 0 the legacy stream, else what names it
    /// for the guest.
    void touch(std::uint64_t key, CUstream native) {
        if (is_collecting_) {
            add_touch(key, native);
        }
    }
    /// ... and has been run. On the consumer.
    void note(const Command& command, bool succeeded);
    /// What cannot be done again from the ring was done.
    void mark_irregular();
    /// A callback has returned, or was never queued. On the consumer, or on another thread while
    /// that one is held up: then perhaps before note() of the command that queued it.
    void close(std::uint64_t root);

    /// A waiting call that can only be answered once callbacks have returned: do not begin it.
    [[nodiscard]] bool waits(const Command& command) const;
    /// False while something was done that another worker could not do again from the ring.
    [[nodiscard]] bool is_regular() const;
    /// Callbacks that wait for no other one: their streams must have reached them.
    [[nodiscard]] Roots first_roots() const;
    [[nodiscard]] std::size_t root_count() const;
    /// The stream may run: nothing in it waits behind a callback.
    [[nodiscard]] bool is_free(std::uint64_t key, CUstream native) const;
    /// Where the ring must not be given back: 0 when nothing is held.
    [[nodiscard]] std::uint64_t first_position() const;
    /// Positions executed since the first open callback and not to be executed again.
    [[nodiscard]] std::set<std::uint64_t> executed() const;

private:
    struct Touch {
        std::uint64_t key = 0;
        bool blocking = true;  ///< Asked before the command: it may destroy the stream.
        bool was_idle = true;  ///< Known for waits only.
    };
    void add_touch(std::uint64_t key, CUstream native);
    [[nodiscard]] bool is_blocking(CUstream native) const;
    [[nodiscard]] Roots roots_of_locked(std::uint64_t key, bool blocking) const
        GANTRY_REQUIRES(mutex_);
    void block_locked(std::uint64_t key, bool blocking, const Roots& roots) GANTRY_REQUIRES(mutex_);

    struct Stream {
        Roots roots;
        bool blocking = true;
    };

    Device& device_;
    std::atomic<bool> active_{false};
    mutable Mutex mutex_;
    bool irregular_ GANTRY_GUARDED_BY(mutex_) = false;
    Roots open_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::uint64_t, Stream> streams_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::uint64_t, Roots> events_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::uint64_t, Roots> held_
        GANTRY_GUARDED_BY(mutex_);  ///< By position, the roots' own included.
    std::map<std::uint64_t, std::vector<std::uint64_t>> behind_
        GANTRY_GUARDED_BY(mutex_);  ///< The same, by root.
    /// Closed and not open: perhaps that of the one command which is being executed.
    std::uint64_t closed_early_ GANTRY_GUARDED_BY(mutex_) = ~std::uint64_t{0};
    std::set<std::uint64_t> executed_ GANTRY_GUARDED_BY(mutex_);
    static thread_local std::vector<Touch> touched_;
    static thread_local bool is_wait_;
    static thread_local bool is_collecting_;
};

}  // namespace gantry::worker
