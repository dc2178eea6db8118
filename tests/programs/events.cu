// Trap: events recorded before and queried after; elapsed time is GPU time, and stays the same
// float after a move; query says not ready; the stream of a record may be gone.
#include "program.h"

enum { kMarks = 12 };

__global__ void spin(volatile int* go) {
    while (*go == 0) {
    }
}

/// However many records are open in however many streams that still run: a stream's own are done
/// once it was waited for, and every query says so at once.
static void check_many(int* go, cudaStream_t stream) {
    enum { kMany = 300, kStreams = 12 };
    static cudaEvent_t marks[kMany];
    cudaStream_t gated[kStreams], gate;
    cudaEvent_t opened, last;
    *(volatile int*)go = 0;
    CHECK(cudaStreamCreateWithFlags(&gate, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&opened, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&last, cudaEventDisableTiming));
    spin<<<1, 1, 0, gate>>>(go);
    CHECK(cudaEventRecord(opened, gate));
    for (int i = 0; i < kMany; ++i) {
        CHECK(cudaEventCreateWithFlags(&marks[i], cudaEventDisableTiming));
    }
    for (int i = 0; i < kStreams; ++i) {
        CHECK(cudaStreamCreateWithFlags(&gated[i], cudaStreamNonBlocking));
        CHECK(cudaStreamWaitEvent(gated[i], opened, 0));
        CHECK(cudaEventRecord(marks[i], gated[i]));
    }
    CHECK(cudaEventRecord(last, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaEventQuery(last));
    for (int i = kStreams; i < kMany; ++i) {
        CHECK(cudaEventRecord(marks[i], gate));
    }
    EXPECT_STATUS(cudaEventQuery(marks[0]), cudaErrorNotReady);
    *(volatile int*)go = 1;
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < kMany; ++i) {
        CHECK(cudaEventQuery(marks[i]));
        CHECK(cudaEventDestroy(marks[i]));
    }
    for (int i = 0; i < kStreams; ++i) {
        CHECK(cudaStreamDestroy(gated[i]));
    }
    CHECK(cudaStreamDestroy(gate));
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
    cudaEvent_t marks[kMarks];
    float asked[kMarks][kMarks];
    for (int i = 0; i < kMarks; ++i) {
        CHECK(cudaEventCreate(&marks[i]));
        CHECK(cudaEventRecord(marks[i], stream));
        usleep(i * 1700);
    }
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < kMarks; ++i) {
        for (int k = 0; k < kMarks; ++k) {
            CHECK(cudaEventElapsedTime(&asked[i][k], marks[i], marks[k]));
        }
    }
    check_many(go, stream);
    cudaEvent_t unasked, renewed;
    CHECK(cudaEventCreate(&unasked));
    CHECK(cudaEventCreate(&renewed));
    cudaStream_t gone;
    CHECK(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking));
    CHECK(cudaEventRecord(unasked, gone));
    CHECK(cudaEventRecord(renewed, gone));
    CHECK(cudaStreamSynchronize(gone));
    CHECK(cudaStreamDestroy(gone));
    midpoint();
    CHECK(cudaEventQuery(stop));
    CHECK(cudaEventSynchronize(stop));
    CHECK(cudaEventElapsedTime(&after, start, stop));
    EXPECT(before == after);
    for (int i = 0; i < kMarks; ++i) {
        for (int k = 0; k < kMarks; ++k) {
            CHECK(cudaEventElapsedTime(&after, marks[i], marks[k]));
            EXPECT(after == asked[i][k]);
        }
    }
    float first = 0, second = 0, whole = 0;
    CHECK(cudaEventElapsedTime(&first, marks[0], unasked));
    EXPECT(first >= asked[0][kMarks - 1]);
    usleep(3000);
    CHECK(cudaEventRecord(renewed, stream));  // One from before, one from after a move.
    CHECK(cudaEventSynchronize(renewed));
    CHECK(cudaEventElapsedTime(&second, unasked, renewed));
    CHECK(cudaEventElapsedTime(&whole, marks[0], renewed));
    EXPECT(second >= 3.0f && second < 60000.0f);
    EXPECT(whole > first && whole - (first + second) < 0.01f && (first + second) - whole < 0.01f);
    CHECK(cudaEventElapsedTime(&after, renewed, unasked));
    EXPECT(after == -second);
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
