// DeviceBook: the GPUs of this host that are served, and the device memory that is promised.
//
// gantryd never loads a CUDA driver: what a device has to offer is learnt from a worker that is
// started on it. A session's promise holds on one device; on two while it goes from one to the
// other. What place() finds is promised before it returns: two sessions that begin at once never
// get the same memory. Threads: any; probe() waits for a worker, and one at a time does of each
// device. Failure: gpu.absent, gpu.memory.in_use, those of place(), and why the worker did not
// start.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host-daemon/supervisor/registry/placement.h"
#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/control/worker.pb.h"

namespace gantry::supervisor {

class DeviceBook {
public:
    using Ask = std::function<Result<control::DeviceDescription>(DeviceNumber)>;
    explicit DeviceBook(Ask ask) : ask_(std::move(ask)) {}

    /// The devices that sessions may be on, in order; none before: {0}.
    void serve(std::vector<DeviceNumber> devices);
    [[nodiscard]] std::vector<DeviceNumber> served() const;
    [[nodiscard]] bool is_served(DeviceNumber device) const;
    /// Those that are served and known, as they stand for this session.
    [[nodiscard]] std::vector<GpuOffer> offers(const std::string& session) const;
    /// Promises the session its memory on the device that the policy gives it.
    Result<DeviceNumber> place(const std::string& session, const PlacementRequest& request,
                               PlacementPolicy policy);

    enum class Probe { kUnlessKnown, kAnew };
    Result<control::DeviceDescription> probe(DeviceNumber device, Probe when);
    /// As a worker on it has just said.
    void note(DeviceNumber device, const control::DeviceDescription& description);
    [[nodiscard]] std::optional<control::DeviceDescription> known(DeviceNumber device) const;
    /// Why nothing is known of the device.
    [[nodiscard]] Error error_of(DeviceNumber device) const;

    /// Beside what the session has elsewhere. Its own on this device counts as free.
    Result<void> reserve(const std::string& session, DeviceNumber device, std::uint64_t bytes);
    /// The same of what is there anyhow.
    void promise(const std::string& session, DeviceNumber device, std::uint64_t bytes);
    void forget(const std::string& session);
    void keep_only(const std::string& session, DeviceNumber device);
    [[nodiscard]] std::uint64_t promised(DeviceNumber device) const;
    [[nodiscard]] std::uint64_t promised_to(const std::string& session, DeviceNumber device) const;

private:
    [[nodiscard]] std::vector<GpuOffer> offers_for(const std::string& session) const
        GANTRY_REQUIRES(mutex_);
    [[nodiscard]] Error absent() const GANTRY_REQUIRES(mutex_);

    const Ask ask_;
    /// Of each device: held while a worker is asked; never with mutex_ held.
    std::array<Mutex, kDevicesMax> probing_;
    mutable Mutex mutex_;
    std::vector<DeviceNumber> served_ GANTRY_GUARDED_BY(mutex_){0};
    std::map<DeviceNumber, control::DeviceDescription> devices_ GANTRY_GUARDED_BY(mutex_);
    std::map<DeviceNumber, Error> errors_ GANTRY_GUARDED_BY(mutex_);
    std::map<DeviceNumber, std::map<std::string, std::uint64_t>> promised_bytes_
        GANTRY_GUARDED_BY(mutex_);
};

}  // namespace gantry::supervisor
