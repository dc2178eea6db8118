// Trap: events recorded before and queried after; elapsed time is GPU time; query says not ready.
#include "program.h"

__global__ void spin(volatile int* go) {
    while (*go == 0) {
    }
}

int main() {
    int* go = nullptr;
    CHECK(cudaMallocHost((void**)&go, 4096));
    *go = 0;
    cudaStream_t stream, other;
    cudaEvent_t start, stop, never;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    CHECK(cudaEventCreateWithFlags(&never, cudaEventDisableTiming));
    CHECK(cudaEventRecord(start, stream));
    spin<<<1, 1, 0, stream>>>(go);
    CHECK(cudaEventRecord(stop, stream));
    EXPECT_STATUS(cudaEventQuery(stop), cudaErrorNotReady);
    EXPECT_STATUS(cudaStreamQuery(stream), cudaErrorNotReady);
    CHECK(cudaStreamQuery(other));
    CHECK(cudaEventQuery(never));
    usleep(20000);
    *(volatile int*)go = 1;
    CHECK(cudaStreamWaitEvent(other, stop, 0));
    CHECK(cudaStreamSynchronize(other));
    CHECK(cudaEventQuery(stop));
    float before = 0, after = 0;
    CHECK(cudaEventElapsedTime(&before, start, stop));
    EXPECT(before >= 15.0f);
    midpoint();
    CHECK(cudaEventQuery(stop));
    CHECK(cudaEventSynchronize(stop));
    CHECK(cudaEventElapsedTime(&after, start, stop));
    EXPECT(before == after);
    EXPECT_STATUS(cudaEventElapsedTime(&after, start, never), cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    int least = 1, greatest = 1;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(cudaDeviceGetStreamPriorityRange(nullptr, nullptr));
    EXPECT(least == 0 && greatest <= 0);
    cudaStream_t urgent;
    CHECK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
    int priority = 1;
    CHECK(cudaStreamGetPriority(urgent, &priority));
    EXPECT(priority == greatest);
    CHECK(cudaStreamDestroy(urgent));
    CHECK(cudaEventDestroy(start));
    CHECK(cudaStreamDestroy(stream));
    return pass("events");
}
