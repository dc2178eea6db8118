// Trap: managed memory is one address for CPU and GPU, also for system calls.
#include <fcntl.h>

#include "program.h"

struct Item {
    Item* next;
    int value;
};

__global__ void twice(Item* item) {
    for (; item != nullptr; item = item->next) {
        item->value *= 2;
    }
}

__managed__ int managed_variable = 5;

__managed__ long long managed_zeros[1000];

__global__ void read_variable(int* out) { *out = managed_variable + 1; }

__global__ void raise_variables(int by) {
    managed_variable += by;
    managed_zeros[999] += by;
}

int main() {
    Item* items = nullptr;
    CHECK(cudaMallocManaged((void**)&items, 100 * sizeof(Item)));
    for (int i = 0; i < 100; ++i) {
        items[i].next = i < 99 ? &items[i + 1] : nullptr;
        items[i].value = i;
    }
    twice<<<1, 1>>>(items);
    CHECK(cudaDeviceSynchronize());
    EXPECT(managed_variable == 5 && managed_zeros[999] == 0);
    managed_zeros[999] = 1000;
    raise_variables<<<1, 1>>>(3);
    CHECK(cudaDeviceSynchronize());
    EXPECT(managed_variable == 8 && managed_zeros[999] == 1003);
    int* where = nullptr;
    CHECK(cudaGetSymbolAddress((void**)&where, managed_variable));
    EXPECT(where == &managed_variable);
    midpoint();
    EXPECT(managed_variable == 8 && managed_zeros[999] == 1003);
    raise_variables<<<1, 1>>>(4);
    CHECK(cudaDeviceSynchronize());
    EXPECT(managed_variable == 12 && managed_zeros[999] == 1007 && managed_zeros[0] == 0);
    CHECK(cudaGetSymbolAddress((void**)&where, managed_variable));
    EXPECT(where == &managed_variable);
    twice<<<1, 1>>>(items);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 100; ++i) {
        EXPECT(items[i].value == 4 * i);
    }
    int zero = open("/dev/zero", O_RDONLY);
    EXPECT(zero >= 0);
    EXPECT(read(zero, &items[10].value, sizeof(int)) == (ssize_t)sizeof(int));
    close(zero);
    EXPECT(items[10].value == 0);
    int* out = nullptr;
    CHECK(cudaMallocManaged((void**)&out, sizeof(int)));
    managed_variable = 41;
    read_variable<<<1, 1>>>(out);
    CHECK(cudaDeviceSynchronize());
    EXPECT(*out == 42);
    return pass("managed");
}
