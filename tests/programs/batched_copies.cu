// Trap: one call for many copies, with pageable, page-locked and device memory mixed.
#include "program.h"

enum { kWords = 70000 };

int main() {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    const size_t bytes = kWords * sizeof(unsigned);
    unsigned *device, *pinned;
    unsigned* pages = (unsigned*)malloc(3 * bytes);
    CHECK(cudaMalloc((void**)&device, 3 * bytes));
    CHECK(cudaMallocHost((void**)&pinned, bytes));
    for (unsigned i = 0; i < kWords; ++i) {
        pages[i] = i * 3;
        pinned[i] = i * 5;
    }
    // Copies of one batch have no order among themselves, so none uses what another has written.
    const void* in_from[] = {pages, pinned};
    void* in_to[] = {device, device + kWords};
    size_t in_sizes[] = {bytes, bytes};
    cudaMemcpyAttributes attributes[2] = {};
    attributes[0].srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes[1].srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;
    size_t first = 0, starts[] = {0, 1};
    CHECK(cudaMemcpyBatchAsync(in_to, in_from, in_sizes, 2, attributes, &first, 1, stream));
    midpoint();
    CHECK(cudaStreamSynchronize(stream));
    memset(pages, 0xee, 3 * bytes);
    memset(pinned, 0xee, bytes);
    const void* from[] = {device, device + kWords, device + 7};
    void* to[] = {pages + kWords, pinned, device + 2 * kWords};
    size_t sizes[] = {bytes, bytes, 100 * sizeof(unsigned)};
    CHECK(cudaMemcpyBatchAsync(to, from, sizes, 3, attributes, starts, 2, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(pages, device + 2 * kWords, 100 * sizeof(unsigned), cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < kWords; ++i) {
        EXPECT(pages[kWords + i] == i * 3 && pinned[i] == i * 5);
        EXPECT(i < 100 ? pages[i] == (i + 7) * 3 : pages[i] == 0xeeeeeeee);
    }
    size_t late = 1;
    EXPECT_STATUS(cudaMemcpyBatchAsync(to, from, sizes, 3, attributes, &late, 1, stream),
                  cudaErrorInvalidValue);
    EXPECT_STATUS(cudaMemcpyBatchAsync(to, from, sizes, 0, attributes, starts, 1, stream),
                  cudaErrorInvalidValue);
    free(pages);
    return pass("batched_copies");
}
