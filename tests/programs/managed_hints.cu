// Trap: managed memory is prefetched, advised and attached to streams. Hints may do nothing, but
// are taken, answered as set where they can be asked for, and never change a byte.
#include "program.h"

__global__ void add(int* values, int count, int by) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) {
        values[i] += by;
    }
}

constexpr int kCount = 1 << 16;

static void expect_values(const int* values, int offset) {
    for (int i = 0; i < kCount; ++i) {
        EXPECT(values[i] == i + offset);
    }
}

static void hint(int* values, size_t bytes, cudaMemLocation where, cudaStream_t stream) {
    CHECK(cudaMemAdvise(values, bytes, cudaMemAdviseSetReadMostly, where));
    CHECK(cudaMemAdvise(values, bytes, cudaMemAdviseUnsetReadMostly, where));
    CHECK(cudaMemAdvise(values, bytes, cudaMemAdviseSetPreferredLocation, where));
    CHECK(cudaMemAdvise(values, bytes, cudaMemAdviseSetAccessedBy, where));
    CHECK(cudaMemPrefetchAsync(values, bytes, where, 0, stream));
}

int main() {
    int* values = nullptr;
    const size_t bytes = kCount * sizeof(int);
    CHECK(cudaMallocManaged((void**)&values, bytes));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    const cudaMemLocation device = {cudaMemLocationTypeDevice, 0};
    const cudaMemLocation host = {cudaMemLocationTypeHost, 0};
    for (int i = 0; i < kCount; ++i) {
        values[i] = i;
    }
    int offset = 0;
    for (int round = 0; round < 2; ++round) {
        hint(values, bytes, device, stream);
        add<<<kCount / 256, 256, 0, stream>>>(values, kCount, 5);
        CHECK(cudaGetLastError());
        hint(values, bytes, host, stream);
        CHECK(cudaStreamSynchronize(stream));
        expect_values(values, offset += 5);
        CHECK(cudaStreamAttachMemAsync(stream, values, 0, cudaMemAttachSingle));
        CHECK(cudaStreamSynchronize(stream));
        add<<<kCount / 256, 256, 0, stream>>>(values, kCount, 2);
        CHECK(cudaStreamSynchronize(stream));
        expect_values(values, offset += 2);
        CHECK(cudaStreamAttachMemAsync(stream, values, 0, cudaMemAttachGlobal));
        CHECK(cudaStreamSynchronize(stream));
        if (round == 0) {
            midpoint();
            expect_values(values, offset);
        }
    }
    int* unmanaged = nullptr;
    CHECK(cudaMalloc((void**)&unmanaged, bytes));
    EXPECT_STATUS(cudaMemPrefetchAsync(unmanaged, bytes, device, 0, stream), cudaErrorInvalidValue);
    return pass("managed_hints");
}
