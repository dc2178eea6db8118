// Trap: a thread that never had a context uses what another thread made. A call that is given a
// stream, an event or memory takes its context; the others say that there is none.
#include <pthread.h>

#include "driver_entry.h"

enum { kBytes = 4096 };

static CUcontext g_context;
static CUstream g_stream;
static CUevent g_event;
static CUdeviceptr g_memory, g_other;
static unsigned char *g_host, *g_back;
static CUfunction g_function;
static int g_called;

__global__ void add_one(unsigned* word) { *word += 1; }

static void CUDA_CB called(void*) { ++g_called; }

/// Calls that take a context from what they are given. `value`: what the memory holds at the end.
static void take(unsigned char value) {
    ENTRY(cuEventRecord, 12000);
    ENTRY(cuEventQuery, 12000);
    ENTRY(cuEventSynchronize, 12000);
    ENTRY(cuStreamQuery, 12000);
    ENTRY(cuStreamSynchronize, 12000);
    ENTRY(cuStreamWaitEvent, 12000);
    ENTRY(cuStreamIsCapturing, 12000);
    ENTRY(cuStreamGetCtx, 12000);
    ENTRY(cuStreamGetFlags, 12000);
    ENTRY(cuStreamGetPriority, 12000);
    ENTRY(cuMemsetD8Async, 12000);
    ENTRY(cuMemsetD32Async, 12000);
    ENTRY(cuMemcpyHtoDAsync, 12000);
    ENTRY(cuMemcpyDtoHAsync, 12000);
    ENTRY(cuMemcpyDtoDAsync, 12000);
    ENTRY(cuMemcpyAsync, 12000);
    ENTRY(cuLaunchHostFunc, 12000);
    ENTRY(cuLaunchKernel, 12000);
    ENTRY(cuStreamWriteValue32, 12000);
    ENTRY(cuMemAllocAsync, 12000);
    ENTRY(cuMemFreeAsync, 12000);
    CUdeviceptr made = 0;
    CUcontext context = nullptr;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    unsigned flags = 0;
    int priority = 1;
    OK(cuStreamQuery_(g_stream));
    OK(cuStreamGetCtx_(g_stream, &context));
    EXPECT(context == g_context);
    OK(cuStreamGetFlags_(g_stream, &flags));
    EXPECT(flags == CU_STREAM_NON_BLOCKING);
    OK(cuStreamGetPriority_(g_stream, &priority));
    OK(cuStreamIsCapturing_(g_stream, &status));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_NONE);
    memset(g_host, value, kBytes);
    memset(g_back, 0, kBytes);
    OK(cuMemsetD32Async_(g_memory, 0, kBytes / 4, g_stream));
    OK(cuMemsetD8Async_(g_memory, 0x55, kBytes, g_stream));
    OK(cuMemcpyHtoDAsync_(g_memory, g_host, kBytes / 2, g_stream));
    OK(cuMemcpyDtoDAsync_(g_other, g_memory, kBytes / 2, g_stream));
    OK(cuMemcpyAsync_(g_other + kBytes / 2, g_memory + kBytes / 2, kBytes / 2, g_stream));
    OK(cuMemcpyDtoHAsync_(g_back, g_other, kBytes, g_stream));
    OK(cuLaunchHostFunc_(g_stream, called, nullptr));
    OK(cuMemAllocAsync_(&made, kBytes, g_stream));
    OK(cuStreamWriteValue32_(g_stream, made, 1, 0));
    void* arguments[] = {&made};
    OK(cuLaunchKernel_(g_function, 1, 1, 1, 1, 1, 1, 0, g_stream, arguments, nullptr));
    OK(cuMemFreeAsync_(made, g_stream));
    OK(cuEventRecord_(g_event, g_stream));
    OK(cuStreamWaitEvent_(g_stream, g_event, 0));
    OK(cuEventSynchronize_(g_event));
    OK(cuEventQuery_(g_event));
    OK(cuStreamSynchronize_(g_stream));
    for (int i = 0; i < kBytes; ++i) {
        EXPECT(g_back[i] == (i < kBytes / 2 ? value : 0x55));
    }
}

/// What was made for it, ended.
static void end(CUstream stream, CUevent event, CUdeviceptr memory, void* host) {
    ENTRY(cuStreamDestroy, 12000);
    ENTRY(cuEventDestroy, 12000);
    ENTRY(cuMemFree, 12000);
    ENTRY(cuMemFreeHost, 12000);
    OK(cuMemFree_(memory));
    OK(cuMemFreeHost_(host));
    OK(cuStreamDestroy_(stream));
    OK(cuEventDestroy_(event));
}

/// Calls that name nothing to take a context from, or do not.
static void refuse() {
    ENTRY(cuStreamCreate, 12000);
    ENTRY(cuEventCreate, 12000);
    ENTRY(cuMemAlloc, 12000);
    ENTRY(cuCtxSynchronize, 12000);
    ENTRY(cuMemGetAddressRange, 12000);
    ENTRY(cuMemHostGetFlags, 12000);
    ENTRY(cuStreamQuery, 12000);
    ENTRY(cuEventRecord, 12000);
    ENTRY(cuMemsetD8Async, 12000);
    ENTRY(cuMemcpyDtoDAsync, 12000);
    ENTRY(cuMemcpy, 12000);
    // A default stream is the context's that the thread has, whatever else is given.
    EXPECT_STATUS(cuStreamQuery_(nullptr), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_STATUS(cuEventRecord_(g_event, nullptr), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_STATUS(cuMemsetD8Async_(g_memory, 1, 16, nullptr), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_STATUS(cuMemcpyDtoDAsync_(g_memory, g_other, 16, nullptr), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_STATUS(cuMemcpy_(g_memory, g_other, 16), CUDA_ERROR_INVALID_CONTEXT);
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUdeviceptr memory = 0;
    size_t bytes = 0;
    unsigned flags = 0;
    EXPECT_STATUS(cuStreamCreate_(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_STATUS(cuEventCreate_(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_STATUS(cuMemAlloc_(&memory, kBytes), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_STATUS(cuCtxSynchronize_(), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_STATUS(cuMemGetAddressRange_(&memory, &bytes, g_memory), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_STATUS(cuMemHostGetFlags_(&flags, g_host), CUDA_ERROR_INVALID_CONTEXT);
}

struct Round {
    unsigned char value;
    CUstream stream;
    CUevent event;
    void* memory;
    void* host;
};

static void* in_thread(void* argument) {
    const Round* round = (const Round*)argument;
    ENTRY(cuCtxGetCurrent, 12000);
    CUcontext current = nullptr;
    OK(cuCtxGetCurrent_(&current));
    EXPECT(current == nullptr);
    take(round->value);
    refuse();
    end(round->stream, round->event, (CUdeviceptr)round->memory, round->host);
    OK(cuCtxGetCurrent_(&current));
    EXPECT(current == nullptr);  // It was lent for the calls.
    return nullptr;
}

static void run(unsigned char value) {
    Round round = {value, nullptr, nullptr, nullptr, nullptr};
    CHECK(cudaStreamCreate(&round.stream));
    CHECK(cudaEventCreate(&round.event));
    CHECK(cudaMalloc(&round.memory, kBytes));
    CHECK(cudaMallocHost(&round.host, kBytes));
    pthread_t thread;
    EXPECT(pthread_create(&thread, nullptr, in_thread, &round) == 0);
    EXPECT(pthread_join(thread, nullptr) == 0);
}

int main() {
    ENTRY(cuCtxGetCurrent, 12000);
    void *memory, *other;
    CHECK(cudaMalloc(&memory, kBytes));
    CHECK(cudaMalloc(&other, kBytes));
    g_memory = (CUdeviceptr)memory;
    g_other = (CUdeviceptr)other;
    CHECK(cudaMallocHost((void**)&g_host, kBytes));
    CHECK(cudaMallocHost((void**)&g_back, kBytes));
    CHECK(cudaStreamCreateWithFlags(&g_stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&g_event));
    OK(cuCtxGetCurrent_(&g_context));
    cudaFunction_t function;
    CHECK(cudaGetFuncBySymbol(&function, (const void*)add_one));
    g_function = function;
    run(3);
    midpoint();
    run(9);
    EXPECT(g_called == 2);
    return pass("no_context");
}
