// Trap: limits, cache preferences, and attributes of functions and streams are set once, early, and
// must still be what they were after the GPU work has moved.
#include "program.h"

__global__ void fill(unsigned* out) {
    extern __shared__ unsigned shared[];
    shared[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

constexpr int kDynamicBytes = 64 << 10;

struct Settings {
    size_t stack, fifo, fetch;
    cudaFuncCache cache;
    cudaFuncAttributes function;
    cudaSynchronizationPolicy policy;
    cudaAccessPolicyWindow window;
    int priority;
    unsigned flags;
};

static Settings read_settings(cudaStream_t stream) {
    Settings s;
    memset(&s, 0, sizeof s);
    CHECK(cudaDeviceGetLimit(&s.stack, cudaLimitStackSize));
    CHECK(cudaDeviceGetLimit(&s.fifo, cudaLimitPrintfFifoSize));
    CHECK(cudaDeviceGetLimit(&s.fetch, cudaLimitMaxL2FetchGranularity));
    CHECK(cudaDeviceGetCacheConfig(&s.cache));
    CHECK(cudaFuncGetAttributes(&s.function, fill));
    cudaStreamAttrValue value;
    memset(&value, 0, sizeof value);
    CHECK(cudaStreamGetAttribute(stream, cudaStreamAttributeSynchronizationPolicy, &value));
    s.policy = value.syncPolicy;
    memset(&value, 0, sizeof value);
    CHECK(cudaStreamGetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &value));
    s.window = value.accessPolicyWindow;
    CHECK(cudaStreamGetPriority(stream, &s.priority));
    CHECK(cudaStreamGetFlags(stream, &s.flags));
    return s;
}

static void expect_as_set(const Settings& s, const Settings& first, unsigned* memory) {
    EXPECT(s.stack == first.stack && s.stack >= 4096);
    EXPECT(s.fifo == first.fifo && s.fifo >= (2 << 20));
    EXPECT(s.fetch == first.fetch);
    EXPECT(s.cache == first.cache);
    EXPECT(s.function.maxDynamicSharedSizeBytes == kDynamicBytes);
    EXPECT(s.function.preferredShmemCarveout == 75);
    EXPECT(s.policy == cudaSyncPolicyYield);
    EXPECT(s.window.base_ptr == memory && s.window.num_bytes == 4096);
    EXPECT(s.window.hitProp == cudaAccessPropertyPersisting);
    EXPECT(s.window.missProp == cudaAccessPropertyStreaming);
    EXPECT(s.window.hitRatio == first.window.hitRatio);
    EXPECT(s.priority == first.priority && s.flags == cudaStreamNonBlocking);
}

/// A launch that only the function's attribute makes possible.
static void expect_large_launch(cudaStream_t stream, unsigned* memory) {
    fill<<<1, 64, kDynamicBytes, stream>>>(memory);
    CHECK(cudaGetLastError());
    unsigned values[64];
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(values, memory, sizeof values, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < 64; ++i) {
        EXPECT(values[i] == 63 - i);
    }
}

int main() {
    CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
    CHECK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 2 << 20));
    CHECK(cudaDeviceSetLimit(cudaLimitMaxL2FetchGranularity, 64));
    CHECK(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1));
    CHECK(cudaFuncSetAttribute(fill, cudaFuncAttributeMaxDynamicSharedMemorySize, kDynamicBytes));
    CHECK(cudaFuncSetAttribute(fill, cudaFuncAttributePreferredSharedMemoryCarveout, 75));
    int lowest = 0, highest = 0;
    CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
    unsigned* memory = nullptr;
    CHECK(cudaMalloc((void**)&memory, 1 << 20));
    cudaStreamAttrValue value;
    memset(&value, 0, sizeof value);
    value.syncPolicy = cudaSyncPolicyYield;
    CHECK(cudaStreamSetAttribute(stream, cudaStreamAttributeSynchronizationPolicy, &value));
    memset(&value, 0, sizeof value);
    value.accessPolicyWindow.base_ptr = memory;
    value.accessPolicyWindow.num_bytes = 4096;
    value.accessPolicyWindow.hitRatio = 0.5f;
    value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    CHECK(cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &value));

    const Settings first = read_settings(stream);
    expect_as_set(first, first, memory);
    expect_large_launch(stream, memory);
    midpoint();
    expect_as_set(read_settings(stream), first, memory);
    expect_large_launch(stream, memory);
    return pass("settings_kept");
}
