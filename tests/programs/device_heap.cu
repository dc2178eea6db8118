// Trap: blocks of the device's own malloc live across kernels, at their addresses.
#include "program.h"

struct Cell {
    Cell* next;
    unsigned value;
};

__device__ Cell* head;

__global__ void push(unsigned count, unsigned base) {
    for (unsigned i = 0; i < count; ++i) {
        Cell* cell = (Cell*)malloc(sizeof(Cell));
        cell->value = base + i;
        cell->next = head;
        head = cell;
    }
}

__global__ void sum(unsigned* out) {
    unsigned total = 0;
    for (Cell* cell = head; cell != nullptr;) {
        total += cell->value;
        Cell* next = cell->next;
        free(cell);
        cell = next;
    }
    *out = total;
    head = nullptr;
}

int main() {
    unsigned* out = nullptr;
    unsigned back = 0;
    CHECK(cudaMalloc((void**)&out, 4));
    push<<<1, 1>>>(100, 0);
    CHECK(cudaDeviceSynchronize());
    midpoint();
    push<<<1, 1>>>(100, 1000);
    sum<<<1, 1>>>(out);
    CHECK(cudaMemcpy(&back, out, 4, cudaMemcpyDeviceToHost));
    EXPECT(back == 4950 + 100 * 1000 + 4950);
    return pass("device_heap");
}
