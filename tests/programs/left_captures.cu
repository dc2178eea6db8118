// Trap: a stream is destroyed while it is captured, and what it was captured for is over: streams
// that had joined work again, nothing is forbidden, and the process moves. The answers are those of
// driver 580 on an H100.
#include <pthread.h>

#include "driver_entry.h"

static CUstream stream() {
    ENTRY(cuStreamCreate, 12000);
    CUstream made;
    OK(cuStreamCreate_(&made, CU_STREAM_NON_BLOCKING));
    return made;
}

/// Begins a capture and ends with it.
static void* capture_and_end(void*) {
    ENTRY(cuStreamBeginCapture, 12000);
    CHECK(cudaFree(nullptr));
    OK(cuStreamBeginCapture_(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    return nullptr;
}

/// Another thread has a stream of its own.
static void* fill(void* to) {
    ENTRY(cuMemsetD8Async, 12000);
    ENTRY(cuStreamSynchronize, 12000);
    CHECK(cudaFree(nullptr));
    OK(cuMemsetD8Async_((CUdeviceptr)to, 9, 16, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize_(CU_STREAM_PER_THREAD));
    return nullptr;
}

static void in_a_thread(void* (*body)(void*), void* argument) {
    pthread_t thread;
    EXPECT(pthread_create(&thread, nullptr, body, argument) == 0);
    EXPECT(pthread_join(thread, nullptr) == 0);
}

int main() {
    // So is one whose thread has ended.
    char* filled = nullptr;
    char bytes[16] = {};
    CHECK(cudaMalloc((void**)&filled, sizeof(bytes)));
    in_a_thread(capture_and_end, nullptr);
    in_a_thread(fill, filled);
    CHECK(cudaMemcpy(bytes, filled, sizeof(bytes), cudaMemcpyDeviceToHost));
    EXPECT(bytes[0] == 9 && bytes[15] == 9);
    // So is one whose context is reset.
    cudaStream_t reset;
    CHECK(cudaStreamCreate(&reset));
    CHECK(cudaStreamBeginCapture(reset, cudaStreamCaptureModeGlobal));
    CHECK(cudaDeviceReset());
    CHECK(cudaFree(nullptr));
    ENTRY(cuStreamDestroy, 12000);
    ENTRY(cuStreamBeginCapture, 12000);
    ENTRY(cuStreamEndCapture, 12000);
    ENTRY(cuStreamIsCapturing, 12000);
    ENTRY(cuStreamWaitEvent, 12000);
    ENTRY(cuStreamSynchronize, 12000);
    ENTRY(cuEventCreate, 12000);
    ENTRY(cuEventRecord, 12000);
    ENTRY(cuCtxSynchronize, 12000);
    ENTRY(cuMemAlloc, 12000);
    ENTRY(cuMemsetD8Async, 12000);
    ENTRY(cuMemcpyDtoH, 12000);
    CUdeviceptr memory;
    OK(cuMemAlloc_(&memory, 4096));
    CUevent inside;
    OK(cuEventCreate_(&inside, CU_EVENT_DISABLE_TIMING));
    CUstreamCaptureStatus status;
    CUgraph graph = nullptr;
    // A capture in each mode, left alone or with a stream that has joined it.
    const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                         CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                         CU_STREAM_CAPTURE_MODE_RELAXED};
    CUstream joined[3];
    for (int i = 0; i < 3; ++i) {
        CUstream alone = stream();
        OK(cuStreamBeginCapture_(alone, modes[i]));
        OK(cuMemsetD8Async_(memory, 1, 4096, alone));
        OK(cuStreamDestroy_(alone));
        CUstream origin = stream();
        joined[i] = stream();
        OK(cuStreamBeginCapture_(origin, modes[i]));
        OK(cuMemsetD8Async_(memory, 2, 4096, origin));
        OK(cuEventRecord_(inside, origin));
        OK(cuStreamWaitEvent_(joined[i], inside, 0));
        OK(cuStreamIsCapturing_(joined[i], &status));
        EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        OK(cuStreamDestroy_(origin));
        OK(cuStreamIsCapturing_(joined[i], &status));
        EXPECT(status == CU_STREAM_CAPTURE_STATUS_NONE);
        EXPECT_STATUS(cuStreamEndCapture_(joined[i], &graph), CUDA_ERROR_ILLEGAL_STATE);
        OK(cuCtxSynchronize_());
        CUdeviceptr more;
        OK(cuMemAlloc_(&more, 4096));
    }
    OK(cuMemsetD8Async_(memory, 3, 4096, joined[0]));
    OK(cuStreamSynchronize_(joined[0]));
    midpoint();
    unsigned char back = 0;
    OK(cuMemcpyDtoH_(&back, memory, 1));
    EXPECT(back == 3);
    // What has joined and been left is captured again, and to its end.
    for (CUstream again : joined) {
        OK(cuStreamBeginCapture_(again, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(cuMemsetD8Async_(memory, 4, 4096, again));
        OK(cuStreamEndCapture_(again, &graph));
        EXPECT(graph != nullptr);
        OK(cuStreamDestroy_(again));
    }
    OK(cuMemcpyDtoH_(&back, memory, 1));
    EXPECT(back == 3);
    return pass("left_captures");
}
