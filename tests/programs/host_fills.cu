// Trap: a fill of memory that the host sees too (page-locked, registered, managed) has ended when
// the call returns, without a word about streams, and with it what stood before it in the default
// stream; what the program writes there next stays.
#include "program.h"

static const size_t kWidth = 1 << 12;
static const size_t kBytes = 1 << 18;
static const unsigned kTurns = 2000;
static const int kRounds = 8;

/// Writes 1 to all bytes, after a while.
__global__ void write_late(volatile unsigned char* bytes, size_t count, unsigned turns) {
    unsigned wasted = 1;
    for (unsigned i = 0; i < turns; ++i) {
        wasted = wasted * 1664525u + 1013904223u;
    }
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) {
        bytes[i] = (unsigned char)wasted;
        bytes[i] = 1;
    }
}

static size_t others(const unsigned char* bytes, unsigned char value) {
    size_t found = 0;
    for (size_t i = 0; i < kBytes; ++i) {
        found += bytes[i] != value;
    }
    return found;
}

static void fill(unsigned char* bytes, unsigned char* on_device, int value, bool in_rows) {
    write_late<<<1, 64>>>(on_device, kBytes, kTurns);
    if (in_rows) {
        CHECK(cudaMemset2D(on_device, kWidth, value, kWidth, kBytes / kWidth));
    } else {
        CHECK(cudaMemset(on_device, value, kBytes));
    }
    EXPECT(others(bytes, (unsigned char)value) == 0);
    memset(bytes, value + 1, kBytes);
    CHECK(cudaDeviceSynchronize());
    EXPECT(others(bytes, (unsigned char)(value + 1)) == 0);
}

int main() {
    unsigned char* memory[3];
    unsigned char* on_device[3];
    CHECK(cudaMallocHost((void**)&memory[0], kBytes));
    memory[1] = (unsigned char*)aligned_alloc(4096, kBytes);
    CHECK(cudaHostRegister(memory[1], kBytes, cudaHostRegisterDefault));
    CHECK(cudaMallocManaged((void**)&memory[2], kBytes));
    for (int i = 0; i < 2; ++i) {
        CHECK(cudaHostGetDevicePointer((void**)&on_device[i], memory[i], 0));
    }
    on_device[2] = memory[2];
    for (int round = 0; round < kRounds; ++round) {
        for (int i = 0; i < 3; ++i) {
            fill(memory[i], on_device[i], 2 + round * 8 + i, round % 2 == 1);
        }
        if (round == kRounds / 2) {
            midpoint();
        }
    }
    CHECK(cudaFree(memory[2]));
    CHECK(cudaHostUnregister(memory[1]));
    CHECK(cudaFreeHost(memory[0]));
    free(memory[1]);
    return pass("host_fills");
}
