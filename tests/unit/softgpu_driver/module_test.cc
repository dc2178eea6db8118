#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "driver_fixture.h"

namespace gantry::softgpu::test {
namespace {

using ModuleTest = DriverTest;

TEST_F(ModuleTest, LaunchesWithParamsAndWithExtra) {
    CUfunction scale = function(load(), "scale");
    std::vector<unsigned> host(1000, 3);
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAlloc_v2(&p, host.size() * 4));
    ASSERT_CU(cuMemcpyHtoD_v2(p, host.data(), host.size() * 4));
    ASSERT_CU(launch_scale(scale, p, 5, 1000, nullptr));
    struct {
        CUdeviceptr p;
        unsigned factor;
        unsigned n;
    } packed = {p, 2, 1000};
    std::size_t bytes = sizeof packed;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    ASSERT_CU(cuLaunchKernel(scale, 16, 1, 1, 64, 1, 1, 0, nullptr, nullptr, extra));
    ASSERT_CU(cuMemcpyDtoH_v2(host.data(), p, host.size() * 4));
    EXPECT_EQ(host, std::vector<unsigned>(1000, 30));
}

TEST_F(ModuleTest, LaunchErrorsAreThoseOfHardware) {
    CUfunction scale = function(load(), "scale");
    CUfunction poke = function(load(), "poke");
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              cuLaunchKernel(poke, 1, 1, 1, 2048, 1, 1, 0, nullptr, nullptr, nullptr));
    CUdeviceptr p = 0;
    unsigned v = 0;
    void* params[] = {&p, &v};
    const auto launch = [&](unsigned gx, unsigned gy, unsigned bx, unsigned bz, unsigned shared) {
        return cuLaunchKernel(poke, gx, gy, 1, bx, 1, bz, shared, nullptr, params, nullptr);
    };
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(1, 1, 2048, 1, 0));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(0, 1, 32, 1, 0));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(1, 70000, 32, 1, 0));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(1, 1, 1, 128, 0));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(1, 1, 32, 1, 50000));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              cuLaunchKernel(scale, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
    EXPECT_CU(CUDA_ERROR_INVALID_HANDLE,
              cuLaunchKernel(nullptr, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
    EXPECT_CU(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
              cuLaunchCooperativeKernel(poke, 100000, 1, 1, 1024, 1, 1, 0, nullptr, params));
    ASSERT_CU(cuCtxSynchronize());
}

TEST_F(ModuleTest, GlobalsAreFoundAndHoldAddresses) {
    CUmodule module = load();
    CUdeviceptr counter = 0;
    CUdeviceptr pointer = 0;
    std::size_t bytes = 0;
    ASSERT_CU(cuModuleGetGlobal_v2(&counter, &bytes, module, "counter"));
    EXPECT_EQ(bytes, 4U);
    ASSERT_CU(cuModuleGetGlobal_v2(&pointer, nullptr, module, "pointer"));
    CUdeviceptr stored = 0;
    ASSERT_CU(cuMemcpyDtoH_v2(&stored, pointer, sizeof stored));
    EXPECT_EQ(stored, counter);
    unsigned n = 37;
    void* params[] = {&n};
    ASSERT_CU(
        cuLaunchKernel(function(module, "count"), 2, 1, 1, 3, 1, 1, 0, nullptr, params, nullptr));
    unsigned value = 0;
    ASSERT_CU(cuMemcpyDtoH_v2(&value, counter, sizeof value));
    EXPECT_EQ(value, 5U + 6 * 37);
    EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2(&counter, &bytes, module, "nobody"));
    ASSERT_CU(cuModuleUnload(module));
    EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuModuleGetGlobal_v2(&counter, &bytes, module, "counter"));
}

TEST_F(ModuleTest, BadPtxIsExplainedInTheLog) {
    char log[512] = {};
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
    CUmodule module = nullptr;
    EXPECT_CU(CUDA_ERROR_INVALID_PTX,
              cuModuleLoadDataEx(&module,
                                 ".version 8.0\n.target sm_75\n.address_size 64\n"
                                 ".visible .entry k() {\n  bogus.u32 %r1;\n ret; }",
                                 2, options, values));
    EXPECT_NE(std::strstr(log, "5:"), nullptr) << log;
    EXPECT_NE(std::strstr(log, "bogus"), nullptr) << log;
    EXPECT_CU(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, "garbage"));
}

TEST_F(ModuleTest, LibrariesLoadLazilyAndKernelsLaunch) {
    CUlibrary library = nullptr;
    ASSERT_CU(cuLibraryLoadData(&library, "garbage", nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUkernel kernel = nullptr;
    EXPECT_CU(CUDA_ERROR_INVALID_IMAGE, cuLibraryGetKernel(&kernel, library, "poke"));
    ASSERT_CU(cuLibraryUnload(library));
    ASSERT_CU(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    ASSERT_CU(cuLibraryGetKernel(&kernel, library, "poke"));
    EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&kernel, library, "nobody"));
    unsigned count = 0;
    ASSERT_CU(cuLibraryGetKernelCount(&count, library));
    EXPECT_EQ(count, 4U);
    std::size_t offset = 0;
    std::size_t size = 0;
    ASSERT_CU(cuKernelGetParamInfo(kernel, 1, &offset, &size));
    EXPECT_EQ(offset, 8U);
    EXPECT_EQ(size, 4U);
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuKernelGetParamInfo(kernel, 2, &offset, &size));
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAlloc_v2(&p, 4));
    ASSERT_CU(launch_poke(reinterpret_cast<CUfunction>(kernel), p, 77, nullptr));
    unsigned value = 0;
    ASSERT_CU(cuMemcpyDtoH_v2(&value, p, 4));
    EXPECT_EQ(value, 77U);
    ASSERT_CU(cuLibraryUnload(library));
    EXPECT_CU(CUDA_ERROR_INVALID_HANDLE,
              launch_poke(reinterpret_cast<CUfunction>(kernel), p, 78, nullptr));
}

TEST_F(ModuleTest, WhatEndsTwiceTakesNobodyElsesHandle) {
    CUlibrary library = nullptr;
    ASSERT_CU(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUmodule module = nullptr;
    ASSERT_CU(cuLibraryGetModule(&module, library));
    const CUfunction poke = function(module, "poke");
    ASSERT_CU(cuModuleUnload(module));
    // Handles are used again after many others have ended: some event gets the function's.
    std::vector<CUevent> events(4000);
    for (int round = 0; round < 2; ++round) {
        for (CUevent& event : events) {
            ASSERT_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        }
        for (std::size_t i = 0; round == 0 && i < events.size(); ++i) {
            ASSERT_CU(cuEventDestroy_v2(events[i]));
        }
    }
    const auto is_poke = [&](CUevent event) {
        return reinterpret_cast<std::uintptr_t>(event) == reinterpret_cast<std::uintptr_t>(poke);
    };
    ASSERT_TRUE(std::any_of(events.begin(), events.end(), is_poke));
    ASSERT_CU(cuLibraryUnload(library));  // Ends the module and its functions as well.
    for (const CUevent event : events) {
        ASSERT_CU(cuEventQuery(event));
        ASSERT_CU(cuEventDestroy_v2(event));
    }
}

TEST_F(ModuleTest, LinkJoinsUnitsIntoALoadableImage) {
    const char* caller =
        ".version 8.0\n.target sm_75\n.address_size 64\n"
        ".extern .global .align 4 .u32 shared_value;\n"
        ".visible .entry read(.param .u64 p) {\n"
        " .reg .b32 %r<2>; .reg .b64 %d<2>;\n"
        " ld.param.u64 %d0, [p]; ld.global.u32 %r0, [shared_value];\n"
        " st.global.u32 [%d0], %r0; ret; }";
    const char* owner =
        ".version 8.0\n.target sm_75\n.address_size 64\n"
        ".visible .global .align 4 .u32 shared_value = 4711;\n";
    CUlinkState state = nullptr;
    ASSERT_CU(cuLinkCreate_v2(0, nullptr, nullptr, &state));
    for (const char* text : {caller, owner}) {
        ASSERT_CU(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, const_cast<char*>(text),
                                   std::strlen(text) + 1, "unit", 0, nullptr, nullptr));
    }
    void* image = nullptr;
    std::size_t bytes = 0;
    ASSERT_CU(cuLinkComplete(state, &image, &bytes));
    const std::string copy(static_cast<const char*>(image), bytes);
    ASSERT_CU(cuLinkDestroy(state));
    CUmodule module = nullptr;
    ASSERT_CU(cuModuleLoadData(&module, copy.data()));
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAlloc_v2(&p, 4));
    void* params[] = {&p};
    ASSERT_CU(
        cuLaunchKernel(function(module, "read"), 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
    unsigned value = 0;
    ASSERT_CU(cuMemcpyDtoH_v2(&value, p, 4));
    EXPECT_EQ(value, 4711U);
}

TEST_F(ModuleTest, StickyErrorPoisonsTheProcess) {
    CUfunction poke = function(load(), "poke");
    ASSERT_CU(launch_poke(poke, 0x10, 1, nullptr));
    EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    CUdeviceptr p = 0;
    EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&p, 4));
    EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamQuery(nullptr));
    EXPECT_CU(CUDA_ERROR_NOT_PERMITTED, cuDevicePrimaryCtxReset_v2(0));
    int count = 0;
    EXPECT_CU(CUDA_SUCCESS, cuDeviceGetCount(&count));
    EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace gantry::softgpu::test
