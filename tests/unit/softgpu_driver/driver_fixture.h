// Shared by the tests of the soft driver: a current primary context and small PTX programs.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "proto/cuda/gen/exports.h"

namespace gantry::softgpu::test {

// scale(p, f, n): p[i] *= f; counter += n by thread 0 of block 0; spin(flag): until *flag != 0.
inline constexpr const char* kPtx = R"(
.version 8.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counter = 5;
.visible .global .align 8 .u64 pointer = counter;
.global .align 4 .b8 hidden[8] = {1, 2, 3, 4, 5, 6, 7, 8};
.visible .entry scale(.param .u64 p, .param .u32 f, .param .u32 n)
{
    .reg .pred %q;
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
    ld.param.u64 %d0, [p];
    ld.param.u32 %r0, [f];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %q, %r5, %r1;
    @%q bra done;
    mul.wide.u32 %d1, %r5, 4;
    add.u64 %d2, %d0, %d1;
    ld.global.u32 %r6, [%d2];
    mul.lo.u32 %r6, %r6, %r0;
    st.global.u32 [%d2], %r6;
done:
    ret;
}
.visible .entry count(.param .u32 n)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<2>;
    ld.param.u32 %r0, [n];
    mov.u64 %d0, counter;
    atom.global.add.u32 %r1, [%d0], %r0;
    ret;
}
.visible .entry spin(.param .u64 flag)
{
    .reg .pred %q;
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d0, [flag];
again:
    ld.volatile.global.u32 %r0, [%d0];
    setp.eq.u32 %q, %r0, 0;
    @%q bra again;
    ret;
}
.visible .entry poke(.param .u64 p, .param .u32 v)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d0, [p];
    ld.param.u32 %r0, [v];
    st.global.u32 [%d0], %r0;
    ret;
}
)";

#define EXPECT_CU(expected, expression) EXPECT_EQ(static_cast<int>(expression), expected)
#define ASSERT_CU(expression) ASSERT_EQ(static_cast<int>(expression), CUDA_SUCCESS)

class DriverTest : public ::testing::Test {
protected:
    void SetUp() override {
        ASSERT_CU(cuInit(0));
        ASSERT_CU(cuDevicePrimaryCtxRetain(&context_, 0));
        ASSERT_CU(cuCtxSetCurrent(context_));
    }
    void TearDown() override { cuDevicePrimaryCtxReset_v2(0); }

    CUmodule load() {
        CUmodule module = nullptr;
        EXPECT_CU(CUDA_SUCCESS, cuModuleLoadData(&module, kPtx));
        return module;
    }
    CUfunction function(CUmodule module, const char* name) {
        CUfunction found = nullptr;
        EXPECT_CU(CUDA_SUCCESS, cuModuleGetFunction(&found, module, name));
        return found;
    }
    static CUresult launch_scale(CUfunction f, CUdeviceptr p, unsigned factor, unsigned n,
                                 CUstream stream) {
        void* params[] = {&p, &factor, &n};
        return cuLaunchKernel(f, (n + 63) / 64, 1, 1, 64, 1, 1, 0, stream, params, nullptr);
    }
    static CUresult launch_poke(CUfunction f, CUdeviceptr p, unsigned value, CUstream stream) {
        void* params[] = {&p, &value};
        return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
    }

    CUcontext context_ = nullptr;
};

}  // namespace gantry::softgpu::test
