// Device memory, page-locked host memory, and managed memory.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/core/call_rules.h"
#include "guest-shim/driver/core/objects.h"
#include "guest-shim/driver/core/ranges.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

constexpr std::uint64_t kPage = wire::kPageBytes;
constexpr std::uint64_t kPitchAlignment = 512;

void note_range(std::uint64_t address, std::uint64_t bytes, RangeKind kind, std::uint32_t flags) {
    Range range{};
    range.address = address;
    range.bytes = bytes;
    range.kind = kind;
    range.flags = flags;
    range.context = session::current_context();
    range.device = current_device();
    add_range(&range);
}

CUresult allocate_in_pool(void** out, size_t bytes, RangeKind kind, std::uint32_t flags) {
    if (const CUresult closed = session::gate(); closed != CUDA_SUCCESS) {
        return closed;
    }
    GANTRY_REFUSE_IF(out == nullptr || bytes == 0, CUDA_ERROR_INVALID_VALUE);
    void* memory = nullptr;
    if (const CUresult result = take_extent(bytes, flags, &memory); result != CUDA_SUCCESS) {
        return result;
    }
    note_range(bits(memory), bytes, kind, flags);
    *out = memory;
    return CUDA_SUCCESS;
}

CUresult free_in_pool(const Range& range) {
    return return_extent(reinterpret_cast<void*>(range.address));
}

CUresult free_device(const Range& range) {
    const CUresult result =
        call_status(cuda::Op::cuMemFree_v2, cuda::wire::cuMemFree_v2_call{range.address});
    if (result != CUDA_SUCCESS) {
        Range again = range;
        add_range(&again);
        return result;
    }
    // When a free returns its memory's handle opens nothing more in any process.
    return __builtin_expect(gives_memory(), 0) ? settle(result) : result;
}

}  // namespace

CUresult take_extent(std::uint64_t bytes, std::uint32_t flags, void** out) noexcept {
    void* memory = session::pinned_allocate(bytes);
    GANTRY_REFUSE_IF(memory == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    const std::uint64_t rounded = (bytes + kPage - 1) / kPage * kPage;
    const cuda::wire::cuMemHostAlloc_call arguments{bits(memory), rounded, flags, 0};
    const CUresult result = call_status(cuda::Op::cuMemHostAlloc, arguments);
    if (result != CUDA_SUCCESS) {
        session::pinned_free(memory);
        return result;
    }
    *out = memory;
    return CUDA_SUCCESS;
}

CUresult return_extent(void* address) noexcept {
    const CUresult result =
        call_status(cuda::Op::cuMemFreeHost, cuda::wire::cuMemFreeHost_call{bits(address)});
    session::pinned_free(address);
    return result;
}

void free_memory_of(std::uint64_t context) noexcept {
    Range range{};
    for (std::uint64_t from = 0; next_range(from, &range); from = range.address + 1) {
        if (range.context != context) {
            continue;
        }
        switch (range.kind) {
            case RangeKind::kDevice:
                if (range.owner == kOpenedRange) {
                    while (cuda_impl::cuIpcCloseMemHandle(range.address) == CUDA_SUCCESS) {
                    }
                } else if (Range gone{}; remove_range(range.address, &gone)) {
                    (void)free_device(gone);
                }
                break;
            case RangeKind::kHost:
            case RangeKind::kManaged:
                // A module's managed variables go with it.
                if (Range gone{}; range.owner == 0 && remove_range(range.address, &gone)) {
                    (void)free_in_pool(gone);
                }
                break;
            case RangeKind::kRegistered:
                (void)cuda_impl::cuMemHostUnregister(reinterpret_cast<void*>(range.address));
                break;
            case RangeKind::kGlobal: (void)remove_range(range.address, &range); break;
            default: break;
        }
    }
}

void forget_device_memory() noexcept {
    remove_mappings(0, ~std::uint64_t{0});
    Range range{};
    for (std::uint64_t from = 0; next_range(from, &range); from = range.address + 1) {
        if (is_in_arena(range.address) && !is_in_pool(range.address)) {
            (void)remove_range(range.address, &range);
        }
    }
}

}  // namespace gantry::shim

namespace gantry::shim::rules {

CUresult wants_memory(CUdeviceptr* address, std::size_t bytes) noexcept {
    GANTRY_REFUSE_IF(address == nullptr, CUDA_ERROR_INVALID_VALUE);
    *address = 0;
    return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : refuse_in_capture();
}

void memory_allocated(CUdeviceptr address, std::size_t bytes) noexcept {
    note_range(address, bytes, RangeKind::kDevice, 0);
}

}  // namespace gantry::shim::rules

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) noexcept {
    if (dptr != nullptr) {
        *dptr = 0;
    }
    if (dptr == nullptr || pPitch == nullptr || WidthInBytes == 0 || Height == 0 ||
        (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const size_t pitch = (WidthInBytes + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
    GANTRY_REFUSE_IF(pitch < WidthInBytes || Height > SIZE_MAX / pitch, CUDA_ERROR_OUT_OF_MEMORY);
    const CUresult result = cuMemAlloc_v2(dptr, pitch * Height);
    if (result == CUDA_SUCCESS) {
        *pPitch = pitch;
    }
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr dptr) noexcept {
    if (const CUresult closed = session::gate(); closed != CUDA_SUCCESS) {
        return closed;
    }
    if (dptr == 0) {
        return CUDA_SUCCESS;
    }
    if (const CUresult refused = refuse_in_capture(); refused != CUDA_SUCCESS) {
        return refused;
    }
    Range range{};
    if (!remove_range(dptr, &range)) {
        // A graph may have allocated it anew: the host knows.
        return is_in_arena(dptr) && !is_in_pool(dptr)
                   ? call_status(cuda::Op::cuMemFree_v2, cuda::wire::cuMemFree_v2_call{dptr})
                   : CUDA_ERROR_INVALID_VALUE;
    }
    switch (range.kind) {
        case RangeKind::kDevice:
        case RangeKind::kDeviceAsync: return free_device(range);
        case RangeKind::kManaged:
            if (range.owner == 0) {
                return free_in_pool(range);
            }
            [[fallthrough]];
        default: add_range(&range); return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) noexcept {
    constexpr unsigned kKnown =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    GANTRY_REFUSE_IF((Flags & ~kKnown) != 0, CUDA_ERROR_INVALID_VALUE);
    if (pp != nullptr && bytesize == 0) {
        *pp = nullptr;
        return CUDA_SUCCESS;
    }
    if (const CUresult refused = refuse_in_capture(); refused != CUDA_SUCCESS) {
        return refused;
    }
    return allocate_in_pool(pp, bytesize, RangeKind::kHost, Flags | CU_MEMHOSTALLOC_DEVICEMAP);
}

CUresult cuMemAllocHost_v2(void** pp, size_t bytesize) noexcept {
    return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemFreeHost(void* p) noexcept {
    Range range{};
    if (p == nullptr) {
        return CUDA_SUCCESS;
    }
    if (const CUresult refused = refuse_in_capture(); refused != CUDA_SUCCESS) {
        return refused;
    }
    GANTRY_REFUSE_IF(!remove_range(bits(p), &range), CUDA_ERROR_INVALID_VALUE);
    if (range.kind != RangeKind::kHost) {
        add_range(&range);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return free_in_pool(range);
}

CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) noexcept {
    if (dptr != nullptr) {
        *dptr = 0;
    }
    GANTRY_REFUSE_IF(flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST,
                     CUDA_ERROR_INVALID_VALUE);
    if (const CUresult refused = refuse_in_capture(); refused != CUDA_SUCCESS) {
        return refused;
    }
    void* memory = nullptr;
    const CUresult result =
        allocate_in_pool(dptr == nullptr ? nullptr : &memory, bytesize, RangeKind::kManaged, flags);
    if (result == CUDA_SUCCESS) {
        *dptr = bits(memory);
    }
    return result;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pdptr, void* p, unsigned int Flags) noexcept {
    Range range{};
    GANTRY_REFUSE_IF(pdptr == nullptr || Flags != 0 || !find_range(bits(p), &range),
                     CUDA_ERROR_INVALID_VALUE);
    if (range.kind == RangeKind::kRegistered) {
        *pdptr = range.alias + (bits(p) - range.address);
        return CUDA_SUCCESS;
    }
    GANTRY_REFUSE_IF(range.kind != RangeKind::kHost, CUDA_ERROR_INVALID_VALUE);
    *pdptr = bits(p);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* pFlags, void* p) noexcept {
    Range range{};
    GANTRY_REFUSE_IF(pFlags == nullptr || !find_range(bits(p), &range), CUDA_ERROR_INVALID_VALUE);
    if (range.kind != RangeKind::kHost && range.kind != RangeKind::kRegistered &&
        range.kind != RangeKind::kManaged) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pFlags = range.flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) noexcept {
    Memory memory{};
    GANTRY_REFUSE_IF(!find_memory(dptr, &memory) || memory.range.kind == RangeKind::kRegistered,
                     CUDA_ERROR_NOT_FOUND);
    if (pbase != nullptr) {
        *pbase = memory.mapping.address;
    }
    if (psize != nullptr) {
        *psize = memory.mapping.bytes;
    }
    return CUDA_SUCCESS;
}

// Managed memory lies in pages that guest and device share: there is nothing to move or advise.

namespace {

CUresult is_managed(CUdeviceptr address, size_t count) {
    Range range{};
    const bool fine = count != 0 && find_range(address, &range) &&
                      range.kind == RangeKind::kManaged &&
                      count <= range.address + range.bytes - address;
    return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult prefetch(CUdeviceptr address, size_t count, CUstream stream) {
    return is_stream(stream) ? is_managed(address, count) : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise, CUdevice) noexcept {
    return is_managed(devPtr, count);
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise, CUmemLocation) noexcept {
    return is_managed(devPtr, count);
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice, CUstream hStream) noexcept {
    return prefetch(devPtr, count, hStream);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation, unsigned int flags,
                               CUstream hStream) noexcept {
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : prefetch(devPtr, count, hStream);
}

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t, unsigned int) noexcept {
    return is_stream(hStream) ? is_managed(dptr, 1) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMemRangeGetAttribute(void* data, size_t dataSize, CUmem_range_attribute attribute,
                                CUdeviceptr devPtr, size_t count) noexcept {
    GANTRY_REFUSE_IF(data == nullptr || dataSize < 4 || dataSize % 4 != 0,
                     CUDA_ERROR_INVALID_VALUE);
    if (const CUresult result = is_managed(devPtr, count); result != CUDA_SUCCESS) {
        return result;
    }
    constexpr int kNowhere = -2;  // CU_DEVICE_INVALID
    auto* words = static_cast<int*>(data);
    const int value = attribute == CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY ? 0 : kNowhere;
    for (size_t i = 0; i < dataSize / 4; ++i) {
        words[i] = value;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemRangeGetAttributes(void** data, size_t* dataSizes, CUmem_range_attribute* attributes,
                                 size_t numAttributes, CUdeviceptr devPtr, size_t count) noexcept {
    if (data == nullptr || dataSizes == nullptr || attributes == nullptr || numAttributes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < numAttributes; ++i) {
        const CUresult result =
            cuMemRangeGetAttribute(data[i], dataSizes[i], attributes[i], devPtr, count);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
