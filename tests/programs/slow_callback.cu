// Trap: a host callback that is open while the process is moved. What stands behind it in its
// stream, and in streams that wait for it, must run once, after the callback has returned, wherever
// that is.
#include <pthread.h>

#include "program.h"

__global__ void add(unsigned* word, unsigned value) { *word += value; }

__global__ void copy(unsigned* to, const unsigned* from) { *to = *from + *to; }

static volatile int entered, returned, runs;

/// Returns when the runner has done what it does at the midpoint; soon where there is none.
static void CUDART_CB slow(void*) {
    entered = 1;
    const char* path = getenv("PROGRAM_MIDPOINT");
    if (path != NULL) {
        char go[4096];
        snprintf(go, sizeof go, "%s.go", path);
        struct stat info;
        for (int tries = 0; stat(go, &info) != 0 && tries < 60000; ++tries) {
            usleep(1000);
        }
    } else {
        usleep(50000);
    }
    ++runs;
    returned = 1;
}

static void CUDART_CB quick(void* data) { *(volatile unsigned*)data = runs == 1 ? 7 : 8; }

static cudaStream_t waited;
static volatile int synchronised;

static void* synchronise(void*) {
    CHECK(cudaStreamSynchronize(waited));
    synchronised = returned ? 1 : 2;
    return NULL;
}

int main() {
    unsigned *words = nullptr, *pinned = nullptr;
    static unsigned second;
    CHECK(cudaMalloc((void**)&words, 3 * sizeof(unsigned)));
    CHECK(cudaMemset(words, 0, 3 * sizeof(unsigned)));
    CHECK(cudaMallocHost((void**)&pinned, 4096));
    *pinned = 0;
    cudaStream_t behind, chained, apart;
    cudaEvent_t event;
    CHECK(cudaStreamCreateWithFlags(&behind, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&chained, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    // Both kernels are there before the callback opens: a driver may load one at its first launch,
    // and wait for the device then.
    add<<<1, 1>>>(words, 0);
    copy<<<1, 1>>>(words, words);
    CHECK(cudaDeviceSynchronize());
    add<<<1, 1, 0, behind>>>(words, 1);
    CHECK(cudaLaunchHostFunc(behind, slow, NULL));
    add<<<1, 1, 0, behind>>>(words, 10);
    CHECK(cudaLaunchHostFunc(behind, quick, &second));
    CHECK(cudaEventRecord(event, behind));
    CHECK(cudaStreamWaitEvent(chained, event, 0));
    copy<<<1, 1, 0, chained>>>(words + 1, words);
    CHECK(cudaMemcpyAsync(pinned, words, sizeof(unsigned), cudaMemcpyDeviceToHost, behind));
    add<<<1, 1, 0, apart>>>(words + 2, 100);
    CHECK(cudaStreamSynchronize(apart));
    waited = behind;
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, synchronise, NULL) == 0);
    while (!entered) {
        usleep(1000);
    }
    usleep(20000);
    const cudaError_t recorded = cudaEventQuery(event);
    EXPECT(recorded == cudaErrorNotReady || returned);
    add<<<1, 1, 0, apart>>>(words + 2, 1000);
    midpoint();
    add<<<1, 1, 0, chained>>>(words + 1, 100);
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(synchronised == 1);
    EXPECT(runs == 1);
    EXPECT(second == 7);
    EXPECT(*pinned == 11);
    CHECK(cudaStreamSynchronize(chained));
    CHECK(cudaStreamSynchronize(apart));
    unsigned back[3];
    CHECK(cudaMemcpy(back, words, sizeof back, cudaMemcpyDeviceToHost));
    EXPECT(back[0] == 11);
    EXPECT(back[1] == 111);
    EXPECT(back[2] == 1100);
    return pass("slow_callback");
}
