// Exported physical memory between processes. The other process is this test program itself, run
// again with a socket in its environment: a child made by fork alone has no driver.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "driver_fixture.h"
#include "proto/base/packet.h"
#include "proto/wire/region.h"

namespace gantry::softgpu::test {
namespace {

using ShareTest = DriverTest;

constexpr std::size_t kBytes = 4U << 20;
constexpr std::size_t kWords = kBytes / 4;
constexpr CUdeviceptr kBase = wire::kArenaBase;
constexpr unsigned kFirst = 0x01020304;
constexpr unsigned kSecond = 0x0a0b0c0d;
constexpr char kSocketVariable[] = "SHARE_TEST_SOCKET";

CUmemAllocationProp exportable() {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return prop;
}

CUresult import_file(int descriptor, CUmemGenericAllocationHandle* handle) {
    return cuMemImportFromShareableHandle(
        handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/// Reserves and maps at kBase.
void map_at_base(CUmemGenericAllocationHandle handle) {
    CUdeviceptr base = 0;
    ASSERT_CU(cuMemAddressReserve(&base, kBytes, 0, kBase, 0));
    ASSERT_EQ(base, kBase);
    ASSERT_CU(cuMemMap(base, kBytes, 0, handle, 0));
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    ASSERT_CU(cuMemSetAccess(base, kBytes, &access, 1));
}

void let_go(CUmemGenericAllocationHandle handle) {
    ASSERT_CU(cuMemUnmap(kBase, kBytes));
    ASSERT_CU(cuMemRelease(handle));
    ASSERT_CU(cuMemAddressFree(kBase, kBytes));
}

bool holds(unsigned value) {
    std::vector<unsigned> words(kWords);
    return cuMemcpyDtoH_v2(words.data(), kBase, kBytes) == CUDA_SUCCESS &&
           words == std::vector<unsigned>(kWords, value);
}

std::size_t free_bytes() {
    std::size_t free_now = 0;
    std::size_t total = 0;
    EXPECT_CU(CUDA_SUCCESS, cuMemGetInfo_v2(&free_now, &total));
    return free_now;
}

void send_file(int socket, int descriptor) {
    const char byte = 1;
    ASSERT_EQ(send_packet_with(socket, &byte, 1, &descriptor, descriptor < 0 ? 0 : 1), 1);
}

/// -1: it came without one.
void receive_file(int socket, int* descriptor) {
    char byte = 0;
    *descriptor = -1;
    const ReceivedPacket got = receive_packet_with(socket, &byte, 1, descriptor, 1);
    ASSERT_EQ(got.bytes, 1);
}

pid_t start_other(int socket) {
    const pid_t child = fork();
    if (child == 0) {
        fcntl(socket, F_SETFD, 0);
        setenv(kSocketVariable, std::to_string(socket).c_str(), 1);
        execl("/proc/self/exe", "other",
              "--gtest_filter=ShareTest.AnotherProcessMapsTheSamePagesAndOutlivesTheMaker",
              static_cast<char*>(nullptr));
        _exit(127);
    }
    return child;
}

/// The importing process: takes the memory over, outlives its maker, gives it on.
void be_the_other_process(int socket) {
    int descriptor = -1;
    receive_file(socket, &descriptor);
    ASSERT_GE(descriptor, 0);
    const std::size_t free_before = free_bytes();
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_CU(import_file(descriptor, &handle));
    close(descriptor);
    EXPECT_EQ(free_bytes(), free_before - kBytes);
    CUmemAllocationProp prop{};
    ASSERT_CU(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    EXPECT_EQ(prop.type, CU_MEM_ALLOCATION_TYPE_PINNED);
    EXPECT_EQ(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    map_at_base(handle);
    EXPECT_TRUE(holds(kFirst));
    ASSERT_CU(cuMemsetD32_v2(kBase, kSecond, kWords));
    ASSERT_CU(cuCtxSynchronize());
    send_file(socket, -1);
    receive_file(socket, &descriptor);  // The maker holds nothing any more.
    EXPECT_TRUE(holds(kSecond));
    int again = -1;
    ASSERT_CU(
        cuMemExportToShareableHandle(&again, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_file(socket, again);
    close(again);
    let_go(handle);
    EXPECT_EQ(free_bytes(), free_before);
}

TEST_F(ShareTest, AnotherProcessMapsTheSamePagesAndOutlivesTheMaker) {
    if (const char* socket = std::getenv(kSocketVariable)) {
        return be_the_other_process(std::atoi(socket));
    }
    const std::size_t free_before = free_bytes();
    const CUmemAllocationProp prop = exportable();
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_CU(cuMemCreate(&handle, kBytes, &prop, 0));
    map_at_base(handle);
    ASSERT_CU(cuMemsetD32_v2(kBase, kFirst, kWords));
    ASSERT_CU(cuCtxSynchronize());
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    const pid_t child = start_other(pair[1]);
    ASSERT_GT(child, 0);
    close(pair[1]);  // So that a child that fails is seen here.
    int descriptor = -1;
    ASSERT_CU(cuMemExportToShareableHandle(&descriptor, handle,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_file(pair[0], descriptor);
    close(descriptor);
    receive_file(pair[0], &descriptor);  // It has written.
    EXPECT_TRUE(holds(kSecond));
    let_go(handle);
    EXPECT_EQ(free_bytes(), free_before);
    send_file(pair[0], -1);
    receive_file(pair[0], &descriptor);  // Only this descriptor, soon, keeps the memory.
    ASSERT_GE(descriptor, 0);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    ASSERT_CU(import_file(descriptor, &handle));
    close(descriptor);
    map_at_base(handle);
    EXPECT_TRUE(holds(kSecond));
    let_go(handle);
    EXPECT_EQ(free_bytes(), free_before);
    close(pair[0]);
}

TEST_F(ShareTest, ImportWhereItWasMadeCountsOnceAndKeepsIt) {
    const std::size_t free_before = free_bytes();
    const CUmemAllocationProp prop = exportable();
    CUmemGenericAllocationHandle made = 0;
    ASSERT_CU(cuMemCreate(&made, kBytes, &prop, 0));
    int descriptor = -1;
    ASSERT_CU(cuMemExportToShareableHandle(&descriptor, made,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    EXPECT_NE(fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0);
    CUmemGenericAllocationHandle imported = 0;
    ASSERT_CU(import_file(descriptor, &imported));
    EXPECT_NE(ftruncate(descriptor, 0), 0) << "a descriptor that was given away can cut it short";
    close(descriptor);
    EXPECT_EQ(free_bytes(), free_before - kBytes);
    ASSERT_CU(cuMemRelease(made));
    EXPECT_EQ(free_bytes(), free_before - kBytes);
    ASSERT_CU(cuMemRelease(imported));
    EXPECT_EQ(free_bytes(), free_before);
}

TEST_F(ShareTest, ForeignDescriptorsAndHandlesAreRefused) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, import_file(-1, &handle));
    const int pipe_like = open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, import_file(pipe_like, &handle));
    close(pipe_like);
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, import_file(pipe_like, &handle));  // Closed by now.
    const int plain = memfd_create("share_test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(ftruncate(plain, kBytes), 0);  // As long as memory could be, but no driver's.
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, import_file(plain, &handle));
    close(plain);
    CUmemAllocationProp prop = exportable();
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    ASSERT_CU(cuMemCreate(&handle, kBytes, &prop, 0));
    int descriptor = -1;
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              cuMemExportToShareableHandle(&descriptor, handle,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    ASSERT_CU(cuMemRelease(handle));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              cuMemExportToShareableHandle(&descriptor, handle,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

TEST_F(ShareTest, ExportableMemoryHasTheGranularityOfAnyOther) {
    CUmemAllocationProp prop = exportable();
    std::size_t shared = 0;
    std::size_t own = 0;
    ASSERT_CU(cuMemGetAllocationGranularity(&shared, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    ASSERT_CU(cuMemGetAllocationGranularity(&own, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT_EQ(shared, own);
    EXPECT_EQ(shared, 2U << 20);
    int supported = 0;
    ASSERT_CU(cuDeviceGetAttribute(
        &supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
    EXPECT_EQ(supported, 1);
    CUmemGenericAllocationHandle handle = 0;
    prop = exportable();
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, shared / 2, &prop, 0));
    EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, std::size_t{1} << 46, &prop, 0));
}

}  // namespace
}  // namespace gantry::softgpu::test
