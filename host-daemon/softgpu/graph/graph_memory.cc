#include "host-daemon/softgpu/graph/graph_memory.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "host-daemon/softgpu/memory/allocate.h"

namespace gantry::softgpu {
namespace {

struct Book {
    std::mutex mutex;
    std::map<std::uint64_t, std::shared_ptr<GraphAllocation>> live;  ///< Allocated, not freed.
    std::map<std::uint64_t, std::weak_ptr<GraphAllocation>> known;
    std::map<int, GraphMemoryUse> use;
};

Book& book() {
    static auto* all = new Book;
    return *all;
}

}  // namespace

CUresult GraphAllocation::create(Context& context, std::uint64_t bytes,
                                 std::shared_ptr<GraphAllocation>& allocation) {
    std::uint64_t address = 0;
    const CUresult error =
        allocate_device(context, MemoryKind::kPooled, bytes, 0, nullptr, address);
    if (error != CUDA_SUCCESS) {
        return error;
    }
    allocation.reset(new GraphAllocation(address, bytes, context.device.ordinal));
    const std::lock_guard lock(book().mutex);
    book().known[address] = allocation;
    GraphMemoryUse& use = book().use[context.device.ordinal];
    use.reserved += bytes;
    use.reserved_high = std::max(use.reserved_high, use.reserved);
    return CUDA_SUCCESS;
}

GraphAllocation::~GraphAllocation() {
    {
        const std::lock_guard lock(book().mutex);
        book().known.erase(address);
        book().use[device].reserved -= bytes;
    }
    free_device(address, MemoryKind::kPooled);
}

void AllocOperation::run() const {
    const std::lock_guard lock(book().mutex);
    if (book().live.emplace(allocation->address, allocation).second) {
        GraphMemoryUse& use = book().use[allocation->device];
        use.used += allocation->bytes;
        use.used_high = std::max(use.used_high, use.used);
    }
}

void FreeOperation::run() const { free_graph_allocation(address); }

bool free_graph_allocation(std::uint64_t address) {
    std::shared_ptr<GraphAllocation> last;  // Its destructor takes the lock again.
    {
        const std::lock_guard lock(book().mutex);
        if (!book().known.contains(address)) {
            return false;
        }
        const auto live = book().live.find(address);
        if (live != book().live.end()) {
            last = std::move(live->second);
            book().live.erase(live);
            book().use[last->device].used -= last->bytes;
        }
    }
    return true;
}

bool is_graph_allocation(std::uint64_t address) {
    const std::lock_guard lock(book().mutex);
    return book().known.contains(address);
}

GraphMemoryUse graph_memory_use(int device) {
    const std::lock_guard lock(book().mutex);
    return book().use[device];
}

void reset_graph_memory_high(int device, bool used) {
    const std::lock_guard lock(book().mutex);
    GraphMemoryUse& use = book().use[device];
    if (used) {
        use.used_high = use.used;
    } else {
        use.reserved_high = use.reserved;
    }
}

}  // namespace gantry::softgpu
