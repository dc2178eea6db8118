// The memory traffic of a training step: parameters, gradients and both moments of AdamW, all of
// them read and written in each step, so that whoever copies them live finds every block changed.
// Argument 1: MiB of all four, 2: steps. Prints "running" after the first step, at the end how long
// the steps took as the program saw them, those that took much longer than the others with the
// moment (CLOCK_MONOTONIC) when they ended, and a checksum of all bits.
#include <cuda_runtime.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

__host__ __device__ unsigned mixed(unsigned i) {
    i = (i ^ (i >> 16)) * 0x7feb352du;
    i = (i ^ (i >> 15)) * 0x846ca68bu;
    return i ^ (i >> 16);
}

struct Job {
    float* parameter;
    float* gradient;
    float* first;
    float* second;
    size_t count;
};

__global__ void begin(Job job) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < job.count;
         i += (size_t)gridDim.x * blockDim.x) {
        job.parameter[i] = (float)(mixed((unsigned)i) & 0xffff) / 65536.0f;
        job.gradient[i] = job.first[i] = job.second[i] = 0.0f;
    }
}

__global__ void advance(Job job, unsigned step) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < job.count;
         i += (size_t)gridDim.x * blockDim.x) {
        const float noise = (float)(mixed((unsigned)i ^ (step * 0x9e3779b9u)) & 0xffff) / 65536.0f;
        const float slope = job.parameter[i] - noise;
        const float first = 0.9f * job.first[i] + 0.1f * slope;
        const float second = 0.999f * job.second[i] + 0.001f * slope * slope;
        job.gradient[i] = slope;
        job.first[i] = first;
        job.second[i] = second;
        job.parameter[i] -= 0.001f * first / (sqrtf(second) + 1e-8f);
    }
}

__global__ void sum(Job job, unsigned long long* out) {
    unsigned long long mine = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < job.count;
         i += (size_t)gridDim.x * blockDim.x) {
        const float* from[] = {job.parameter, job.gradient, job.first, job.second};
        for (unsigned k = 0; k < 4; ++k) {
            mine += (unsigned long long)__float_as_uint(from[k][i]) * (2 * (i * 4 + k) + 1);
        }
    }
    atomicAdd(out, mine);
}

int main(int argc, char** argv) {
    const size_t count = (argc > 1 ? atoi(argv[1]) : 64) * (size_t)65536;
    const unsigned steps = argc > 2 ? atoi(argv[2]) : 100;
    Job job{nullptr, nullptr, nullptr, nullptr, count};
    unsigned long long* total = nullptr;
    for (float** array : {&job.parameter, &job.gradient, &job.first, &job.second}) {
        if (cudaMalloc(array, count * sizeof(float)) != cudaSuccess) {
            printf("no memory\n");
            return 1;
        }
    }
    if (cudaMalloc(&total, sizeof(*total)) != cudaSuccess ||
        cudaMemset(total, 0, sizeof(*total)) != cudaSuccess) {
        return 1;
    }
    begin<<<1024, 256>>>(job);
    std::vector<double> ms;
    std::vector<double> ends;
    auto before = std::chrono::steady_clock::now();
    for (unsigned step = 0; step < steps; ++step) {
        advance<<<1024, 256>>>(job, step);
        if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
            printf("error: %s\n", cudaGetErrorString(error));
            return 2;
        }
        const auto now = std::chrono::steady_clock::now();
        ms.push_back(std::chrono::duration<double, std::milli>(now - before).count());
        ends.push_back(std::chrono::duration<double>(now.time_since_epoch()).count());
        before = now;
        if (step == 0) {
            printf("running\n");
            fflush(stdout);
        }
    }
    sum<<<1024, 256>>>(job, total);
    unsigned long long found = 0;
    if (cudaMemcpy(&found, total, sizeof(found), cudaMemcpyDeviceToHost) != cudaSuccess) {
        return 2;
    }
    const std::vector<double> in_order = ms;
    std::sort(ms.begin(), ms.end());
    for (size_t i = 0; i < in_order.size(); ++i) {
        if (in_order[i] > 1.3 * ms[ms.size() / 2]) {
            printf("slow %.6f %.3f\n", ends[i], in_order[i]);
        }
    }
    printf("median %.3f longest %.3f second %.3f\nchecksum %016llx\n", ms[ms.size() / 2], ms.back(),
           ms[ms.size() - std::min<size_t>(ms.size(), 2)], found);
    return 0;
}
