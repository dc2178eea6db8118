#include "host-daemon/supervisor/share/gpu_shares.h"

#include <utility>

namespace gantry::supervisor {

Result<ArbiterPlace> GpuShares::join(DeviceNumber device, const std::string& session) {
    std::shared_ptr<GpuArbiter> arbiter;
    {
        const MutexLock lock(mutex_);
        std::shared_ptr<GpuArbiter>& known = arbiters_[device];
        if (known == nullptr) {
            GANTRY_ASSIGN(known, GpuArbiter::start(settings_));
            known->set_enabled(is_enabled_);
            for (const auto& [id, share] : shares_) {
                known->set_share(id, share);
            }
        }
        arbiter = known;
    }
    ArbiterPlace out;
    GANTRY_ASSIGN(out.seat, arbiter->join(session));
    const std::uint32_t slot = out.seat.slot;
    out.place = std::shared_ptr<void>(nullptr, [arbiter, slot](void*) { arbiter->leave(slot); });
    return out;
}

void GpuShares::set_share(const std::string& session, std::optional<scheduling::Share> share) {
    const MutexLock lock(mutex_);
    if (share) {
        shares_[session] = *share;
    } else {
        shares_.erase(session);
    }
    for (const auto& [device, arbiter] : arbiters_) {
        arbiter->set_share(session, share);
    }
}

void GpuShares::set_enabled(bool enabled) {
    const MutexLock lock(mutex_);
    is_enabled_ = enabled;
    for (const auto& [device, arbiter] : arbiters_) {
        arbiter->set_enabled(enabled);
    }
}

bool GpuShares::is_enabled() const {
    const MutexLock lock(mutex_);
    return is_enabled_;
}

std::map<DeviceNumber, GpuArbiter::Status> GpuShares::status() const {
    const MutexLock lock(mutex_);
    std::map<DeviceNumber, GpuArbiter::Status> out;
    for (const auto& [device, arbiter] : arbiters_) {
        out.emplace(device, arbiter->status());
    }
    return out;
}

}  // namespace gantry::supervisor
