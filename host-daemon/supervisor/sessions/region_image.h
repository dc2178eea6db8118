// RegionImage: what a VM's region held at the moment at which its session was saved.
//
// libvirt writes the region into its file with the rest of the guest's memory. It does so some
// moments after the guest was paused, while workers still publish answers and copies end in
// page-locked memory: which of their bytes the file has is chance. So the pages that the host may
// write are kept here, as they stand when the workers are frozen, and put back before the guest
// runs. Of the pages that the guest alone writes the sum is kept: it cannot change while the guest
// is paused, and tells whether a guest's memory is of that moment.
//
// Only channels that are claimed count. Blocks of zeros are neither stored nor summed.
// The file has the region's offsets, and holes. Sums are of snapshot's fingerprints.
// Threads: one. Failure: `region.*`, `save.image`; nothing is written to the region before the file
// was found whole. Cost: the region is read once, about 1 s per 2 GiB of page-locked memory.
#pragma once

#include <cstdint>

#include "host-daemon/supervisor/sessions/region.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::supervisor {

struct RegionSums {
    snapshot::BlockSetDigest guest;  ///< Of what the guest alone writes.
    snapshot::BlockSetDigest host;   ///< Of what lies in the file.
    friend bool operator==(const RegionSums&, const RegionSums&) = default;
};

/// The frozen session's region into `file`, which is empty.
Result<RegionSums> save_region(const Region& region, std::uint32_t channel_count,
                               const snapshot::Seed& seed, int file);
/// Of the guest's own pages as they are.
Result<snapshot::BlockSetDigest> sum_of_guest(const Region& region, std::uint32_t channel_count,
                                              const snapshot::Seed& seed);
/// The host's pages from `file` into the region of a guest that does not run.
Result<void> restore_region(const Region& region, std::uint32_t channel_count,
                            const snapshot::Seed& seed, int file,
                            const snapshot::BlockSetDigest& host);

}  // namespace gantry::supervisor
