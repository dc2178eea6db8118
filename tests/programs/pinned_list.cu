// Trap: a pinned host pointer is valid in a kernel as it is, also inside host-resident lists.
#include "program.h"

struct Node {
    Node* next;
    unsigned value;
};

__global__ void walk(Node* head, unsigned long long* sum) {
    for (Node* node = head; node != nullptr; node = node->next) {
        *sum += node->value;
        node->value *= 3;
    }
}

int main() {
    const unsigned count = 1000;
    Node* nodes = nullptr;
    unsigned long long* sum = nullptr;
    CHECK(cudaMallocHost((void**)&nodes, count * sizeof(Node)));
    CHECK(cudaMalloc((void**)&sum, sizeof *sum));
    CHECK(cudaMemset(sum, 0, sizeof *sum));
    for (unsigned i = 0; i < count; ++i) {
        nodes[i].next = i + 1 < count ? &nodes[i + 1] : nullptr;
        nodes[i].value = i;
    }
    walk<<<1, 1>>>(nodes, sum);
    CHECK(cudaDeviceSynchronize());
    midpoint();
    walk<<<1, 1>>>(nodes, sum);
    CHECK(cudaDeviceSynchronize());
    unsigned long long total = 0;
    CHECK(cudaMemcpy(&total, sum, sizeof total, cudaMemcpyDefault));
    EXPECT(total == 499500ull * 4);
    for (unsigned i = 0; i < count; ++i) {
        EXPECT(nodes[i].value == i * 9);
    }
    return pass("pinned_list");
}
