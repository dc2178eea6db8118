// Trap: the application's own mappings, as PyTorch's expandable segments make them: addresses that
// grow, one memory at two addresses, memory without an address, access taken away.
#include "driver_entry.h"

__global__ void fill(unsigned* data, size_t count, unsigned seed) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        data[i] = (unsigned)i * seed;
    }
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

    midpoint();

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
    OK(cuMemUnmap_(segment, 3 * unit));
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
