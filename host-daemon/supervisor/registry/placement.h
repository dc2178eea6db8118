// Placement: which of a host's GPUs a session begins on. Pure functions.
//
// Three steps: the GPUs that the VM's own metadata allows, in the order that the policy prefers,
// and the first of them that has room. The order is total and depends on nothing but what is
// offered, so that equal books give equal answers, and the peer that asks for a preflight hears of
// the GPUs in the order in which they will be tried.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host-daemon/supervisor/config/config.h"
#include "migration/engine/needs.h"
#include "migration/libvirt/domain_info.h"
#include "proto/base/result.h"

namespace gantry::supervisor {

enum class PlacementPolicy {
    kFreeMemory,  ///< Most memory that is not promised first.
    kFirst,       ///< Lowest number first: the others stay empty as long as they can.
    kSpread,      ///< Fewest sessions first.
};

/// Of placement.policy; the schema has checked it.
PlacementPolicy placement_policy(std::string_view word);

/// One GPU as it stands for one session: what that session holds itself counts as free.
struct GpuOffer {
    DeviceNumber device = 0;
    std::string name;
    std::string uuid;  ///< 32 hex digits.
    engine::ComputeCapability cc;
    std::uint64_t memory_bytes = 0;
    std::uint64_t promised_bytes = 0;  ///< To others.
    std::size_t session_count = 0;     ///< Others.

    [[nodiscard]] std::uint64_t free_bytes() const {
        return promised_bytes < memory_bytes ? memory_bytes - promised_bytes : 0;
    }
    /// "GPU 1 (NVIDIA H100)".
    [[nodiscard]] std::string text() const;
};

struct PlacementRequest {
    std::uint64_t quota_bytes = 0;  ///< 0: takes what there is.
    engine::ComputeCapability cc_min;
    libvirt::GpuWish wish;
};

bool is_wished(const GpuOffer& offer, const libvirt::GpuWish& wish);

/// Those that the metadata allows, best first.
std::vector<GpuOffer> candidates(std::vector<GpuOffer> offers, const libvirt::GpuWish& wish,
                                 PlacementPolicy policy);

/// Failure: gpu.absent (there is none), gpu.not_served (none is what the metadata asks for),
/// gpu.cc.unsupported, gpu.memory.too_small (for ever), gpu.memory.in_use (for now). The text says
/// so of each GPU.
Result<DeviceNumber> place(const PlacementRequest& request, const std::vector<GpuOffer>& offers,
                           PlacementPolicy policy);

/// None of `offers` is what `wish` asks for.
Error no_such_gpu(const libvirt::GpuWish& wish, const std::vector<GpuOffer>& offers);

}  // namespace gantry::supervisor
