// Contexts: which of the guest's contexts is current in a thread of the worker.
//
// Owner: GuestProcess. Threads: any; all calls concern the calling thread. Cost: enter() is two
// comparisons where the context is current already.
#pragma once

#include <atomic>
#include <cstdint>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/objects/objects.h"

namespace gantry::worker {

class Contexts {
public:
    Contexts(Device& device, const ObjectTable& objects) : device_(device), objects_(objects) {}

    /// Makes the primary context current in a thread that calls the driver for the first time.
    void bind_thread();
    /// Makes the context of a command current.
    CUresult enter(std::uint64_t context);
    /// What enter() has made current.
    [[nodiscard]] static CUcontext current();
    /// Destroys a context; the thread is in the primary one then.
    CUresult destroy(CUcontext context);

    /// Held while a limit of a context is set and counted: what is counted is what was set last.
    Mutex limits;

private:
    Device& device_;
    const ObjectTable& objects_;
    std::atomic<std::uint64_t> ended_{0};
};

}  // namespace gantry::worker
