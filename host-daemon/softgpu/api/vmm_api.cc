// Virtual memory management: reserved addresses, physical memory, mappings, access.
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/memory/arena.h"
#include "host-daemon/softgpu/memory/kernel_reach.h"
#include "host-daemon/softgpu/memory/map.h"
#include "host-daemon/softgpu/memory/physical.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::kGranuleBytes;
using softgpu::MemoryKind;
using softgpu::MemoryMap;
using softgpu::MemoryRange;
using softgpu::PhysicalMemory;

// Hints from here on are honoured, as on hardware; unhinted reservations come from here.
#if defined(__SANITIZE_THREAD__)  // See memory/arena.h.
constexpr std::uint64_t kWindowBase = 0x08'0000'0000;
constexpr std::uint64_t kWindowBytes = std::uint64_t{64} << 30;
#else
constexpr std::uint64_t kWindowBase = 0x1000'0000'0000;
constexpr std::uint64_t kWindowBytes = std::uint64_t{16} << 40;
#endif

struct Reservations {
    std::mutex mutex;
    std::map<std::uint64_t, std::uint64_t> spans;
    softgpu::RangeAllocator window{kWindowBase, kWindowBytes};

    /// The span (address, bytes) that holds all of [address, address + bytes).
    std::optional<std::pair<std::uint64_t, std::uint64_t>> find(std::uint64_t address,
                                                                std::uint64_t bytes) {
        const std::lock_guard lock(mutex);
        auto span = spans.upper_bound(address);
        if (span == spans.begin()) {
            return std::nullopt;
        }
        --span;
        const std::uint64_t inside = address - span->first;
        if (inside > span->second || bytes > span->second - inside) {
            return std::nullopt;
        }
        return *span;
    }
};

Reservations& reservations() {
    static auto* all = new Reservations;
    return *all;
}

bool granular(std::uint64_t value) { return value % kGranuleBytes == 0; }

bool reserve_at(std::uint64_t address, std::uint64_t bytes) {
    void* wanted = reinterpret_cast<void*>(address);
    void* got = mmap(wanted, bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != MAP_FAILED && got != wanted) {
        munmap(got, bytes);
    }
    return got == wanted;
}

CUresult check_properties(const CUmemAllocationProp* prop) {
    GANTRY_REFUSE_IF(prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED,
                     CUDA_ERROR_INVALID_VALUE);
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return prop->location.type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE
                                                                   : CUDA_ERROR_NOT_SUPPORTED;
    }
    GANTRY_REFUSE_IF(softgpu::device_of(prop->location.id) == nullptr, CUDA_ERROR_INVALID_DEVICE);
    const bool handle_type = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ||
                             prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return handle_type ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

int protection(int access) {
    return access == CU_MEM_ACCESS_FLAGS_PROT_NONE   ? PROT_NONE
           : access == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ
                                                     : PROT_READ | PROT_WRITE;
}

std::shared_ptr<PhysicalMemory> physical(CUmemGenericAllocationHandle handle) {
    return softgpu::find<PhysicalMemory>(reinterpret_cast<void*>(handle));
}

CUmemGenericAllocationHandle publish(const std::shared_ptr<PhysicalMemory>& memory) {
    return reinterpret_cast<CUmemGenericAllocationHandle>(
        softgpu::HandleTable::instance().publish(memory));
}

/// Visits the mappings that make up [address, address + bytes) exactly; false when they do not.
template <typename Visit>
bool each_mapping(std::uint64_t address, std::uint64_t bytes, Visit visit) {
    const std::uint64_t end = address + bytes;
    for (std::uint64_t at = address; at < end;) {
        const auto range = MemoryMap::instance().find(at);
        if (!range || range->kind != MemoryKind::kMapped || range->base != at ||
            range->end() > end) {
            return false;
        }
        visit(*range);
        at = range->end();
    }
    return true;
}

}  // namespace

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) noexcept {
    constexpr size_t kPage = 4096;
    const bool power = (alignment & (alignment - 1)) == 0;
    if (ptr == nullptr || size == 0 || size % kPage != 0 || !power || addr % kPage != 0 ||
        flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Reservations& all = reservations();
    const std::lock_guard lock(all.mutex);
    if (addr >= kWindowBase && granular(addr) && reserve_at(addr, size)) {
        all.window.allocate_at(addr, size);  // Fails when it lies beyond the window: no matter.
        all.spans[addr] = size;
        *ptr = addr;
        return CUDA_SUCCESS;
    }
    const std::uint64_t align = std::max<std::uint64_t>(alignment, kGranuleBytes);
    for (int attempt = 0; attempt < 64; ++attempt) {
        const auto got = all.window.allocate(size, align);
        if (!got) {
            break;
        }
        if (reserve_at(*got, size)) {
            all.spans[*got] = size;
            *ptr = *got;
            return CUDA_SUCCESS;
        }
        // Somebody else's memory lies there, and may be large: each step past it is twice as long.
        all.window.allocate(kGranuleBytes << std::min(attempt, 20), kGranuleBytes);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) noexcept {
    Reservations& all = reservations();
    const std::lock_guard lock(all.mutex);
    const auto span = all.spans.find(ptr);
    if (span == all.spans.end() || span->second != size ||
        MemoryMap::instance().touches(ptr, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    softgpu::end_reach(ptr, size);  // Of mappings that were taken away: some kernel may still run.
    munmap(reinterpret_cast<void*>(ptr), size);
    if (ptr < kWindowBase + kWindowBytes && size <= kWindowBase + kWindowBytes - ptr) {
        all.window.free(ptr, size);
    }
    all.spans.erase(span);
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle_v1* handle, size_t size,
                     const CUmemAllocationProp_v1* prop, unsigned long long flags) noexcept {
    GANTRY_CU(softgpu::poison());
    GANTRY_REFUSE_IF(handle == nullptr || size == 0 || !granular(size) || flags != 0,
                     CUDA_ERROR_INVALID_VALUE);
    GANTRY_CU(check_properties(prop));
    std::shared_ptr<PhysicalMemory> memory;
    GANTRY_CU(PhysicalMemory::create(*softgpu::device_of(prop->location.id), size, *prop, memory));
    *handle = publish(memory);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle_v1 handle) noexcept {
    const auto memory = physical(handle);
    GANTRY_REFUSE_IF(memory == nullptr, CUDA_ERROR_INVALID_VALUE);
    if (memory->handles.fetch_sub(1) == 1) {
        softgpu::retract(*memory);
    }
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                  CUmemGenericAllocationHandle_v1 handle, unsigned long long flags) noexcept {
    GANTRY_CU(softgpu::poison());
    const auto memory = physical(handle);
    if (memory == nullptr || size == 0 || !granular(ptr) || !granular(size) || flags != 0 ||
        !granular(offset) || offset > memory->bytes || size > memory->bytes - offset) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto reserved = reservations().find(ptr, size);
    GANTRY_REFUSE_IF(!reserved, CUDA_ERROR_INVALID_VALUE);
    MemoryRange range;
    range.base = ptr;
    range.bytes = size;
    range.kind = MemoryKind::kMapped;
    std::tie(range.reserved_base, range.reserved_bytes) = *reserved;
    range.device = memory->device.ordinal;
    range.context = memory->device.primary->handle();
    range.access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    range.owner = memory;
    if (!MemoryMap::instance().insert(range)) {
        return CUDA_ERROR_INVALID_VALUE;  // Something is mapped there already.
    }
    if (!memory->map_at(ptr, size, offset)) {
        MemoryMap::instance().erase(ptr, MemoryKind::kMapped);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) noexcept {
    GANTRY_REFUSE_IF(size == 0 || !each_mapping(ptr, size, [](const MemoryRange&) {}),
                     CUDA_ERROR_INVALID_VALUE);
    softgpu::kernel_reach().remove(ptr, size);
    each_mapping(ptr, size, [](const MemoryRange& range) {
        mmap(reinterpret_cast<void*>(range.base), range.bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    });
    for (std::uint64_t at = ptr; at < ptr + size;) {
        const auto range = MemoryMap::instance().erase(at, MemoryKind::kMapped);
        at = range ? range->end() : ptr + size;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc_v1* desc,
                        size_t count) noexcept {
    GANTRY_REFUSE_IF(desc == nullptr || count == 0 || size == 0, CUDA_ERROR_INVALID_VALUE);
    int access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    for (size_t i = 0; i < count; ++i) {
        const int flags = desc[i].flags;
        const bool known = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                           flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                           flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        GANTRY_REFUSE_IF(!known, CUDA_ERROR_INVALID_VALUE);
        if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            softgpu::device_of(desc[i].location.id) == nullptr) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        access = std::max(access, flags);
    }
    GANTRY_REFUSE_IF(!each_mapping(ptr, size, [](const MemoryRange&) {}), CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(mprotect(reinterpret_cast<void*>(ptr), size, protection(access)) != 0,
                     CUDA_ERROR_OPERATING_SYSTEM);
    if (access == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        softgpu::kernel_reach().remove(ptr, size);
    } else {
        softgpu::kernel_reach().add(ptr, size, access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
    each_mapping(ptr, size, [access](const MemoryRange& range) {
        MemoryMap::instance().update(range.base,
                                     [access](MemoryRange& each) { each.access = access; });
    });
    return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation_v1* location,
                        CUdeviceptr ptr) noexcept {
    const auto range = MemoryMap::instance().find(ptr);
    GANTRY_REFUSE_IF(
        flags == nullptr || location == nullptr || !range || range->kind != MemoryKind::kMapped,
        CUDA_ERROR_INVALID_VALUE);
    *flags = static_cast<unsigned long long>(range->access);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp_v1* prop,
                                       CUmemAllocationGranularity_flags option) noexcept {
    if (granularity == nullptr || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                                   option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    GANTRY_CU(check_properties(prop));
    *granularity = kGranuleBytes;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp_v1* prop,
                                                CUmemGenericAllocationHandle_v1 handle) noexcept {
    const auto memory = physical(handle);
    GANTRY_REFUSE_IF(prop == nullptr || memory == nullptr, CUDA_ERROR_INVALID_VALUE);
    *prop = memory->prop;
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle_v1* handle, void* addr) noexcept {
    const auto range = MemoryMap::instance().find(reinterpret_cast<std::uint64_t>(addr));
    GANTRY_REFUSE_IF(handle == nullptr || !range || range->kind != MemoryKind::kMapped,
                     CUDA_ERROR_INVALID_VALUE);
    const auto memory = std::static_pointer_cast<PhysicalMemory>(range->owner);
    if (physical(reinterpret_cast<CUmemGenericAllocationHandle>(memory->handle())) == memory) {
        memory->handles.fetch_add(1);
        *handle = reinterpret_cast<CUmemGenericAllocationHandle>(memory->handle());
    } else {  // The old handle is gone; the mapping alone kept the memory.
        memory->handles = 1;
        *handle = publish(memory);
    }
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareableHandle, CUmemGenericAllocationHandle_v1 handle,
                                      CUmemAllocationHandleType handleType,
                                      unsigned long long flags) noexcept {
    const auto memory = physical(handle);
    if (shareableHandle == nullptr || memory == nullptr || flags != 0 ||
        handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || memory->descriptor < 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const int copy = memory->export_descriptor();
    GANTRY_REFUSE_IF(copy < 0, CUDA_ERROR_OPERATING_SYSTEM);
    *static_cast<int*>(shareableHandle) = copy;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle_v1* handle, void* osHandle,
                                        CUmemAllocationHandleType shHandleType) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(handle == nullptr || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                     CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<PhysicalMemory> memory;
    const auto descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(osHandle));
    GANTRY_CU(PhysicalMemory::import(context->device, descriptor, memory));
    *handle = publish(memory);
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
