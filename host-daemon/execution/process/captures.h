// Captures: which streams of the guest are being captured.
//
// A capture forbids much of what a worker does by itself: a context that is waited for, and a
// question about a stream, cost the capture. Whoever does such a thing asks any() first, and holds
// `gate` where a capture must not begin meanwhile.
//
// Owner: GuestProcess. Threads: any. Cost: any() is one load.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/objects/objects.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

class Captures {
public:
    Captures(Device& device, ObjectTable& objects) : device_(device), objects_(objects) {}

    [[nodiscard]] bool any() const { return count() != 0; }
    [[nodiscard]] std::uint32_t count() const { return count_.load(); }
    /// True while the stream is being captured.
    [[nodiscard]] bool is_capturing(CUstream stream) const;
    /// A capture began on the stream, which `key` names (HeldWork).
    void begin(std::uint64_t key);
    /// The stream is not captured any more, or is gone; nothing if no capture began on it.
    void end(std::uint64_t key);

    /// The graph of an open capture was named: the name goes with the capture unless that ends
    /// well.
    void note_graph(std::uint64_t handle);
    [[nodiscard]] bool makes_graph(std::uint64_t handle) const;
    void keep_graph(std::uint64_t handle);
    void drop_graph(std::uint64_t handle);

    enum class Change { kBegun, kEnded };
    /// Is called in begin() and end(), in the order of the changes. Set before the first one.
    std::function<void(Change)> on_change;
    /// Held while a capture begins, and while the worker by itself waits for the device.
    Mutex gate;

private:
    Device& device_;
    ObjectTable& objects_;
    std::atomic<std::uint32_t> count_{0};
    mutable Mutex mutex_;
    std::set<std::uint64_t> keys_
        GANTRY_GUARDED_BY(mutex_);  ///< Of the streams that captures began on.
    std::set<std::uint64_t> graphs_ GANTRY_GUARDED_BY(mutex_);  ///< That captures are making.
};

}  // namespace gantry::worker
