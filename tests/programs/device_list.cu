// Trap: raw device pointers live in device memory; they must mean the same after a move.
#include "program.h"

struct Node {
    Node* next;
    Node* other;
    unsigned value;
};

__global__ void build(Node* pool, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        pool[i].next = &pool[(i * 7 + 1) % count];
        pool[i].other = &pool[(i + count / 2) % count];
        pool[i].value = i;
    }
}

__global__ void walk(Node* start, unsigned steps, unsigned long long* out) {
    unsigned long long sum = 0;
    Node* node = start;
    for (unsigned i = 0; i < steps; ++i) {
        sum = sum * 31 + node->value;
        node->other->value ^= (unsigned)sum;
        node = node->next;
    }
    *out = sum;
}

int main() {
    const unsigned count = 1 << 16;
    Node* pool = nullptr;
    unsigned long long* out = nullptr;
    unsigned long long first = 0, second = 0;
    CHECK(cudaMalloc((void**)&pool, count * sizeof(Node)));
    CHECK(cudaMalloc((void**)&out, 8));
    for (int pass_number = 0; pass_number < 2; ++pass_number) {
        build<<<count / 256, 256>>>(pool, count);
        walk<<<1, 1>>>(pool, 20000, out);
        CHECK(cudaDeviceSynchronize());
        if (pass_number == 1) {
            midpoint();
        }
        walk<<<1, 1>>>(pool + 5, 20000, out);
        CHECK(cudaMemcpy(pass_number == 0 ? &first : &second, out, 8, cudaMemcpyDeviceToHost));
    }
    printf("digest %016llx\n", first);
    EXPECT(first == second);
    return pass("device_list");
}
