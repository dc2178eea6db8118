#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "driver_fixture.h"

namespace gantry::softgpu::test {
namespace {

TEST(StartupTest, NothingWorksBeforeInit) {
    int count = 0;
    // Run by hand, tests share a process and an earlier one may have initialised the driver.
    if (cuDeviceGetCount(&count) == CUDA_SUCCESS) {
        return;  // Under ctest every test has a process of its own.
    }
    EXPECT_CU(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    int version = 0;
    EXPECT_CU(CUDA_SUCCESS, cuDriverGetVersion(&version));
    EXPECT_EQ(version, 13000);
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    EXPECT_CU(CUDA_SUCCESS, cuInit(0));
    EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
}

TEST(StartupTest, AttributesAreAnH200s) {
    ASSERT_CU(cuInit(0));
    const struct {
        int attribute;
        int value;
    } expected[] = {{1, 1024},  {5, 2147483647}, {8, 49152},  {16, 132},       {38, 62914560},
                    {39, 2048}, {75, 9},         {76, 0},     {81, 233472},    {97, 232448},
                    {106, 32},  {108, 39321600}, {111, 1024}, {139, 590680286}};
    for (const auto& each : expected) {
        int value = -1;
        EXPECT_CU(CUDA_SUCCESS,
                  cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(each.attribute), 0));
        EXPECT_EQ(value, each.value) << "attribute " << each.attribute;
    }
    int value = 0;
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(148), 0));
    EXPECT_CU(CUDA_ERROR_INVALID_DEVICE,
              cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 1));
}

TEST(StartupTest, EntryPointsByVersionAndStreamKind) {
    ASSERT_CU(cuInit(0));
    void* entry = nullptr;
    CUdriverProcAddressQueryResult status{};
    ASSERT_CU(cuGetProcAddress_v2("cuMemAlloc", &entry, 3020, 0, &status));
    EXPECT_EQ(entry, reinterpret_cast<void*>(&cuMemAlloc_v2));
    ASSERT_CU(cuGetProcAddress_v2("cuMemcpyHtoD", &entry, 7000, 2, &status));
    EXPECT_EQ(entry, reinterpret_cast<void*>(&cuMemcpyHtoD_v2_ptds));
    // A runtime's first probe: success, nothing found, and the status says so.
    EXPECT_CU(CUDA_SUCCESS, cuGetProcAddress_v2("", &entry, 0, 0, &status));
    EXPECT_EQ(entry, nullptr);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

TEST(StartupTest, AForkedChildGetsNotInitialized) {
    ASSERT_CU(cuInit(0));
    const pid_t child = fork();
    if (child == 0) {
        int count = 0;
        const bool right = cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                           cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED;
        _exit(right ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    int count = 0;
    EXPECT_CU(CUDA_SUCCESS, cuDeviceGetCount(&count));
}

using ContextTest = DriverTest;

TEST_F(ContextTest, StackAndLimitsAndReset) {
    CUcontext current = nullptr;
    CUcontext made = nullptr;
    ASSERT_CU(cuCtxCreate_v2(&made, 0, 0));
    ASSERT_CU(cuCtxGetCurrent(&current));
    EXPECT_EQ(current, made);
    ASSERT_CU(cuCtxPopCurrent_v2(&current));
    EXPECT_EQ(current, made);
    ASSERT_CU(cuCtxGetCurrent(&current));
    EXPECT_EQ(current, context_);
    ASSERT_CU(cuCtxDestroy_v2(made));
    EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxPushCurrent_v2(made));
    std::size_t limit = 0;
    ASSERT_CU(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
    EXPECT_EQ(limit, 1024U);
    ASSERT_CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 5000));
    ASSERT_CU(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
    EXPECT_EQ(limit, 5008U);
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1U << 20));
    EXPECT_CU(CUDA_ERROR_UNSUPPORTED_LIMIT, cuCtxGetLimit(&limit, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH));
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAlloc_v2(&p, 4096));
    ASSERT_CU(cuDevicePrimaryCtxReset_v2(0));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    ASSERT_CU(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
    EXPECT_EQ(limit, 1024U);
}

TEST_F(ContextTest, AGarbageHandleIsAnErrorNotACrash) {
    EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(reinterpret_cast<CUstream>(0x1234)));
    EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(reinterpret_cast<CUevent>(~0UL)));
    EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(reinterpret_cast<CUmodule>(context_)));
    EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(reinterpret_cast<CUcontext>(0x40)));
}

TEST(StartupTest, ResultsHaveNamesAndSentences) {
    const char* text = nullptr;
    EXPECT_EQ(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text), CUDA_SUCCESS);
    EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
    EXPECT_EQ(cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text), CUDA_SUCCESS);
    EXPECT_STREQ(text, "an illegal memory access was encountered");
    EXPECT_EQ(cuGetErrorName(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(text, nullptr);
    EXPECT_EQ(cuGetErrorString(CUDA_SUCCESS, nullptr), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace gantry::softgpu::test
