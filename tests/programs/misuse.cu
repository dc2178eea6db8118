// Trap: a call that is at fault says so itself, with native's code, and the next call, which is
// not, is not blamed for it: through a shim that queues commands the error is easily found too
// late. NVIDIA's driver ends the program at some of these: `misuse N` makes the Nth only, so that
// the others' codes can be seen there, too.
#include "driver_entry.h"

__global__ void nothing() {}

static int wrong = 0;
static int only = 0;  // Of the rows, from 1; 0: all.
static int rows = 0;
static decltype(&cuMemAlloc) alloc_;
static decltype(&cuMemFree) free_;

/// One row of the table: what a misuse gave, and that a valid allocation after it is untouched.
static void row(const char* what, int got, int wanted) {
    CUdeviceptr memory = 0;
    const int next = alloc_(&memory, 4096);
    const bool fine = got == wanted && next == CUDA_SUCCESS && memory != 0;
    printf("%2d %-44s %4d%s\n", rows, what, got, fine ? "" : "   <- wrong");
    if (!fine) {
        fprintf(stderr, "misuse: %s gave %d, expected %d; the next cuMemAlloc gave %d\n", what, got,
                wanted, next);
        ++wrong;
    }
    if (memory != 0) {
        OK(free_(memory));
    }
}
#define ROW(call, wanted) \
    (++rows, only == 0 || only == rows ? row(#call, (int)(call), (int)(wanted)) : (void)0)

static CUstream dead_stream() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamDestroy(stream));
    return stream;
}

static CUevent dead_event() {
    cudaEvent_t event;
    CHECK(cudaEventCreate(&event));
    CHECK(cudaEventDestroy(event));
    return event;
}

static void events() {
    ENTRY(cuEventRecord, 12000);
    ENTRY(cuEventRecordWithFlags, 12000);
    ENTRY(cuStreamWaitEvent, 12000);
    ENTRY(cuEventQuery, 12000);
    ENTRY(cuEventSynchronize, 12000);
    ENTRY(cuEventDestroy, 12000);
    CUstream gone = dead_stream();
    CUevent over = dead_event();
    cudaEvent_t event;
    CHECK(cudaEventCreate(&event));
    ROW(cuEventRecord_(over, 0), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuEventRecord_(event, gone), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuEventRecord_(nullptr, 0), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuEventRecordWithFlags_(over, 0, 0), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuEventRecordWithFlags_(event, 0, 64), CUDA_ERROR_INVALID_VALUE);
    ROW(cuStreamWaitEvent_(0, over, 0), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuStreamWaitEvent_(gone, event, 0), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuEventQuery_(over), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuEventSynchronize_(over), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuEventDestroy_(over), CUDA_ERROR_INVALID_HANDLE);
    CHECK(cudaEventDestroy(event));
}

/// An event is recorded in streams of its own context only.
static void events_of_contexts() {
    ENTRY(cuCtxCreate, 13000);
    ENTRY(cuCtxPopCurrent, 12000);
    ENTRY(cuCtxPushCurrent, 12000);
    ENTRY(cuCtxDestroy, 12000);
    ENTRY(cuEventCreate, 12000);
    ENTRY(cuEventRecord, 12000);
    ENTRY(cuStreamCreate, 12000);
    CUcontext other = nullptr;
    CUevent of_other = nullptr;
    CUstream in_other = nullptr;
    cudaEvent_t event;
    cudaStream_t stream;
    CHECK(cudaEventCreate(&event));
    CHECK(cudaStreamCreate(&stream));
    OK(cuCtxCreate_(&other, nullptr, 0, 0));
    OK(cuEventCreate_(&of_other, 0));
    OK(cuStreamCreate_(&in_other, CU_STREAM_NON_BLOCKING));
    ROW(cuEventRecord_(event, in_other), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuEventRecord_(event, 0), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventRecord_(of_other, in_other));
    OK(cuEventRecord_(of_other, 0));
    OK(cuEventRecord_(event, stream));  // Whatever context is current.
    OK(cuCtxPopCurrent_(&other));
    ROW(cuEventRecord_(of_other, stream), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuEventRecord_(of_other, 0), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxDestroy_(other));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaEventDestroy(event));
}

static void arrays(CUdeviceptr memory, void* host) {
    ENTRY(cuArrayCreate, 12000);
    ENTRY(cuArrayDestroy, 12000);
    ENTRY(cuMemcpy2DAsync, 12000);
    ENTRY(cuMemcpyDtoA, 12000);
    ENTRY(cuMemcpyHtoAAsync, 12000);
    ENTRY(cuMemcpyAtoHAsync, 12000);
    CUDA_ARRAY_DESCRIPTOR shape = {};
    shape.Width = 16;
    shape.Height = 4;
    shape.Format = CU_AD_FORMAT_UNSIGNED_INT32;
    shape.NumChannels = 1;
    CUarray array = nullptr, line = nullptr;
    OK(cuArrayCreate_(&array, &shape));
    shape.Height = 0;
    OK(cuArrayCreate_(&line, &shape));
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = memory;
    copy.srcPitch = 64;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.WidthInBytes = 64;
    copy.Height = 5;
    ROW(cuMemcpy2DAsync_(&copy, 0), CUDA_ERROR_INVALID_VALUE);
    copy.Height = 4;
    copy.dstXInBytes = 4;
    ROW(cuMemcpy2DAsync_(&copy, 0), CUDA_ERROR_INVALID_VALUE);
    copy.dstXInBytes = 0;
    ROW(cuMemcpy2DAsync_(&copy, 0), CUDA_SUCCESS);
    ROW(cuMemcpyDtoA_(line, 60, memory, 8), CUDA_ERROR_INVALID_VALUE);
    ROW(cuMemcpyHtoAAsync_(line, 0, host, 68, 0), CUDA_ERROR_INVALID_VALUE);
    ROW(cuMemcpyAtoHAsync_(host, line, 60, 8, 0), CUDA_ERROR_INVALID_VALUE);
    ROW(cuMemcpyAtoHAsync_(host, line, 60, 4, 0), CUDA_SUCCESS);
    CHECK(cudaDeviceSynchronize());
    OK(cuArrayDestroy_(line));
    OK(cuArrayDestroy_(array));
}

static void batches(CUdeviceptr memory) {
    ENTRY(cuStreamBatchMemOp, 12000);
    CUstreamBatchMemOpParams write = {};
    write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address = memory;
    ROW(cuStreamBatchMemOp_(0, 1, &write, 0), CUDA_SUCCESS);
    ROW(cuStreamBatchMemOp_(0, 0, &write, 0), CUDA_SUCCESS);
    ROW(cuStreamBatchMemOp_(dead_stream(), 1, &write, 0), CUDA_ERROR_INVALID_HANDLE);
}

static void streams(CUdeviceptr memory, void* host) {
    ENTRY(cuStreamSynchronize, 12000);
    ENTRY(cuStreamQuery, 12000);
    ENTRY(cuStreamDestroy, 12000);
    ENTRY(cuStreamSetAttribute, 12000);
    ENTRY(cuStreamWriteValue32, 12000);
    ENTRY(cuStreamWaitValue32, 12000);
    ENTRY(cuStreamBeginCapture, 12000);
    ENTRY(cuLaunchHostFunc, 12000);
    ENTRY(cuMemcpyHtoDAsync, 12000);
    ENTRY(cuMemcpyDtoDAsync, 12000);
    ENTRY(cuMemcpyPeerAsync, 12000);
    ENTRY(cuMemcpy2DAsync, 12000);
    ENTRY(cuMemsetD8Async, 12000);
    ENTRY(cuMemsetD2D8Async, 12000);
    ENTRY(cuMemsetD2D32Async, 12000);
    ENTRY(cuCtxGetCurrent, 12000);
    CUcontext context = nullptr;
    OK(cuCtxGetCurrent_(&context));
    CUstream gone = dead_stream();
    CUstreamAttrValue value = {};
    value.syncPolicy = CU_SYNC_POLICY_AUTO;
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = memory;
    copy.dstDevice = memory + 2048;
    copy.srcPitch = copy.dstPitch = 64;
    copy.WidthInBytes = 16;
    copy.Height = 4;
    ROW(cuStreamSynchronize_(gone), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuStreamQuery_(gone), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuStreamDestroy_(gone), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuStreamSetAttribute_(gone, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value),
        CUDA_ERROR_INVALID_HANDLE);
    ROW(cuStreamWriteValue32_(gone, memory, 1, 0), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuStreamWaitValue32_(gone, memory, 1, 0), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuStreamWriteValue32_(0, memory + 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
    ROW(cuStreamBeginCapture_(gone, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuLaunchHostFunc_(
            gone, [](void*) {}, nullptr),
        CUDA_ERROR_INVALID_HANDLE);
    ROW(cuMemcpyHtoDAsync_(memory, host, 16, gone), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuMemcpyDtoDAsync_(memory, memory + 64, 16, gone), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuMemcpyPeerAsync_(memory, context, memory + 64, context, 16, gone),
        CUDA_ERROR_INVALID_HANDLE);
    ROW(cuMemcpy2DAsync_(&copy, gone), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuMemsetD8Async_(memory, 0, 16, gone), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuMemsetD2D8Async_(memory, 64, 0, 16, 2, gone), CUDA_ERROR_INVALID_HANDLE);
    ROW(cuMemsetD2D32Async_(memory, 101, 0, 16, 2, 0), CUDA_ERROR_INVALID_VALUE);
}

static void pools() {
    ENTRY(cuMemAllocAsync, 12000);
    ENTRY(cuMemFreeAsync, 12000);
    CUstream gone = dead_stream();
    CUdeviceptr memory = 0;
    ROW(cuMemAllocAsync_(&memory, 4096, gone), CUDA_ERROR_INVALID_HANDLE);
    memory = 1;
    ROW(cuMemAllocAsync_(&memory, 0, 0), CUDA_SUCCESS);
    EXPECT(only != 0 || memory == 0);
    OK(cuMemAllocAsync_(&memory, 4096, 0));
    ROW(cuMemFreeAsync_(memory, gone), CUDA_ERROR_INVALID_HANDLE);
    OK(cuMemFreeAsync_(memory, 0));
    ROW(cuMemFreeAsync_(memory, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK(cudaStreamSynchronize(0));
    ROW(cuMemFreeAsync_(memory, 0), CUDA_ERROR_INVALID_VALUE);
}

static void graphs() {
    ENTRY(cuGraphLaunch, 12000);
    ENTRY(cuGraphUpload, 12000);
    ENTRY(cuGraphExecDestroy, 12000);
    ENTRY(cuGraphDestroy, 12000);
    ENTRY(cuGraphInstantiateWithFlags, 12000);
    CUstream gone = dead_stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    ROW(cuGraphLaunch_(exec, gone), CUDA_ERROR_INVALID_HANDLE);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CUgraphExec made = nullptr;
    ROW(cuGraphLaunch_(exec, 0), CUDA_ERROR_INVALID_VALUE);
    ROW(cuGraphUpload_(exec, 0), CUDA_ERROR_INVALID_VALUE);
    ROW(cuGraphExecDestroy_(exec), CUDA_ERROR_INVALID_VALUE);
    ROW(cuGraphDestroy_(graph), CUDA_ERROR_INVALID_VALUE);
    ROW(cuGraphInstantiateWithFlags_(&made, graph, 0), CUDA_ERROR_INVALID_VALUE);
}

static void settings() {
    ENTRY(cuCtxGetLimit, 12000);
    ENTRY(cuCtxSetLimit, 12000);
    ENTRY(cuMemHostRegister, 12000);
    size_t size = 0;
    static char pages[8192];
    ROW(cuCtxGetLimit_(&size, (CUlimit)99), CUDA_ERROR_INVALID_VALUE);
    ROW(cuCtxSetLimit_((CUlimit)99, 1), CUDA_ERROR_INVALID_VALUE);
    ROW(cuMemHostRegister_(pages, sizeof pages, 64), CUDA_ERROR_INVALID_VALUE);
}

/// Nothing is lost: an allocation that follows a misuse is the application's, or was never made.
/// Tried again, as what other programs do with the card changes what is free, too.
static bool nothing_leaks() {
    ENTRY(cuEventRecord, 12000);
    CUevent over = dead_event();
    constexpr size_t kBytes = 64 << 20;
    size_t before = 0, after = 0, total = 0;
    CHECK(cudaMemGetInfo(&before, &total));
    for (int i = 0; i < 10; ++i) {
        CUdeviceptr memory = 0;
        cuEventRecord_(over, 0);
        if (alloc_(&memory, kBytes) == CUDA_SUCCESS) {
            OK(free_(memory));
        }
    }
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemGetInfo(&after, &total));
    if (before > after + kBytes) {
        fprintf(stderr, "misuse: %zu MiB are lost, it seems\n", (before - after) >> 20);
    }
    return before <= after + kBytes;
}

int main(int argc, char** argv) {
    only = argc > 1 ? atoi(argv[1]) : 0;
    void* memory = nullptr;
    void* host = nullptr;
    CHECK(cudaMalloc(&memory, 4096));
    CHECK(cudaMallocHost(&host, 4096));
    alloc_ = entry<decltype(&cuMemAlloc)>("cuMemAlloc", 12000);
    free_ = entry<decltype(&cuMemFree)>("cuMemFree", 12000);
    events();
    midpoint();
    streams((CUdeviceptr)memory, host);
    events_of_contexts();
    arrays((CUdeviceptr)memory, host);
    batches((CUdeviceptr)memory);
    pools();
    graphs();
    settings();
    EXPECT(only <= rows);
    bool is_kept = only != 0;
    for (int i = 0; i < 10 && !is_kept; ++i) {
        is_kept = nothing_leaks();
    }
    wrong += is_kept ? 0 : 1;
    nothing<<<1, 1>>>();  // The session is as sound as before.
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    EXPECT(wrong == 0);
    return pass("misuse");
}
