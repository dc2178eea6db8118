#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "driver_fixture.h"
#include "proto/wire/region.h"

namespace gantry::softgpu::test {
namespace {

constexpr std::size_t kMegabyte = 1U << 20;

using MemoryTest = DriverTest;

TEST_F(MemoryTest, AllocationsStartAsZerosAlsoWhenReused) {
    for (int round = 0; round < 3; ++round) {
        CUdeviceptr small = 0;
        CUdeviceptr large = 0;
        ASSERT_CU(cuMemAlloc_v2(&small, 1000));
        ASSERT_CU(cuMemAlloc_v2(&large, 3 * kMegabyte));
        std::vector<unsigned char> back(3 * kMegabyte, 1);
        ASSERT_CU(cuMemcpyDtoH_v2(back.data(), large, back.size()));
        EXPECT_EQ(back, std::vector<unsigned char>(back.size(), 0));
        ASSERT_CU(cuMemcpyDtoH_v2(back.data(), small, 1000));
        EXPECT_EQ(std::vector<unsigned char>(back.begin(), back.begin() + 1000),
                  std::vector<unsigned char>(1000, 0));
        ASSERT_CU(cuMemsetD8_v2(large, 0xab, 3 * kMegabyte));
        ASSERT_CU(cuMemsetD8_v2(small, 0xcd, 1000));
        ASSERT_CU(cuMemFree_v2(large));
        ASSERT_CU(cuMemFree_v2(small));
    }
}

TEST_F(MemoryTest, ErrorsAreThoseOfHardware) {
    CUdeviceptr p = 0;
    char host[16];
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&p, 0));
    EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, std::size_t{1} << 50));
    EXPECT_CU(CUDA_SUCCESS, cuMemFree_v2(0));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(12345));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(host, 0x123000, sizeof host));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              cuMemcpyHtoD_v2(reinterpret_cast<CUdeviceptr>(host), host, sizeof host));
    ASSERT_CU(cuMemAlloc_v2(&p, 1000));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(host, p, 3000000));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(p + 2, 0, 4));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(p, 0, 1U << 22));
    ASSERT_CU(cuMemFree_v2(p));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
}

TEST_F(MemoryTest, QuotaIsTheProfilesAndComesBackWhenFreed) {
    std::size_t free_before = 0;
    std::size_t total = 0;
    ASSERT_CU(cuMemGetInfo_v2(&free_before, &total));
    std::vector<CUdeviceptr> taken;
    CUdeviceptr p = 0;
    while (cuMemAlloc_v2(&p, 64 * kMegabyte) == CUDA_SUCCESS) {
        taken.push_back(p);
    }
    EXPECT_EQ(taken.size(), free_before / (64 * kMegabyte));
    for (const CUdeviceptr each : taken) {
        ASSERT_CU(cuMemFree_v2(each));
    }
    std::size_t free_after = 0;
    ASSERT_CU(cuMemGetInfo_v2(&free_after, &total));
    EXPECT_EQ(free_after, free_before);
}

TEST_F(MemoryTest, PointerAttributesTellKindsApart) {
    CUdeviceptr device = 0;
    CUdeviceptr managed = 0;
    void* pinned = nullptr;
    int pageable = 0;
    ASSERT_CU(cuMemAlloc_v2(&device, 4096));
    ASSERT_CU(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    ASSERT_CU(cuMemHostAlloc(&pinned, 4096, 0));
    unsigned type = 0;
    ASSERT_CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device + 100));
    EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
    ASSERT_CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    reinterpret_cast<CUdeviceptr>(pinned)));
    EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
    unsigned is_managed = 0;
    ASSERT_CU(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
    EXPECT_EQ(is_managed, 1U);
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    reinterpret_cast<CUdeviceptr>(&pageable)));
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    ASSERT_CU(cuMemGetAddressRange_v2(&base, &bytes, device + 10));
    EXPECT_EQ(base, device);
    EXPECT_EQ(bytes, 4096U);
}

TEST_F(MemoryTest, VirtualMemoryHonoursHintsAndAccess) {
    constexpr CUdeviceptr kWanted = wire::kArenaBase;
    CUdeviceptr base = 0;
    ASSERT_CU(cuMemAddressReserve(&base, 64 * kMegabyte, 0, kWanted, 0));
    ASSERT_EQ(base, kWanted);
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_CU(cuMemCreate(&handle, 4 * kMegabyte, &prop, 0));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, 8 * kMegabyte, 0, handle, 0));
    ASSERT_CU(cuMemMap(base, 4 * kMegabyte, 0, handle, 0));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, 4 * kMegabyte, 0, handle, 0));
    CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    ASSERT_CU(cuMemSetAccess(base, 4 * kMegabyte, &access, 1));
    ASSERT_CU(cuMemsetD32_v2(base, 0x01020304, kMegabyte));

    // The exported descriptor is the same memory, also after the handle is gone.
    int descriptor = -1;
    ASSERT_CU(cuMemExportToShareableHandle(&descriptor, handle,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    ASSERT_CU(cuMemRelease(handle));
    CUmemGenericAllocationHandle imported = 0;
    ASSERT_CU(cuMemImportFromShareableHandle(
        &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(descriptor);
    const CUdeviceptr second = base + 32 * kMegabyte;
    ASSERT_CU(cuMemMap(second, 4 * kMegabyte, 0, imported, 0));
    ASSERT_CU(cuMemSetAccess(second, 4 * kMegabyte, &access, 1));
    unsigned seen = 0;
    ASSERT_CU(cuMemcpyDtoH_v2(&seen, second + 400, sizeof seen));
    EXPECT_EQ(seen, 0x01020304U);

    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base, 64 * kMegabyte));
    ASSERT_CU(cuMemUnmap(base, 4 * kMegabyte));
    ASSERT_CU(cuMemUnmap(second, 4 * kMegabyte));
    ASSERT_CU(cuMemRelease(imported));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemRelease(imported));
    ASSERT_CU(cuMemAddressFree(base, 64 * kMegabyte));
}

TEST_F(MemoryTest, ReservationsGoPastLargeForeignMemory) {
    constexpr std::size_t kForeign = std::size_t{1} << 30;
    CUdeviceptr first = 0;
    ASSERT_CU(cuMemAddressReserve(&first, 2 * kMegabyte, 0, 0, 0));
    ASSERT_CU(cuMemAddressFree(first, 2 * kMegabyte));
    void* const place = reinterpret_cast<void*>(first);
    ASSERT_EQ(mmap(place, kForeign, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0),
              place);
    CUdeviceptr beyond = 0;
    EXPECT_CU(CUDA_SUCCESS, cuMemAddressReserve(&beyond, 2 * kMegabyte, 0, 0, 0));
    EXPECT_GE(beyond, first + kForeign);
    EXPECT_CU(CUDA_SUCCESS, cuMemAddressFree(beyond, 2 * kMegabyte));
    munmap(place, kForeign);
}

TEST_F(MemoryTest, PoolsReuseInStreamOrderAndCount) {
    CUmemoryPool pool = nullptr;
    ASSERT_CU(cuDeviceGetDefaultMemPool(&pool, 0));
    cuuint64_t keep = ~cuuint64_t{0};
    ASSERT_CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    CUdeviceptr first = 0;
    ASSERT_CU(cuMemAllocAsync(&first, 1U << 20, nullptr));
    ASSERT_CU(cuMemsetD8Async(first, 7, 1U << 20, nullptr));
    ASSERT_CU(cuMemFreeAsync(first, nullptr));
    ASSERT_CU(cuStreamSynchronize(nullptr));
    cuuint64_t used = 1;
    ASSERT_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    EXPECT_EQ(used, 0U);
    CUdeviceptr second = 0;
    ASSERT_CU(cuMemAllocAsync(&second, 1U << 20, nullptr));
    EXPECT_EQ(second, first);
    unsigned char byte = 1;
    ASSERT_CU(cuMemcpyDtoH_v2(&byte, second, 1));
    EXPECT_EQ(byte, 0);
    ASSERT_CU(cuMemFree_v2(second));
    ASSERT_CU(cuMemPoolTrimTo(pool, 0));
    cuuint64_t reserved = 1;
    ASSERT_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    EXPECT_EQ(reserved, 0U);
}

TEST_F(MemoryTest, CopiesTwoAndThreeDimensional) {
    CUdeviceptr device = 0;
    std::size_t pitch = 0;
    ASSERT_CU(cuMemAllocPitch_v2(&device, &pitch, 100, 10, 4));
    EXPECT_EQ(pitch, 512U);
    unsigned char host[10][100];
    for (unsigned y = 0; y < 10; ++y) {
        std::memset(host[y], static_cast<int>(y + 1), sizeof host[y]);
    }
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = host;
    copy.srcPitch = 100;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = device;
    copy.dstPitch = pitch;
    copy.WidthInBytes = 100;
    copy.Height = 10;
    ASSERT_CU(cuMemcpy2D_v2(&copy));
    unsigned char byte = 0;
    ASSERT_CU(cuMemcpyDtoH_v2(&byte, device + 7 * pitch + 99, 1));
    EXPECT_EQ(byte, 8);
    copy.Height = 11;
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&copy));
}

}  // namespace
}  // namespace gantry::softgpu::test
