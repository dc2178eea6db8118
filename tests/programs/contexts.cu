// Trap: what a context has goes with it, and nothing else does: another context's memory stays,
// also where the primary one is released; a reset device has its variables and limits as they were
// at first, and its memory is free.
#include "driver_entry.h"

__device__ int counter = 5;
__constant__ int constant = 7;
__device__ int large[1 << 16];

__global__ void count(int* out) {
    out[0] = ++counter;
    out[1] = constant;
    out[2] = large[threadIdx.x] += 1;
}

typedef CUresult (*Create)(CUcontext*, unsigned int, CUdevice);

static const size_t kMib = 1 << 20;

/// Other work of the process uses the primary context, and is done with it.
static void use_primary() {
    int* out = nullptr;
    int got[3];
    CHECK(cudaSetDevice(0));
    CHECK(cudaMalloc((void**)&out, 64 * kMib));
    count<<<1, 1>>>(out);
    CHECK(cudaMemcpy(got, out, sizeof(got), cudaMemcpyDeviceToHost));
    EXPECT(got[0] == 6 && got[1] == 7 && got[2] == 1);
    const int changed = 100;
    CHECK(cudaMemcpyToSymbol(constant, &changed, sizeof(changed)));
    count<<<1, 1>>>(out);
    CHECK(cudaMemcpy(got, out, sizeof(got), cudaMemcpyDeviceToHost));
    EXPECT(got[0] == 7 && got[1] == 100 && got[2] == 2);
    CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 8192));
}

int main() {
    CHECK(cudaFree(nullptr));
#if CUDA_VERSION >= 12040
    ENTRY(cuStreamGetGreenCtx, 12040);
    CUgreenCtx green = (CUgreenCtx)&green;
    OK(cuStreamGetGreenCtx_(nullptr, &green));  // An ordinary stream is of none.
    EXPECT(green == nullptr);
#endif
    CHECK(cudaDeviceReset());
    ENTRY(cuMemAlloc, 3020);
    ENTRY(cuMemGetInfo, 3020);
    ENTRY(cuMemHostAlloc, 2020);
    ENTRY(cuMemsetD8, 3020);
    ENTRY(cuMemcpyDtoH, 3020);
    ENTRY(cuMemcpyHtoD, 3020);
    ENTRY(cuCtxDestroy, 4000);
    ENTRY(cuCtxSetCurrent, 4000);
    ENTRY(cuCtxSynchronize, 2000);
    ENTRY(cuMemsetD8Async, 12000);
    ENTRY(cuStreamSynchronize, 12000);
    const Create create = entry<Create>("cuCtxCreate", 3020);

    CUcontext own = nullptr;
    CUdeviceptr kept = 0;
    OK(create(&own, 0, 0));
    OK(cuMemAlloc_(&kept, 16 * kMib));
    OK(cuMemsetD8_(kept, 0x5a, 16 * kMib));
    OK(cuCtxSynchronize_());
    size_t stack = 0;
    for (int round = 0; round < 3; ++round) {
        use_primary();
        CHECK(cudaDeviceReset());  // Natively of the primary context alone.
        CHECK(cudaSetDevice(0));
        CHECK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
        EXPECT(stack < 8192);
    }
    CHECK(cudaDeviceReset());

    midpoint();

    OK(cuCtxSetCurrent_(own));
    unsigned char* bytes = (unsigned char*)malloc(16 * kMib);
    CUdeviceptr other = 0;
    OK(cuMemAlloc_(&other, 16 * kMib));
    OK(cuMemsetD8_(other, 0x11, 16 * kMib));
    OK(cuMemcpyDtoH_(bytes, kept, 16 * kMib));
    for (size_t i = 0; i < 16 * kMib; ++i) {
        EXPECT(bytes[i] == 0x5a);
    }
    // One large allocation lies where small ones of an ended context were.
    unsigned char* back = (unsigned char*)malloc(8 * kMib);
    CUcontext second = nullptr;
    size_t before = 0, after = 0, total = 0;
    OK(cuMemGetInfo_(&before, &total));
    for (int round = 0; round < 6; ++round) {
        OK(create(&second, 0, 0));
        CUdeviceptr small[4], whole = 0;
        void* pinned = nullptr;
        for (CUdeviceptr& one : small) {
            OK(cuMemAlloc_(&one, 8 * kMib));
        }
        OK(cuMemHostAlloc_(&pinned, 4 * kMib, 0));
        memset(pinned, round, 4 * kMib);
        OK(cuMemcpyHtoD_(small[1], pinned, 4 * kMib));
        OK(cuCtxDestroy_(second));
        OK(create(&second, 0, 0));
        OK(cuMemAlloc_(&whole, 32 * kMib));
        OK(cuMemcpyHtoD_(whole + 8 * kMib, bytes, 16 * kMib));
        OK(cuMemsetD8_(whole + 8 * kMib, 1, 24 * kMib));
        // The thread's own stream in this context, and copies from and to pages behind it.
        OK(cuMemsetD8Async_(whole, (unsigned char)round, 8 * kMib, CU_STREAM_PER_THREAD));
        OK(cuStreamSynchronize_(CU_STREAM_PER_THREAD));
        OK(cuMemcpyDtoH_(back, whole, 8 * kMib));
        EXPECT(back[0] == round && back[8 * kMib - 1] == round);
        OK(cuCtxDestroy_(second));
    }
    OK(cuCtxSetCurrent_(own));
    OK(cuMemGetInfo_(&after, &total));
    EXPECT(after + 64 * kMib > before);
    use_primary();
    printf("digest %016llx\n", (unsigned long long)digest(bytes, 16 * kMib));
    free(back);
    free(bytes);
    return pass("contexts");
}
