// Trap: a small copy of page-locked memory is made in its stream's turn, however the bytes get
// there: behind work in the stream, behind the legacy stream's, behind another stream's event; and
// right behind a wait, where a worker may read them at once.
#include "program.h"

static const unsigned kRounds = 60;
static const unsigned kWords = 1024;  // 4 KiB.
static const unsigned kTurns = 2000;

/// Writes `value` to all words, after a while.
__global__ void write_late(volatile unsigned* words, unsigned value, unsigned turns) {
    unsigned wasted = value;
    for (unsigned i = 0; i < turns; ++i) {
        wasted = wasted * 1664525u + 1013904223u;
    }
    for (unsigned i = threadIdx.x; i < kWords; i += blockDim.x) {
        words[i] = wasted;
        words[i] = value;
    }
}

__global__ void count_others(const unsigned* words, unsigned value, unsigned* others) {
    for (unsigned i = threadIdx.x; i < kWords; i += blockDim.x) {
        if (words[i] != value) {
            atomicAdd(others, 1u);
        }
    }
}

static struct {
    unsigned *host, *device, *others;
    cudaStream_t blocking, free, legacy;
    cudaEvent_t event;
} g;

static void copy_and_check(cudaStream_t stream, unsigned value) {
    CHECK(cudaMemcpyAsync(g.device, g.host, kWords * 4, cudaMemcpyHostToDevice, stream));
    count_others<<<1, 64, 0, stream>>>(g.device, value, g.others);
    CHECK(cudaStreamSynchronize(stream));
}

static void round(unsigned value) {
    const cudaStream_t streams[] = {g.blocking, g.free, g.legacy};
    for (const cudaStream_t stream : streams) {
        // Written by the host, right behind a wait.
        for (unsigned i = 0; i < kWords; ++i) {
            g.host[i] = value;
        }
        copy_and_check(stream, value++);
        // Written by the stream itself.
        write_late<<<1, 64, 0, stream>>>(g.host, value, kTurns);
        copy_and_check(stream, value++);
        // Written by another stream, which this one waits for.
        const cudaStream_t other = stream == g.free ? g.blocking : g.free;
        write_late<<<1, 64, 0, other>>>(g.host, value, kTurns);
        CHECK(cudaEventRecord(g.event, other));
        CHECK(cudaStreamWaitEvent(stream, g.event, 0));
        copy_and_check(stream, value++);
    }
    // The legacy stream and blocking ones wait for each other unasked.
    write_late<<<1, 64, 0, g.legacy>>>(g.host, value, kTurns);
    copy_and_check(g.blocking, value++);
    write_late<<<1, 64, 0, g.blocking>>>(g.host, value, kTurns);
    copy_and_check(g.legacy, value++);
}

int main() {
    CHECK(cudaMallocHost((void**)&g.host, kWords * 4));
    CHECK(cudaMalloc((void**)&g.device, kWords * 4));
    CHECK(cudaMalloc((void**)&g.others, 4));
    CHECK(cudaMemset(g.others, 0, 4));
    CHECK(cudaStreamCreate(&g.blocking));
    CHECK(cudaStreamCreateWithFlags(&g.free, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&g.event, cudaEventDisableTiming));
    for (unsigned i = 0; i < kRounds; ++i) {
        round(1000 * i);
        if (i == kRounds / 2) {
            midpoint();
        }
    }
    unsigned others = 0;
    CHECK(cudaMemcpy(&others, g.others, 4, cudaMemcpyDeviceToHost));
    EXPECT(others == 0);
    return pass("small_copies");
}
