// Trap: a small copy of page-locked memory is made in its stream's turn, however the bytes get
// there: behind work in the stream, behind another stream's event; and right behind a wait, where a
// worker may read them at once. Not asked for: that a copy in a blocking stream waits for a kernel
// of the legacy one, or the other way round; natively it did not (driver 580.159, H100, 60 of 60).
#include "program.h"

static const unsigned kRounds = 60;
static const unsigned kWords = 1024;  // 4 KiB.
static const unsigned kTurns = 2000;
static const unsigned kCases = 9;

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

/// Adds up the words that have another value, and keeps the last one.
__global__ void count_others(const unsigned* words, unsigned value, unsigned* others) {
    for (unsigned i = threadIdx.x; i < kWords; i += blockDim.x) {
        if (words[i] != value) {
            atomicAdd(others, 1u);
            others[1] = words[i];
            others[2] = value;
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
    const unsigned which = value % 1000;
    count_others<<<1, 64, 0, stream>>>(g.device, value, g.others + 3 * which);
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
}

int main() {
    CHECK(cudaMallocHost((void**)&g.host, kWords * 4));
    CHECK(cudaMalloc((void**)&g.device, kWords * 4));
    CHECK(cudaMalloc((void**)&g.others, 12 * kCases));
    CHECK(cudaMemset(g.others, 0, 12 * kCases));
    CHECK(cudaStreamCreate(&g.blocking));
    CHECK(cudaStreamCreateWithFlags(&g.free, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&g.event, cudaEventDisableTiming));
    for (unsigned i = 0; i < kRounds; ++i) {
        round(1000 * i);
        if (i == kRounds / 2) {
            midpoint();
        }
    }
    unsigned others[kCases][3];
    CHECK(cudaMemcpy(others, g.others, sizeof(others), cudaMemcpyDeviceToHost));
    bool is_good = true;
    for (unsigned i = 0; i < kCases; ++i) {
        if (others[i][0] != 0) {
            fprintf(stderr, "case %u of round(): %u words were others, the last one %u, not %u\n",
                    i, others[i][0], others[i][1], others[i][2]);
            is_good = false;
        }
    }
    EXPECT(is_good);
    return pass("small_copies");
}
