// The two ranges of addresses that guest and worker share: the device arena, which no host memory
// of this process may ever use, and the pinned pool, whose pages both sides map at one address.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "guest-shim/session/connection.h"

namespace gantry::session {

bool reserve_addresses(Connection* connection, AttachProblem* problem) {
    void* arena = mmap(reinterpret_cast<void*>(wire::kArenaBase), wire::kArenaBytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (arena != reinterpret_cast<void*>(wire::kArenaBase)) {
        return fail(problem, CUDA_ERROR_OPERATING_SYSTEM,
                    "cannot reserve the device address range at 0x%llx (%s); is address space "
                    "limited (ulimit -v), or another CUDA shim loaded?",
                    static_cast<unsigned long long>(wire::kArenaBase), std::strerror(errno));
    }
    const wire::ChannelLayout& layout = connection->layout;
    void* pool = mmap(reinterpret_cast<void*>(wire::kPinnedBase), layout.pinned_bytes,
                      PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE,
                      connection->attachment.region_fd, static_cast<off_t>(layout.pinned));
    if (pool != reinterpret_cast<void*>(wire::kPinnedBase)) {
        return fail(problem, CUDA_ERROR_OPERATING_SYSTEM,
                    "cannot map page-locked memory at 0x%llx: %s",
                    static_cast<unsigned long long>(wire::kPinnedBase), std::strerror(errno));
    }
    attach_pinned(static_cast<std::byte*>(pool), layout.pinned_bytes);
    return true;
}

}  // namespace gantry::session
