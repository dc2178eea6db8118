// Trap: a card that is full. cuInit succeeds, and what does not need a context is told; a context
// finds no room, and is there when it is tried again later. On a card with room it is there at
// once.
#include <dlfcn.h>

#include "driver_entry.h"

__global__ void count(unsigned* words) { words[threadIdx.x] += threadIdx.x; }

/// Not by way of the runtime, which would make a context first.
template <typename Function>
static Function symbol(const char* name) {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(library != nullptr);
    void* function = dlsym(library, name);
    EXPECT(function != nullptr);
    return (Function)function;
}

int main(int argc, char** argv) {
    const int refused = argc > 1 ? atoi(argv[1]) : 0;
    auto init = symbol<decltype(&cuInit)>("cuInit");
    auto device_count = symbol<decltype(&cuDeviceGetCount)>("cuDeviceGetCount");
    auto attribute = symbol<decltype(&cuDeviceGetAttribute)>("cuDeviceGetAttribute");
    auto total = symbol<decltype(&cuDeviceTotalMem)>("cuDeviceTotalMem_v2");
    auto retain = symbol<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain");
    auto state = symbol<decltype(&cuDevicePrimaryCtxGetState)>("cuDevicePrimaryCtxGetState");
    int count_of_devices = 0, major = 0, is_active = 7;
    unsigned flags = 0;
    size_t bytes = 0;
    OK(init(0));
    OK(device_count(&count_of_devices));
    EXPECT(count_of_devices >= 1);
    OK(attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    EXPECT(major >= 3);
    OK(total(&bytes, 0));
    EXPECT(bytes > 0);
    CUcontext context = nullptr;
    for (int i = 0; i < refused; ++i) {
        EXPECT_STATUS(retain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
        OK(state(0, &flags, &is_active));
        EXPECT(is_active == 0);
    }
    OK(retain(&context, 0));
    EXPECT(context != nullptr);

    unsigned *words, back[32];
    size_t stack = 0;
    int least = 1, greatest = 1;
    CHECK(cudaMalloc((void**)&words, sizeof back));
    CHECK(cudaMemset(words, 0, sizeof back));
    for (int half = 0; half < 2; ++half) {
        count<<<1, 32>>>(words);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(back, words, sizeof back, cudaMemcpyDeviceToHost));
        for (unsigned i = 0; i < 32; ++i) {
            EXPECT(back[i] == i * (half + 1));
        }
        CHECK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
        EXPECT(stack > 0);
        CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        EXPECT(least == 0 && greatest < 0);
        if (half == 0) {
            midpoint();
        }
    }
    return pass("full_card");
}
