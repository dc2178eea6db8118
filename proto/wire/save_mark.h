// SaveMark: the random number that ties a VM's saved memory to the saved state of its GPU
// (proto/decisions/0036-saved-vms.md).
//
// gantryd writes it into the host's page of the region, anew whenever the VM begins to run with a
// state of its GPU that it had not when it was last paused. So it lies in each file that libvirt
// makes of the VM's memory, and names the one saved state that may go with it. No guest reads it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "proto/wire/region.h"

namespace gantry::wire {

struct SaveMark {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    friend constexpr auto operator<=>(const SaveMark&, const SaveMark&) = default;
};

/// From the start of the region.
inline constexpr std::uint64_t kSaveMarkOffset = 2 * kPageBytes - sizeof(SaveMark);
static_assert(offsetof(HostDirectory, refusal_text) + sizeof(HostDirectory::refusal_text) <=
              kPageBytes - sizeof(SaveMark));

}  // namespace gantry::wire
