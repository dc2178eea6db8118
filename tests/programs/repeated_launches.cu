// Launches that repeat faster than a driver takes them, each one's result depending on the one
// before: with arguments that change, several kernels and sizes, other commands between, streams,
// a module that is unloaded and loaded again with other code, a function that is configured later,
// large arguments. At the midpoint thousands of them are on their way.
#include <cuda.h>

#include "driver_entry.h"
#include "program.h"

#define LAUNCHES 3000

struct Wide {
    uint32_t words[200];
};

__global__ void scale(uint32_t* x, uint32_t factor, uint32_t value) { *x = *x * factor + value; }

__global__ void fold(uint32_t* x, uint32_t value) {
    // All threads together, so that the size of the launch is part of the result.
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        *x = (*x ^ value) + blockDim.x * gridDim.x;
    }
}

__global__ void wide(uint32_t* x, Wide values) { *x = *x * 5 + values.words[*x % 200]; }

static uint32_t host_scale(uint32_t x, uint32_t factor, uint32_t value) {
    return x * factor + value;
}

static void check(const char* what, const uint32_t* device, uint32_t want) {
    uint32_t got = 0;
    CHECK(cudaMemcpy(&got, device, sizeof got, cudaMemcpyDeviceToHost));
    if (got != want) {
        fprintf(stderr, "%s: %u instead of %u\n", what, got, want);
        exit(1);
    }
}

/// Three kernels in turn, seven sizes: no length of a batch divides all of it.
static uint32_t mixed(uint32_t* device, uint32_t want, cudaStream_t stream, int launches) {
    Wide values;
    for (int i = 0; i < launches; ++i) {
        const uint32_t value = (uint32_t)i * 2654435761u;
        if (i % 3 == 0) {
            scale<<<1, 1, 0, stream>>>(device, 3, value);
            want = host_scale(want, 3, value);
        } else if (i % 3 == 1) {
            const unsigned blocks = 1 + (unsigned)i % 7;
            fold<<<blocks, 32, 0, stream>>>(device, value);
            want = (want ^ value) + 32 * blocks;
        } else {
            for (uint32_t k = 0; k < 200; ++k) {
                values.words[k] = value + k * k;
            }
            wide<<<1, 1, 0, stream>>>(device, values);
            want = want * 5 + values.words[want % 200];
        }
    }
    return want;
}

/// The same names in each, with other numbers in the code.
static CUmodule load(int number) {
    char text[1024];
    snprintf(text, sizeof text,
             ".version 7.0\n.target sm_75\n.address_size 64\n"
             ".visible .entry step(.param .u64 x)\n{\n"
             ".reg .b32 %%r<3>;\n.reg .b64 %%d;\n"
             "ld.param.u64 %%d, [x];\nld.global.u32 %%r1, [%%d];\n"
             "mad.lo.u32 %%r1, %%r1, 7, %d;\nst.global.u32 [%%d], %%r1;\nret;\n}\n",
             number);
    CUmodule module = NULL;
    ENTRY(cuModuleLoadData, 2000);
    OK(cuModuleLoadData_(&module, text));
    return module;
}

static uint32_t reloaded(uint32_t* device, uint32_t want) {
    ENTRY(cuModuleGetFunction, 2000);
    ENTRY(cuModuleUnload, 2000);
    ENTRY(cuLaunchKernel, 4000);
    for (int number = 1; number <= 4; ++number) {
        CUmodule module = load(number);
        CUfunction step = NULL;
        OK(cuModuleGetFunction_(&step, module, "step"));
        void* arguments[] = {&device};
        for (int i = 0; i < 500; ++i) {
            OK(cuLaunchKernel_(step, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
            want = want * 7 + (uint32_t)number;
        }
        OK(cuModuleUnload_(module));
        check("a module that was loaded again", device, want);
    }
    return want;
}

int main() {
    uint32_t* device = NULL;
    CHECK(cudaMalloc(&device, 64));
    CHECK(cudaMemset(device, 0, 64));
    uint32_t want = 0;

    for (int i = 0; i < LAUNCHES; ++i) {
        scale<<<1, 1>>>(device, 3, (uint32_t)i);
        want = host_scale(want, 3, (uint32_t)i);
    }
    check("one kernel", device, want);

    want = mixed(device, want, NULL, LAUNCHES);
    check("three kernels", device, want);

    // What stands between keeps its place.
    for (int i = 0; i < 60; ++i) {
        want = mixed(device, want, NULL, 40);
        CHECK(cudaMemcpyAsync(device + 1, device, 4, cudaMemcpyDeviceToDevice));
        CHECK(cudaMemsetAsync(device, i, 4));
        scale<<<1, 1>>>(device, 3, 1);
        check("what stands between, copied", device + 1, want);
        want = host_scale((uint32_t)i * 0x01010101u, 3, 1);
    }
    check("what stands between", device, want);

    // Two streams, one word each; the second waits for the first at the end.
    cudaStream_t streams[2];
    cudaEvent_t done;
    CHECK(cudaStreamCreateWithFlags(&streams[0], cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithPriority(&streams[1], cudaStreamNonBlocking, -1));
    CHECK(cudaEventCreate(&done));
    CHECK(cudaMemset(device + 2, 0, 8));
    CHECK(cudaDeviceSynchronize());
    uint32_t wants[2] = {0, 0};
    for (int round = 0; round < 20; ++round) {
        for (int s = 0; s < 2; ++s) {
            for (int i = 0; i < 100; ++i) {
                scale<<<1, 1, 0, streams[s]>>>(device + 2 + s, 5, (uint32_t)(i + s));
                wants[s] = host_scale(wants[s], 5, (uint32_t)(i + s));
            }
        }
    }
    CHECK(cudaEventRecord(done, streams[0]));
    CHECK(cudaStreamWaitEvent(streams[1], done, 0));
    CHECK(cudaStreamSynchronize(streams[1]));
    check("first stream", device + 2, wants[0]);
    check("second stream", device + 3, wants[1]);

    want = reloaded(device, want);

    // A function that is configured amid its launches, and one that then may have more memory.
    for (int round = 0; round < 4; ++round) {
        for (int i = 0; i < 200; ++i) {
            const int shared_bytes = round < 2 ? 0 : 60 * 1024;
            scale<<<1, 1, shared_bytes>>>(device, 3, 1);
            want = host_scale(want, 3, 1);
        }
        if (round == 1) {
            CHECK(cudaFuncSetAttribute(scale, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       60 * 1024));
        }
    }
    check("a function that was configured", device, want);

    want = mixed(device, want, streams[0], LAUNCHES);
    midpoint();
    want = mixed(device, want, streams[0], LAUNCHES);
    CHECK(cudaStreamSynchronize(streams[0]));
    check("across the midpoint", device, want);
    CHECK(cudaGetLastError());
    return pass("repeated_launches");
}
