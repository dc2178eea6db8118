// Trap: what a framework's training step asks of the driver, with the answers of the native one:
// events of page-locked buffers queried before the buffers are used again, capture status, pointer
// attributes, one scalar read back. Through the shim a step must cost one round trip, the read.
#include <cuda_profiler_api.h>
#include <stdio.h>
#include <sys/wait.h>

#include "program.h"

enum { kSteps = 200, kBuffers = 6, kWords = 4096, kQueries = 8, kStartUp = 80 };

__global__ void accumulate(float* sum, const float* input, int words) {
    for (int i = 0; i < words; ++i) {
        sum[0] += input[i];
    }
}

__global__ void spin(volatile int* go) {
    while (*go == 0) {
    }
}

/// A query says what is so: not ready while the kernel in front of the event runs, ready after any
/// call that has waited for it, and at last also without one.
static void check_truth(cudaStream_t stream, cudaStream_t other) {
    int* go = nullptr;
    cudaEvent_t before, after, joined;
    CHECK(cudaMallocHost((void**)&go, 4096));
    CHECK(cudaEventCreateWithFlags(&before, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&after, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    CHECK(cudaEventQuery(after));  // Never recorded.
    for (int round = 0; round < 3; ++round) {
        *(volatile int*)go = 0;
        CHECK(cudaEventRecord(before, stream));
        CHECK(cudaStreamSynchronize(stream));
        spin<<<1, 1, 0, stream>>>(go);
        CHECK(cudaEventRecord(after, stream));
        CHECK(cudaStreamWaitEvent(other, after, 0));
        CHECK(cudaEventRecord(joined, other));
        for (int i = 0; i < 1000; ++i) {
            EXPECT_STATUS(cudaEventQuery(after), cudaErrorNotReady);
            EXPECT_STATUS(cudaEventQuery(joined), cudaErrorNotReady);
            CHECK(cudaEventQuery(before));
        }
        *(volatile int*)go = 1;
        switch (round) {
            case 0: CHECK(cudaStreamSynchronize(stream)); break;
            case 1:  // Done in the one stream, so done in the other.
                CHECK(cudaStreamSynchronize(other));
                CHECK(cudaEventQuery(joined));
                break;
            default:
                for (int i = 0; cudaEventQuery(after) == cudaErrorNotReady; ++i) {
                    EXPECT(i < 20000);
                    usleep(1000);
                }
        }
        CHECK(cudaEventQuery(after));
        CHECK(cudaStreamSynchronize(other));
        CHECK(cudaEventQuery(joined));
    }
    CHECK(cudaFreeHost(go));
    CHECK(cudaEventDestroy(before));
    CHECK(cudaEventDestroy(after));
    CHECK(cudaEventDestroy(joined));
}

/// Round trips that the report of a process names, in all; the report is removed.
static long round_trips(const char* path, int pid) {
    char name[4096], line[512], call[256];
    long count = 0, total = 0;
    snprintf(name, sizeof(name), "%s.%d", path, pid);
    FILE* file = fopen(name, "r");
    EXPECT(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "round-trip %255s %ld", call, &count) == 2) {
            fprintf(stderr, "%s", line);
            total += count;
        }
    }
    fclose(file);
    remove(name);
    return total;
}

/// Round trips of this process until now; 0 without the shim.
static long round_trips_so_far(void) {
    CHECK(cudaProfilerStop());  // The shim writes its report.
    const char* path = getenv("GANTRY_REPORT");
    return path != NULL ? round_trips(path, getpid()) : 0;
}

static int train(void) {
    cudaStream_t stream, other;
    float *pinned[kBuffers], *device[kBuffers], *sum;
    cudaEvent_t copied[kBuffers];
    int waits = 0;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaMalloc((void**)&sum, sizeof(float)));
    CHECK(cudaMemset(sum, 0, sizeof(float)));
    for (int i = 0; i < kBuffers; ++i) {
        CHECK(cudaMallocHost((void**)&pinned[i], kWords * sizeof(float)));
        CHECK(cudaMalloc((void**)&device[i], kWords * sizeof(float)));
        CHECK(cudaEventCreateWithFlags(&copied[i], cudaEventDisableTiming));
    }
    check_truth(stream, other);
    check_truth(other, stream);
    float expected = 0;
    long before = 0;
    for (int step = 0; step < kSteps; ++step) {
        if (step == kSteps / 4) {
            before = round_trips_so_far();
        }
        if (step == kSteps / 2) {
            EXPECT(round_trips_so_far() - before <= kSteps / 4);
            midpoint();
        }
        for (int i = 0; i < kBuffers; ++i) {
            int query = 0;
            for (; query < kQueries && cudaEventQuery(copied[i]) == cudaErrorNotReady; ++query) {
                usleep(100);
            }
            waits += query;
            if (query == kQueries) {  // As an allocator that takes another buffer then.
                CHECK(cudaEventSynchronize(copied[i]));
            }
            for (int k = 0; k < kWords; ++k) {
                pinned[i][k] = k == 0 ? (float)(i + 1) : 0.0f;
            }
            cudaPointerAttributes attributes;
            CHECK(cudaPointerGetAttributes(&attributes, pinned[i]));
            EXPECT(attributes.type == cudaMemoryTypeHost);
            cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
            CHECK(cudaStreamIsCapturing(stream, &status));
            EXPECT(status == cudaStreamCaptureStatusNone);
            CHECK(cudaMemcpyAsync(device[i], pinned[i], kWords * sizeof(float),
                                  cudaMemcpyHostToDevice, stream));
            CHECK(cudaEventRecord(copied[i], stream));
            accumulate<<<1, 1, 0, stream>>>(sum, device[i], 4);
            expected += (float)(i + 1);
        }
        float loss = 0;
        CHECK(cudaMemcpyAsync(&loss, sum, sizeof(loss), cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        EXPECT(loss == expected);
        CHECK(cudaStreamQuery(stream));
        for (int i = 0; i < kBuffers; ++i) {
            CHECK(cudaEventQuery(copied[i]));  // In front of what has been waited for.
        }
    }
    fprintf(stderr, "%d queries found a copy not ready\n", waits);
    CHECK(cudaGetLastError());
    return 0;
}

int main() {
    const bool counted = getenv("GANTRY_TRANSPORT") != NULL;
    char folder[] = "/tmp/training_step.XXXXXX", path[64];
    EXPECT(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/report", folder);
    if (counted) {
        setenv("GANTRY_REPORT", path, 1);
    }
    const int child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        return train();
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (counted) {
        const long trips = round_trips(path, child);
        fprintf(stderr, "%ld round trips, %d steps\n", trips, kSteps);
        EXPECT(trips <= kSteps + kStartUp);
    }
    rmdir(folder);
    printf("PASS\n");
    return 0;
}
