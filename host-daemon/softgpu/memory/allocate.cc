#include "host-daemon/softgpu/memory/allocate.h"

#include <sys/mman.h>

#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/engine/reach.h"
#include "host-daemon/softgpu/memory/arena.h"
#include "host-daemon/softgpu/memory/pool.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kPage = 4096;

std::uint64_t pages(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

CUresult allocate_device(Context& context, MemoryKind kind, std::uint64_t bytes, unsigned flags,
                         std::shared_ptr<void> owner, std::uint64_t& address) {
    const auto got = Arena::instance().allocate(context.device, bytes);
    GANTRY_REFUSE_IF(!got, CUDA_ERROR_OUT_OF_MEMORY);
    MemoryRange range;
    range.base = *got;
    range.bytes = bytes;
    range.kind = kind;
    range.device = context.device.ordinal;
    range.context = context.handle();
    range.flags = flags;
    range.owner = std::move(owner);
    if (!MemoryMap::instance().insert(std::move(range))) {
        Arena::instance().free(context.device, *got, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    address = *got;
    return CUDA_SUCCESS;
}

CUresult free_device(std::uint64_t address, MemoryKind kind) {
    const auto range = MemoryMap::instance().erase(address, kind);
    GANTRY_REFUSE_IF(!range, CUDA_ERROR_INVALID_VALUE);
    Arena::instance().free(*device_of(range->device), range->base, range->bytes);
    return CUDA_SUCCESS;
}

CUresult allocate_pinned(Context& context, std::uint64_t bytes, unsigned flags, void** pointer) {
    void* memory = mmap(nullptr, pages(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    GANTRY_REFUSE_IF(memory == MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    MemoryRange range;
    range.base = reinterpret_cast<std::uint64_t>(memory);
    range.bytes = bytes;
    range.kind = MemoryKind::kPinned;
    range.device = context.device.ordinal;
    range.context = context.handle();
    range.flags = flags;
    if (!MemoryMap::instance().insert(range)) {
        munmap(memory, pages(bytes));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = memory;
    return CUDA_SUCCESS;
}

CUresult free_pinned(void* pointer) {
    const auto range =
        MemoryMap::instance().erase(reinterpret_cast<std::uint64_t>(pointer), MemoryKind::kPinned);
    GANTRY_REFUSE_IF(!range, CUDA_ERROR_INVALID_VALUE);
    Reach::await_kernels();
    munmap(pointer, pages(range->bytes));
    return CUDA_SUCCESS;
}

void free_all_of(const Context& context) {
    for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kManaged, MemoryKind::kPooled}) {
        for (const MemoryRange& range : MemoryMap::instance().list(kind)) {
            // Managed variables of libraries lie in the globals' part and outlive the context.
            const bool variable = range.base >= kGlobalsBase || range.base < kArenaBase;
            if (range.context != context.handle() || variable) {
                continue;
            }
            if (kind == MemoryKind::kPooled && range.owner != nullptr) {
                free_pooled(range.base);
            } else {
                free_device(range.base, kind);
            }
        }
    }
    for (const MemoryRange& range : MemoryMap::instance().list(MemoryKind::kPinned)) {
        if (range.context == context.handle()) {
            free_pinned(reinterpret_cast<void*>(range.base));
        }
    }
    for (const MemoryRange& range : MemoryMap::instance().list(MemoryKind::kRegistered)) {
        if (range.context == context.handle()) {
            MemoryMap::instance().erase(range.base, MemoryKind::kRegistered);
            Reach::await_kernels();
        }
    }
}

}  // namespace gantry::softgpu
