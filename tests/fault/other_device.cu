// What a program uses of its device, before and after it may have gone to another one. Argument 1:
//   cooperative  grids as large as the device has room for, by what it told the program
//   shared       a kernel with 200 KiB of shared memory a block, lowered while it is not launched
//   memory       all that is said to be free
#include <cooperative_groups.h>
#include <string>

#include "tests/programs/program.h"

namespace cg = cooperative_groups;

__global__ void meet(unsigned* count) {
    cg::grid_group grid = cg::this_grid();
    if (threadIdx.x == 0) {
        atomicAdd(count, 1);
    }
    grid.sync();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *count = *count == gridDim.x ? 0 : *count;  // All were there at once.
    }
}

__global__ void turn_around(unsigned* data, unsigned count) {
    extern __shared__ unsigned room[];
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
        room[i] = data[i];
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
        data[i] = room[count - 1 - i];
    }
}

static void launch_meeting(unsigned* count, int blocks, int threads, cudaError_t wanted) {
    void* arguments[] = {&count};
    EXPECT_STATUS(cudaLaunchCooperativeKernel((void*)meet, dim3((unsigned)blocks),
                                              dim3((unsigned)threads), arguments, 0, nullptr),
                  wanted);
    (void)cudaGetLastError();
    CHECK(cudaDeviceSynchronize());
    unsigned left = 1;
    CHECK(cudaMemcpy(&left, count, sizeof left, cudaMemcpyDeviceToHost));
    EXPECT(left == 0);
}

static int room_for(int threads) {
    int each = 0, processors = 0;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, meet, threads, 0));
    CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    return each * processors;
}

static int cooperative() {
    unsigned* count = nullptr;
    CHECK(cudaMalloc(&count, sizeof *count));
    CHECK(cudaMemset(count, 0, sizeof *count));
    const int room = room_for(64);
    launch_meeting(count, room, 64, cudaSuccess);
    midpoint();
    launch_meeting(count, room, 64, cudaSuccess);
    EXPECT(room_for(64) == room);
    launch_meeting(count, room_for(96), 96, cudaSuccess);  // Not asked before.
    launch_meeting(count, room + 1, 64, cudaErrorCooperativeLaunchTooLarge);
    return pass("cooperative");
}

static int shared() {
    const unsigned count = 50 * 1024;
    static unsigned host[50 * 1024];
    unsigned* device = nullptr;
    for (unsigned i = 0; i < count; ++i) {
        host[i] = i;
    }
    CHECK(cudaMalloc(&device, sizeof host));
    CHECK(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice));
    for (int half = 0; half < 2; ++half) {
        CHECK(cudaFuncSetAttribute(turn_around, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)sizeof host));
        turn_around<<<1, 256, sizeof host>>>(device, count);
        CHECK(cudaGetLastError());
        CHECK(cudaFuncSetAttribute(turn_around, cudaFuncAttributeMaxDynamicSharedMemorySize, 4096));
        CHECK(cudaDeviceSynchronize());
        if (half == 0) {
            midpoint();
        }
    }
    turn_around<<<1, 256, sizeof host>>>(device, count);
    EXPECT_STATUS(cudaGetLastError(), cudaErrorInvalidValue);  // It was lowered.
    CHECK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < count; ++i) {
        EXPECT(host[i] == i);
    }
    return pass("shared");
}

static int memory() {
    const size_t mib = 1 << 20;
    size_t free_before = 0, total_before = 0, free_now = 0, total_now = 0;
    void* some = nullptr;
    void* rest = nullptr;
    CHECK(cudaMalloc(&some, 64 * mib));
    CHECK(cudaMemGetInfo(&free_before, &total_before));
    midpoint();
    CHECK(cudaMemGetInfo(&free_now, &total_now));
    printf("before %zu of %zu MiB, now %zu of %zu MiB\n", free_before / mib, total_before / mib,
           free_now / mib, total_now / mib);
    EXPECT(total_now == total_before);
    CHECK(cudaMalloc(&rest, free_now / (2 * mib) * (2 * mib)));
    CHECK(cudaMemGetInfo(&free_now, &total_now));
    EXPECT(free_now < 2 * mib);  // At once, although others may use the device as well.
    void* more = nullptr;
    EXPECT_STATUS(cudaMalloc(&more, 4 * mib), cudaErrorMemoryAllocation);
    (void)cudaGetLastError();
    CHECK(cudaFree(rest));
    return pass("memory");
}

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what == "cooperative") {
        return cooperative();
    }
    return what == "shared" ? shared() : what == "memory" ? memory() : 2;
}
