// Loads for a profile: reads lines "LOAD STEPS ROUNDS", does so many steps of it in NVTX ranges,
// and prints how long they took, in nanoseconds.
//
//   launch   20 kernels of one round in two ranges, then a wait: all is in the launches
//   compute  one kernel of ROUNDS, then a wait
//   loop     simulates (kernels of many steps), infers (kernels, a copy to the host, which it then
//            looks at) and trains (a copy to the GPU, kernels), a range each
//   rest     nothing but a wait
//
// A load's steps are in a range of its name.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#define CHECK(call)                                                          \
    do {                                                                     \
        const cudaError_t status_ = (call);                                  \
        if (status_ != cudaSuccess) {                                        \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_)); \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

static constexpr int kThreads = 64;
static constexpr int kWords = 4096;

__global__ void spin(unsigned* out, unsigned rounds) {
    unsigned value = out[threadIdx.x];
    for (unsigned i = 0; i < rounds; ++i) {
        value = value * 1664525u + 1013904223u;
    }
    out[threadIdx.x] = value;
}

struct Range {
    explicit Range(const char* name) { nvtxRangePushA(name); }
    ~Range() { nvtxRangePop(); }
    Range(const Range&) = delete;
};

static unsigned* g_device;
static unsigned* g_host;

static void launch(int count, unsigned rounds) {
    for (int i = 0; i < count; ++i) {
        spin<<<1, kThreads>>>(g_device, rounds);
    }
}

static void launch_step() {
    const Range step("step");
    {
        const Range range("forward");
        launch(10, 1);
    }
    {
        const Range range("backward");
        launch(10, 1);
    }
    CHECK(cudaDeviceSynchronize());
}

static void compute_step(unsigned rounds) {
    const Range step("step");
    launch(1, rounds);
    CHECK(cudaDeviceSynchronize());
}

static unsigned loop_step(unsigned rounds) {
    const Range step("step");
    {
        const Range range("simulate");
        launch(2, rounds);
    }
    unsigned chosen = 0;
    {
        const Range range("infer");
        launch(4, rounds / 4);
        CHECK(cudaMemcpy(g_host, g_device, kWords * sizeof(unsigned), cudaMemcpyDeviceToHost));
        const Range inner("choose");
        for (int i = 0; i < kWords; ++i) {
            chosen = chosen * 31 + g_host[i];
        }
    }
    const Range range("train");
    CHECK(cudaMemcpyAsync(g_device + kThreads, g_host + kThreads,
                          (kWords - kThreads) * sizeof(unsigned), cudaMemcpyHostToDevice, nullptr));
    launch(6, rounds / 2);
    CHECK(cudaDeviceSynchronize());
    return chosen;
}

static long long now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

int main() {
    CHECK(cudaMalloc(&g_device, kWords * sizeof(unsigned)));
    CHECK(cudaMallocHost(&g_host, kWords * sizeof(unsigned)));
    CHECK(cudaMemset(g_device, 0, kWords * sizeof(unsigned)));
    compute_step(1);
    printf("ready\n");
    fflush(stdout);
    char load[16];
    int steps = 0;
    unsigned rounds = 0;
    unsigned chosen = 0;
    while (scanf("%15s %d %u", load, &steps, &rounds) == 3) {
        const long long begun = now_ns();
        {
            const Range range(load);
            for (int i = 0; i < steps; ++i) {
                if (strcmp(load, "launch") == 0) {
                    launch_step();
                } else if (strcmp(load, "compute") == 0) {
                    compute_step(rounds);
                } else if (strcmp(load, "loop") == 0) {
                    chosen += loop_step(rounds);
                } else {
                    CHECK(cudaDeviceSynchronize());
                }
            }
        }
        printf("%lld\n", now_ns() - begun);
        fflush(stdout);
    }
    return chosen == 1 ? 3 : 0;  // What was chosen counts.
}
