#include "host-daemon/execution/process/guest_memory.h"

#include <vector>

namespace gantry::worker {

void GuestMemory::refresh_private_ranges() {
    constexpr std::uint64_t kOwner = 1;  // No handle: the driver itself.
    const GantrySoftExtension* extension = owner_.extension();
    std::size_t count = 0;
    if (extension == nullptr ||
        extension->list_private_ranges(owner_.context(), nullptr, &count) != CUDA_SUCCESS) {
        return;
    }
    std::vector<GantrySoftRange> found(count);
    if (count != 0 &&
        extension->list_private_ranges(owner_.context(), found.data(), &count) != CUDA_SUCCESS) {
        return;
    }
    device.remove_outside(kOwner);
    for (const GantrySoftRange& range : found) {
        device.add_outside(kOwner, range.address, range.bytes);
    }
}

}  // namespace gantry::worker
