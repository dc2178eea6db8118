// An ordinary CUDA program for the demonstration and the system tests: it keeps most of its state
// on the GPU, in every form that a move between GPUs must carry, and prints one digest a step.
//
//   device memory     9 segments of 64 MiB; every step rewrites one from itself and another
//   module globals    arrays of device pointers to the segments and to list heads
//   linked lists      nodes in device memory that point to each other, in a scrambled order
//   pinned memory     each step's seed on the way in, its digests on the way out
//   streams, events   the lists are walked on a second stream, ordered by events
//
// Everything is integer arithmetic, so any GPU computes the same digests. It knows nothing of
// Gantry. With DEMO_MARKS=ADDRESS:PORT a second thread makes a small synchronous GPU call every few
// milliseconds and sends a numbered datagram after each, so that a listener sees when calls stall;
// a datagram to port 7778 then ends the program after the step at hand. Its NVTX ranges are for
// whatever profiler NVTX_INJECTION64_PATH names.
//
// Usage: demo_walk STEPS [SEGMENT_MIB [PAUSE_MS]]; PAUSE_MS: between two steps, as for input.
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else  // It is a part of its own of the CUDA toolkit.
static int nvtxRangePushA(const char*) { return -1; }
static int nvtxRangePop(void) { return -1; }
#endif

#include "demo_marks.h"

#define CHECK(call)                                                            \
    do {                                                                       \
        cudaError_t status_ = (call);                                          \
        if (status_ != cudaSuccess) {                                          \
            printf("demo_walk: %s: %s\n", #call, cudaGetErrorString(status_)); \
            fflush(stdout);                                                    \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

enum { kSegments = 9, kLists = 32, kNodes = 256, kThreads = 256, kBlocks = 512 };

struct Node {
    Node* next;
    uint64_t value;
    uint64_t visits;
};

struct Digests {
    unsigned long long segment;
    unsigned long long list;
};

__device__ uint64_t* g_segments[kSegments];
__device__ Node* g_heads[kLists];

__device__ __host__ static inline uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    return x;
}

__global__ void fill(int segment, uint64_t words) {
    uint64_t* to = g_segments[segment];
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words;
         i += gridDim.x * blockDim.x) {
        to[i] = mix(i + 1 + (uint64_t)segment * words);
    }
}

// The digest is a sum, so the order in which blocks end does not matter.
__device__ void add_to(unsigned long long* total, uint64_t mine) {
    __shared__ unsigned long long sums[kThreads];
    sums[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned stride = kThreads / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            sums[threadIdx.x] += sums[threadIdx.x + stride];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        atomicAdd(total, sums[0]);
    }
}

__global__ void rewrite(int segment, uint64_t words, const uint64_t* seed, Digests* digests) {
    uint64_t* to = g_segments[segment];
    const uint64_t* other = g_segments[(segment + 4) % kSegments];
    const uint64_t step_seed = *seed;
    uint64_t sum = 0;
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words;
         i += gridDim.x * blockDim.x) {
        const uint64_t value = mix(to[i] + step_seed) ^ other[words - 1 - i];
        to[i] = value;
        sum += mix(value + i);
    }
    add_to(&digests->segment, sum);
}

__global__ void digest_all(int segment, uint64_t words, Digests* digests) {
    const uint64_t* from = g_segments[segment];
    uint64_t sum = 0;
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words;
         i += gridDim.x * blockDim.x) {
        sum += mix(from[i] + i * 3 + segment);
    }
    add_to(&digests->segment, sum);
}

__global__ void link_lists(Node* nodes) {
    const int list = threadIdx.x;
    Node* mine = nodes + list * kNodes;
    // A stride that shares no factor with kNodes visits all of them, out of order.
    const int stride = 2 * list + 37;
    for (int i = 0, at = 0; i < kNodes; ++i) {
        const int next = (at + stride) % kNodes;
        mine[at].next = i + 1 < kNodes ? mine + next : NULL;
        mine[at].value = mix(list * kNodes + at);
        mine[at].visits = 0;
        at = next;
    }
    g_heads[list] = mine;
}

__global__ void walk_lists(const uint64_t* seed, Digests* digests) {
    uint64_t sum = 0;
    for (Node* node = g_heads[threadIdx.x]; node != NULL; node = node->next) {
        node->value = mix(node->value + *seed + node->visits);
        ++node->visits;
        sum = sum * 31 + node->value;
    }
    atomicAdd(&digests->list, (unsigned long long)sum);
}

static void* send_marks(void* where) {
    const int fd = demo_open_marks((const char*)where);
    if (fd < 0) {
        printf("demo_walk: DEMO_MARKS=%s is not ADDRESS:PORT\n", (const char*)where);
        return NULL;
    }
    uint64_t* word = NULL;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&word, sizeof *word));
    for (uint64_t number = 0;; ++number) {
        uint64_t back = 0;
        nvtxRangePushA("mark");
        CHECK(cudaMemcpyAsync(word, &number, sizeof back, cudaMemcpyHostToDevice, stream));
        CHECK(cudaMemcpyAsync(&back, word, sizeof back, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        if (back != number) {
            printf("demo_walk: wrote %lu to the GPU, read %lu\n", (unsigned long)number,
                   (unsigned long)back);
            exit(1);
        }
        demo_send_mark(fd, number);
        nvtxRangePop();
        usleep(5000);
    }
}

int main(int argc, char** argv) {
    const int steps = argc > 1 ? atoi(argv[1]) : 0;
    const int mib = argc > 2 ? atoi(argv[2]) : 64;
    const int pause_ms = argc > 3 ? atoi(argv[3]) : 0;
    if (steps < 1 || mib < 1 || mib > 4096 || pause_ms < 0 || pause_ms > 60000) {
        printf("usage: demo_walk STEPS [SEGMENT_MIB [PAUSE_MS]]\n");
        return 2;
    }
    const uint64_t words = (uint64_t)mib * 1024 * 1024 / sizeof(uint64_t);
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    printf("demo_walk: %s, compute capability %d.%d, %d SMs\n", device.name, device.major,
           device.minor, device.multiProcessorCount);
    fflush(stdout);

    uint64_t* segments[kSegments];
    for (int i = 0; i < kSegments; ++i) {
        CHECK(cudaMalloc(&segments[i], words * sizeof(uint64_t)));
    }
    CHECK(cudaMemcpyToSymbol(g_segments, segments, sizeof segments));
    Node* nodes = NULL;
    CHECK(cudaMalloc(&nodes, sizeof(Node) * kLists * kNodes));
    Digests* digests = NULL;
    uint64_t* seed = NULL;
    CHECK(cudaMalloc(&digests, sizeof *digests));
    CHECK(cudaMalloc(&seed, sizeof *seed));
    Digests* digests_out = NULL;
    uint64_t* seed_in = NULL;
    CHECK(cudaMallocHost(&digests_out, sizeof *digests_out));
    CHECK(cudaMallocHost(&seed_in, sizeof *seed_in));
    cudaStream_t main_stream;
    cudaStream_t list_stream;
    cudaEvent_t seed_ready;
    cudaEvent_t lists_walked;
    CHECK(cudaStreamCreateWithFlags(&main_stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&list_stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&seed_ready, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&lists_walked, cudaEventDisableTiming));

    nvtxRangePushA("fill memory");
    for (int i = 0; i < kSegments; ++i) {
        fill<<<kBlocks, kThreads, 0, main_stream>>>(i, words);
    }
    link_lists<<<1, kLists, 0, main_stream>>>(nodes);
    CHECK(cudaStreamSynchronize(main_stream));
    nvtxRangePop();
    const char* marks = getenv("DEMO_MARKS");
    const int stop_fd = marks != NULL ? demo_open_stop() : -1;
    if (marks != NULL && stop_fd < 0) {
        printf("demo_walk: cannot listen for the word to stop\n");
        return 1;
    }
    pthread_t thread;
    if (marks != NULL && pthread_create(&thread, NULL, send_marks, (void*)marks) != 0) {
        printf("demo_walk: cannot start the marks' thread\n");
        return 1;
    }
    printf("demo_walk: %d MiB of device memory, %d MiB rewritten a step\n", kSegments * mib, mib);
    fflush(stdout);

    uint64_t chain = 0;
    for (int step = 1; step <= steps; ++step) {
        nvtxRangePushA("step");
        nvtxRangePushA("queue");
        *seed_in = mix((uint64_t)step + chain);  // Each step depends on all before it.
        CHECK(cudaMemsetAsync(digests, 0, sizeof *digests, main_stream));
        CHECK(cudaMemcpyAsync(seed, seed_in, sizeof *seed, cudaMemcpyHostToDevice, main_stream));
        CHECK(cudaEventRecord(seed_ready, main_stream));
        CHECK(cudaStreamWaitEvent(list_stream, seed_ready, 0));
        rewrite<<<kBlocks, kThreads, 0, main_stream>>>(step % kSegments, words, seed, digests);
        walk_lists<<<1, kLists, 0, list_stream>>>(seed, digests);
        CHECK(cudaEventRecord(lists_walked, list_stream));
        CHECK(cudaStreamWaitEvent(main_stream, lists_walked, 0));
        CHECK(cudaMemcpyAsync(digests_out, digests, sizeof *digests, cudaMemcpyDeviceToHost,
                              main_stream));
        nvtxRangePop();
        nvtxRangePushA("wait");
        CHECK(cudaStreamSynchronize(main_stream));
        nvtxRangePop();
        nvtxRangePushA("report");
        chain = mix(chain + digests_out->segment) + digests_out->list;
        printf("step %d digest %016lx\n", step, (unsigned long)chain);
        fflush(stdout);
        const int is_last = demo_is_told_to_stop(stop_fd);
        nvtxRangePop();
        nvtxRangePop();
        if (is_last) {
            break;
        }
        usleep((useconds_t)pause_ms * 1000);
    }

    nvtxRangePushA("digest memory");
    CHECK(cudaMemset(digests, 0, sizeof *digests));
    for (int i = 0; i < kSegments; ++i) {
        digest_all<<<kBlocks, kThreads>>>(i, words, digests);
    }
    CHECK(cudaMemcpy(digests_out, digests, sizeof *digests, cudaMemcpyDeviceToHost));
    nvtxRangePop();
    printf("all memory digest %016lx\n", (unsigned long)digests_out->segment);
    printf("demo_walk: done\n");
    fflush(stdout);
    _exit(0);  // The marks' thread is in the middle of a call.
}
