// Trap: addresses of __device__ and __constant__ variables are stored in memory and must not
// change.
#include "program.h"

__device__ unsigned table[256];
__device__ unsigned* pointer_to_table = table;
__constant__ float factors[16];
__device__ void* slots[4];

__global__ void store_addresses() {
    slots[0] = table + 3;
    slots[1] = &slots[2];
    slots[2] = (void*)pointer_to_table;
}

__global__ void use(unsigned value, unsigned* out) {
    *(unsigned*)slots[0] += value;
    out[0] = table[3];
    out[1] = *(void**)slots[1] == (void*)table;
    out[2] = (unsigned)factors[5];
    out[3] = pointer_to_table == table;
}

int main() {
    unsigned host[256];
    float values[16];
    for (unsigned i = 0; i < 256; ++i) {
        host[i] = i * 10;
    }
    for (int i = 0; i < 16; ++i) {
        values[i] = 2.0f * (float)i;
    }
    CHECK(cudaMemcpyToSymbol(table, host, sizeof host));
    CHECK(cudaMemcpyToSymbol(factors, values, sizeof values));
    void *before = nullptr, *after = nullptr;
    CHECK(cudaGetSymbolAddress(&before, table));
    store_addresses<<<1, 1>>>();
    CHECK(cudaDeviceSynchronize());
    midpoint();
    unsigned* out = nullptr;
    unsigned back[4];
    CHECK(cudaMalloc((void**)&out, sizeof back));
    use<<<1, 1>>>(5, out);
    CHECK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
    EXPECT(back[0] == 35 && back[1] == 1 && back[2] == 10 && back[3] == 1);
    CHECK(cudaGetSymbolAddress(&after, table));
    EXPECT(before == after);
    unsigned inside = 0;
    CHECK(cudaMemcpyFromSymbol(&inside, table, 4, 12));
    EXPECT(inside == 35);
    size_t bytes = 0;
    CHECK(cudaGetSymbolSize(&bytes, table));
    EXPECT(bytes == sizeof host);
    return pass("module_globals");
}
