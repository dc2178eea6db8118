// Empty launches, as a launch-bound application makes them. Prints, per line:
//   loop_us   microseconds a launch over 100,000 launches and the final synchronise
//   mixed_us  the same of three kernels in turn, with arguments that change in each launch
//   random_us the same of two kernels in an order that does not repeat
//   issue_us  microseconds the application's thread spends in a launch while there is room (batches
//             of 256 after a synchronise; median)
//   sync_us   microseconds of a launch and a synchronise (median)
//   null_us   microseconds of a synchronous call of the driver's that does next to nothing (memory
//             information), without the runtime's part of it
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "tests/programs/program.h"

__global__ void nothing() {}
__global__ void add(uint32_t* sums, uint32_t value) { sums[threadIdx.x] += value; }
__global__ void fold(uint32_t* sums, uint32_t value, uint32_t factor) {
    sums[threadIdx.x] = sums[threadIdx.x] * factor + value;
}
__global__ void copy(uint32_t* to, const uint32_t* from, int words) {
    if ((int)threadIdx.x < words) {
        to[threadIdx.x] = from[threadIdx.x];
    }
}

static double now_us() {
    using namespace std::chrono;
    return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

static double median(std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + (long)values.size() / 2, values.end());
    return values[values.size() / 2];
}

int main(int argc, char** argv) {
    const int launches = argc > 1 ? atoi(argv[1]) : 100000;
    nothing<<<1, 1>>>();
    CHECK(cudaDeviceSynchronize());

    double start = now_us();
    for (int i = 0; i < launches; ++i) {
        nothing<<<1, 1>>>();
    }
    CHECK(cudaDeviceSynchronize());
    printf("loop_us %.4f\n", (now_us() - start) / launches);

    uint32_t* sums = nullptr;
    CHECK(cudaMalloc(&sums, 1024));
    CHECK(cudaMemset(sums, 0, 1024));
    CHECK(cudaDeviceSynchronize());
    start = now_us();
    for (int i = 0; i < launches / 3; ++i) {
        add<<<1, 32>>>(sums, (uint32_t)i);
        fold<<<1, 32>>>(sums, (uint32_t)i, 3);
        copy<<<1, 64>>>(sums + 64, sums, i % 33);
    }
    CHECK(cudaDeviceSynchronize());
    printf("mixed_us %.4f\n", (now_us() - start) / (launches / 3 * 3));

    uint32_t random = 1;
    start = now_us();
    for (int i = 0; i < launches; ++i) {
        random = random * 1664525 + 1013904223;
        if (random >> 31) {
            add<<<1, 32>>>(sums, (uint32_t)i);
        } else {
            fold<<<1, 32>>>(sums, (uint32_t)i, 3);
        }
    }
    CHECK(cudaDeviceSynchronize());
    printf("random_us %.4f\n", (now_us() - start) / launches);

    std::vector<double> issue;
    for (int batch = 0; batch < 200; ++batch) {
        start = now_us();
        for (int i = 0; i < 256; ++i) {
            nothing<<<1, 1>>>();
        }
        issue.push_back((now_us() - start) / 256);
        CHECK(cudaDeviceSynchronize());
    }
    printf("issue_us %.4f\n", median(issue));

    std::vector<double> syncs;
    for (int i = 0; i < 2000; ++i) {
        start = now_us();
        nothing<<<1, 1>>>();
        CHECK(cudaDeviceSynchronize());
        syncs.push_back(now_us() - start);
    }
    printf("sync_us %.4f\n", median(syncs));

    void* entry = nullptr;
    CHECK(
        cudaGetDriverEntryPointByVersion("cuMemGetInfo", &entry, 3020, cudaEnableDefault, nullptr));
    const auto memory_information = (CUresult(*)(size_t*, size_t*))entry;
    std::vector<double> null_calls;
    for (int batch = 0; batch < 200; ++batch) {
        size_t free_bytes = 0, total_bytes = 0;
        start = now_us();
        for (int i = 0; i < 100; ++i) {
            if (memory_information(&free_bytes, &total_bytes) != CUDA_SUCCESS) {
                return 1;
            }
        }
        null_calls.push_back((now_us() - start) / 100);
    }
    printf("null_us %.4f\n", median(null_calls));
    CHECK(cudaGetLastError());
    return 0;
}
