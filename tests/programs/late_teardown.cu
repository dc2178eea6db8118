// Trap: static destructors call CUDA after main; they must neither hang nor crash.
#include "program.h"

struct Holder {
    void* memory = nullptr;
    cudaStream_t stream = nullptr;
    ~Holder() {
        cudaFree(memory);
        cudaStreamDestroy(stream);
        fprintf(stderr, "destructor done\n");
    }
};

static Holder holder;

__global__ void touch(char* where) { *where = 1; }

int main() {
    CHECK(cudaMalloc(&holder.memory, 1 << 20));
    CHECK(cudaStreamCreate(&holder.stream));
    touch<<<1, 1, 0, holder.stream>>>((char*)holder.memory);
    midpoint();
    touch<<<1, 1, 0, holder.stream>>>((char*)holder.memory);
    CHECK(cudaGetLastError());
    return pass("late_teardown");
}
