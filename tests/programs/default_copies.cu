// Trap: cudaMemcpyDefault decides by address, also at offsets inside an allocation.
#include "program.h"

int main() {
    const size_t bytes = 1 << 20;
    unsigned char *a = nullptr, *b = nullptr, *pinned = nullptr;
    unsigned char* host = (unsigned char*)malloc(bytes);
    unsigned char* back = (unsigned char*)malloc(bytes);
    CHECK(cudaMalloc((void**)&a, bytes));
    CHECK(cudaMalloc((void**)&b, bytes));
    CHECK(cudaMallocHost((void**)&pinned, bytes));
    for (size_t i = 0; i < bytes; ++i) {
        host[i] = (unsigned char)(i * 31 >> 3);
    }
    CHECK(cudaMemcpy(a + 1, host, bytes - 1, cudaMemcpyDefault));
    CHECK(cudaMemcpy(b + 3, a + 1, bytes - 5, cudaMemcpyDefault));
    midpoint();
    CHECK(cudaMemcpy(pinned + 7, b + 3, bytes - 9, cudaMemcpyDefault));
    CHECK(cudaMemcpy(a + 100, pinned + 7, bytes - 200, cudaMemcpyDefault));
    CHECK(cudaMemcpy(back, a + 100, bytes - 200, cudaMemcpyDefault));
    EXPECT(memcmp(back, host, bytes - 200) == 0);
    CHECK(cudaMemcpy(back, host, bytes, cudaMemcpyDefault));
    EXPECT(memcmp(back, host, bytes) == 0);
    EXPECT_STATUS(cudaMemcpy(host, back, 16, (cudaMemcpyKind)77), cudaErrorInvalidMemcpyDirection);
    return pass("default_copies");
}
