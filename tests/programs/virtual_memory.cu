// Trap: the application's own mappings, as PyTorch's expandable segments make them: addresses that
// grow, one memory at two addresses, memory without an address, access taken away.
#include "driver_entry.h"

__global__ void fill(unsigned* data, size_t count, unsigned seed) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        data[i] = (unsigned)i * seed;
    }
}

/// What is said of an address that is mapped: natively the range is the reservation's, base and
/// size of the mapping its own. Nothing at all is said of one that is only reserved.
static void expect_mapping(CUdeviceptr address, CUdeviceptr base, size_t bytes,
                           CUdeviceptr reserved, size_t reserved_bytes) {
    ENTRY(cuPointerGetAttribute, 4000);
    ENTRY(cuMemGetAddressRange, 3020);
    const CUresult known = bytes != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    const struct {
        CUpointer_attribute attribute;
        unsigned long long wanted;
    } expected[] = {{CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, base},
                    {CU_POINTER_ATTRIBUTE_MAPPING_SIZE, bytes},
                    {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, reserved},
                    {CU_POINTER_ATTRIBUTE_RANGE_SIZE, reserved_bytes},
                    {CU_POINTER_ATTRIBUTE_CONTEXT, 0},
                    {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address}};
    for (const auto& each : expected) {
        unsigned long long value = 1;
        EXPECT_STATUS(cuPointerGetAttribute_(&value, each.attribute, address), known);
        EXPECT(known != CUDA_SUCCESS || value == each.wanted);
    }
    CUdeviceptr start = 0;
    size_t size = 0;
    EXPECT_STATUS(cuMemGetAddressRange_(&start, &size, address),
                  bytes != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
    EXPECT(bytes == 0 || (start == base && size == bytes));
    cudaPointerAttributes attributes = {};
    CHECK(cudaPointerGetAttributes(&attributes, (void*)address));
    EXPECT(attributes.type == (bytes != 0 ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered));
}

static unsigned long long buffer_id(CUdeviceptr address) {
    ENTRY(cuPointerGetAttribute, 4000);
    unsigned long long id = 0;
    OK(cuPointerGetAttribute_(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
    return id;
}

int main() {
    CHECK(cudaFree(nullptr));
    ENTRY(cuMemGetAllocationGranularity, 10020);
    ENTRY(cuMemAddressReserve, 10020);
    ENTRY(cuMemAddressFree, 10020);
    ENTRY(cuMemCreate, 10020);
    ENTRY(cuMemRelease, 10020);
    ENTRY(cuMemMap, 10020);
    ENTRY(cuMemUnmap, 10020);
    ENTRY(cuMemSetAccess, 10020);
    ENTRY(cuMemGetAccess, 10020);
    ENTRY(cuMemRetainAllocationHandle, 11000);
    ENTRY(cuMemGetAllocationPropertiesFromHandle, 10020);

    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemAccessDesc open = {};
    open.location = prop.location;
    open.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    size_t unit = 0;
    OK(cuMemGetAllocationGranularity_(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT(unit != 0 && unit % 4096 == 0);
    const size_t words = 2 * unit / sizeof(unsigned);

    // Many segments, each as large as a device's memory and an eighth.
    constexpr int kSegments = 40;
    CUdeviceptr segments[kSegments] = {};
    for (CUdeviceptr& address : segments) {
        OK(cuMemAddressReserve_(&address, 160ull << 30, 0, 0, 0));
    }
    for (const CUdeviceptr address : segments) {
        OK(cuMemAddressFree_(address, 160ull << 30));
    }

    // A segment of two pieces that are one array; the second is known by its mapping alone.
    CUdeviceptr segment = 0, twin = 0, closed = 0;
    CUmemGenericAllocationHandle first, second, lonely, again;
    OK(cuMemAddressReserve_(&segment, 64 * unit, 0, 0, 0));
    OK(cuMemAddressReserve_(&twin, unit, 0, 0, 0));
    OK(cuMemAddressReserve_(&closed, unit, 0, 0, 0));
    OK(cuMemCreate_(&first, unit, &prop, 0));
    OK(cuMemCreate_(&second, unit, &prop, 0));
    OK(cuMemCreate_(&lonely, unit, &prop, 0));
    OK(cuMemMap_(segment, unit, 0, first, 0));
    OK(cuMemMap_(segment + unit, unit, 0, second, 0));
    OK(cuMemSetAccess_(segment, 2 * unit, &open, 1));
    OK(cuMemRelease_(second));
    EXPECT_STATUS(cuMemMap_(segment, unit, 0, first, 0), CUDA_ERROR_INVALID_VALUE);
    unsigned* data = (unsigned*)segment;
    fill<<<8, 128>>>(data, words, 3);
    // The first piece at a second address; another is filled, then only its handle is left.
    OK(cuMemMap_(twin, unit, 0, first, 0));
    OK(cuMemSetAccess_(twin, unit, &open, 1));
    OK(cuMemMap_(closed, unit, 0, lonely, 0));
    OK(cuMemSetAccess_(closed, unit, &open, 1));
    fill<<<8, 128>>>((unsigned*)closed, unit / 4, 7);
    CHECK(cudaDeviceSynchronize());
    OK(cuMemUnmap_(closed, unit));
    unsigned long long flags = 0;
    OK(cuMemGetAccess_(&flags, &prop.location, segment + unit));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    unsigned word = 0;
    CHECK(cudaMemcpy(&word, (unsigned*)twin + 5, 4, cudaMemcpyDeviceToHost));
    EXPECT(word == 15);

    const unsigned long long ids[] = {buffer_id(segment), buffer_id(segment + unit)};
    EXPECT(ids[0] != ids[1]);
    const auto expect_mappings = [&] {
        expect_mapping(segment + 8, segment, unit, segment, 64 * unit);
        expect_mapping(segment + unit, segment + unit, unit, segment, 64 * unit);
        expect_mapping(segment + 2 * unit - 1, segment + unit, unit, segment, 64 * unit);
        expect_mapping(segment + 2 * unit, 0, 0, 0, 0);
        expect_mapping(twin + unit / 2, twin, unit, twin, unit);
        expect_mapping(closed, 0, 0, 0, 0);
        EXPECT(buffer_id(segment + 1) == ids[0] && buffer_id(segment + 2 * unit - 1) == ids[1]);
    };
    expect_mappings();

    midpoint();

    expect_mappings();

    static unsigned back[1 << 20];
    EXPECT(words <= sizeof back / sizeof back[0]);
    CHECK(cudaMemcpy(back, data, words * 4, cudaMemcpyDeviceToHost));  // Across both pieces.
    for (size_t i = 0; i < words; ++i) {
        EXPECT(back[i] == (unsigned)i * 3);
    }
    fill<<<8, 128>>>(data, words, 11);
    CHECK(cudaMemcpy(&word, (unsigned*)twin + 5, 4, cudaMemcpyDeviceToHost));
    EXPECT(word == 55);
    OK(cuMemMap_(closed, unit, 0, lonely, 0));
    OK(cuMemSetAccess_(closed, unit, &open, 1));
    CHECK(cudaMemcpy(&word, (unsigned*)closed + 9, 4, cudaMemcpyDeviceToHost));
    EXPECT(word == 63);
    CUmemAllocationProp seen = {};
    OK(cuMemRetainAllocationHandle_(&again, (void*)(segment + unit)));
    OK(cuMemGetAllocationPropertiesFromHandle_(&seen, again));
    EXPECT(seen.location.type == CU_MEM_LOCATION_TYPE_DEVICE && seen.location.id == 0);
    // The segment grows by memory that was there before, and shrinks to nothing.
    OK(cuMemMap_(segment + 2 * unit, unit, 0, again, 0));
    OK(cuMemSetAccess_(segment + 2 * unit, unit, &open, 1));
    CHECK(cudaMemcpy(&word, data + words + 2, 4, cudaMemcpyDeviceToHost));
    EXPECT(word == (unsigned)(words / 2 + 2) * 11);
    EXPECT_STATUS(cuMemAddressFree_(segment, 64 * unit), CUDA_ERROR_INVALID_VALUE);
    expect_mapping(segment + 2 * unit, segment + 2 * unit, unit, segment, 64 * unit);
    OK(cuMemUnmap_(segment + unit, 2 * unit));
    expect_mapping(segment, segment, unit, segment, 64 * unit);
    expect_mapping(segment + unit, 0, 0, 0, 0);
    OK(cuMemUnmap_(segment, unit));
    OK(cuMemUnmap_(twin, unit));
    OK(cuMemUnmap_(closed, unit));
    OK(cuMemRelease_(first));
    OK(cuMemRelease_(lonely));
    OK(cuMemRelease_(again));
    EXPECT_STATUS(cuMemRelease_(again), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree_(segment, 64 * unit));
    OK(cuMemAddressFree_(twin, unit));
    OK(cuMemAddressFree_(closed, unit));
    return pass("virtual_memory");
}
