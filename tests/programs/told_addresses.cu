// Trap: memory that no call of the program has made or asked for: a variable whose address only a
// kernel has told; and memory at addresses where a graph had its own before.
#include "driver_entry.h"

enum { kWords = 1024 };

__device__ unsigned g_variable[kWords];

__global__ void tell(unsigned** out) { *out = g_variable; }
__global__ void sum(const unsigned* words, unsigned* out) {
    unsigned all = 0;
    for (int i = 0; i < kWords; ++i) {
        all += words[i];
    }
    *out = all;
}

static unsigned** g_told;
static unsigned* g_sum;

static unsigned sum_of(const unsigned* words) {
    unsigned all = 0;
    sum<<<1, 1>>>(words, g_sum);
    CHECK(cudaMemcpy(&all, g_sum, sizeof all, cudaMemcpyDeviceToHost));
    return all;
}

static void use_variable(cudaStream_t stream) {
    ENTRY(cuMemsetD8Async, 12000);
    ENTRY(cuMemcpyHtoD, 12000);
    ENTRY(cuMemcpyDtoH, 12000);
    ENTRY(cuMemcpyDtoD, 12000);
    ENTRY(cuMemsetD32, 12000);
    ENTRY(cuMemcpy, 12000);
    ENTRY(cuMemcpyAsync, 12000);
    unsigned* variable = nullptr;
    tell<<<1, 1>>>(g_told);
    CHECK(cudaMemcpy(&variable, g_told, sizeof variable, cudaMemcpyDeviceToHost));
    const CUdeviceptr address = (CUdeviceptr)variable;
    static unsigned words[kWords], back[kWords];
    OK(cuMemsetD8Async_(address, 1, sizeof words, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(sum_of(variable) == kWords * 0x01010101u);
    for (unsigned i = 0; i < kWords; ++i) {
        words[i] = i * 3;
    }
    OK(cuMemcpyHtoD_(address, words, sizeof words));
    EXPECT(sum_of(variable) == 3u * kWords * (kWords - 1) / 2);
    OK(cuMemcpyDtoH_(back, address, sizeof back));
    EXPECT(memcmp(back, words, sizeof back) == 0);
    OK(cuMemsetD32_(address + sizeof words / 2, 7, kWords / 2));
    OK(cuMemcpyDtoD_(address, address + sizeof words / 2, sizeof words / 2));
    EXPECT(sum_of(variable) == 7u * kWords);
    OK(cuMemcpyAsync_((CUdeviceptr)back, address, sizeof back, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(back[0] == 7 && back[kWords - 1] == 7);
    OK(cuMemcpy_(address, (CUdeviceptr)words, sizeof words));
    EXPECT(sum_of(variable) == 3u * kWords * (kWords - 1) / 2);
    EXPECT_STATUS(cuMemsetD8Async_(0x10, 1, 16, stream), CUDA_ERROR_INVALID_VALUE);
}

/// A graph's memory is gone with the graph: what is allocated there next is no smaller for it.
static void use_where_graph_was(cudaStream_t stream) {
    ENTRY(cuMemsetD8Async, 12000);
    const size_t bytes = 1 << 20;
    char* before[4];
    for (char*& each : before) {
        CHECK(cudaMalloc((void**)&each, bytes));
    }
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    void* inside;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CHECK(cudaMallocAsync(&inside, bytes, stream));
    CHECK(cudaMemsetAsync(inside, 5, bytes, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphExecDestroy(exec));  // Never launched.
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaDeviceSynchronize());
    for (char* each : before) {
        CHECK(cudaFree(each));
    }
    CHECK(cudaDeviceSynchronize());
    char* after[16];
    for (char*& each : after) {
        CHECK(cudaMalloc((void**)&each, 2 * bytes));
        OK(cuMemsetD8Async_((CUdeviceptr)each, 6, 2 * bytes, stream));
        OK(cuMemsetD8Async_((CUdeviceptr)each + bytes / 2, 7, 3 * bytes / 2, stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    for (char* each : after) {
        CHECK(cudaFree(each));
    }
}

int main() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc((void**)&g_told, sizeof *g_told));
    CHECK(cudaMalloc((void**)&g_sum, sizeof *g_sum));
    use_variable(stream);
    use_where_graph_was(stream);
    midpoint();
    use_variable(stream);
    use_where_graph_was(stream);
    return pass("told_addresses");
}
