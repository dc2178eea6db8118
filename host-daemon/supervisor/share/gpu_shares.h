// GpuShares: the arbiters of this host's GPUs, and the sessions' shares on all of them.
//
// An arbiter is made when the first worker of its GPU asks for a place. Threads: any.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host-daemon/supervisor/config/config.h"
#include "host-daemon/supervisor/share/gpu_arbiter.h"
#include "proto/base/mutex.h"

namespace gantry::supervisor {

/// A worker's place; it is given back with the last copy of `place`.
struct ArbiterPlace {
    GpuArbiter::Seat seat;
    std::shared_ptr<void> place;
};

class GpuShares {
public:
    explicit GpuShares(const scheduling::Settings& settings = {}) : settings_(settings) {}

    Result<ArbiterPlace> join(DeviceNumber device, const std::string& session);
    void set_share(const std::string& session, std::optional<scheduling::Share> share);
    void set_enabled(bool enabled);
    [[nodiscard]] bool is_enabled() const;
    [[nodiscard]] std::map<DeviceNumber, GpuArbiter::Status> status() const;

private:
    const scheduling::Settings settings_;
    mutable Mutex mutex_;
    std::map<DeviceNumber, std::shared_ptr<GpuArbiter>> arbiters_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::string, scheduling::Share> shares_ GANTRY_GUARDED_BY(mutex_);
    bool is_enabled_ GANTRY_GUARDED_BY(mutex_) = true;
};

}  // namespace gantry::supervisor
