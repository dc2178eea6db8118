// Trap: memory pools: limits, attributes and marks stay what the application set and saw.
#include "driver_entry.h"

/// The pool that memory is of, which no context owns.
static void expect_pool(const void* memory, cudaMemPool_t wanted) {
    ENTRY(cuPointerGetAttribute, 12000);
    CUmemoryPool pool = nullptr;
    CUcontext context = (CUcontext)memory;
    const CUdeviceptr address = (CUdeviceptr)memory;
    OK(cuPointerGetAttribute_(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address));
    OK(cuPointerGetAttribute_(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address));
    EXPECT(pool == wanted && context == nullptr);
}

static unsigned long long ask(cudaMemPool_t pool, cudaMemPoolAttr attribute) {
    unsigned long long value = 0;
    CHECK(cudaMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

int main() {
    const size_t mib = 1u << 20;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cudaMemPool_t standard, seen, own;
    CHECK(cudaDeviceGetDefaultMemPool(&standard, 0));
    CHECK(cudaDeviceGetMemPool(&seen, 0));
    EXPECT(seen == standard);
    unsigned long long keep = 64 * mib;
    CHECK(cudaMemPoolSetAttribute(standard, cudaMemPoolAttrReleaseThreshold, &keep));
    int no = 0;
    CHECK(cudaMemPoolSetAttribute(standard, cudaMemPoolReuseAllowOpportunistic, &no));
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    CHECK(cudaMemPoolCreate(&own, &props));
    // One description, whose 12 bytes are no multiple of 8; and two.
    cudaMemAccessDesc shares[2] = {};
    shares[0].location = props.location;
    shares[0].flags = cudaMemAccessFlagsProtReadWrite;
    shares[1] = shares[0];
    CHECK(cudaMemPoolSetAccess(own, shares, 1));
    CHECK(cudaMemPoolSetAccess(own, shares, 2));
    cudaMemAccessFlags granted = cudaMemAccessFlagsProtNone;
    CHECK(cudaMemPoolGetAccess(&granted, own, &props.location));
    EXPECT(granted == cudaMemAccessFlagsProtReadWrite);

    unsigned *a = nullptr, *b = nullptr, *c = nullptr;
    CHECK(cudaMallocAsync((void**)&a, 3 * mib, stream));
    CHECK(cudaMallocFromPoolAsync((void**)&b, 5 * mib, own, stream));
    CHECK(cudaMallocFromPoolAsync((void**)&c, 7 * mib, own, stream));
    CHECK(cudaMemsetAsync(b, 0x5a, 5 * mib, stream));
    CHECK(cudaFreeAsync(c, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(ask(own, cudaMemPoolAttrUsedMemHigh) >= 12 * mib);
    const unsigned long long used = ask(own, cudaMemPoolAttrUsedMemCurrent);
    EXPECT(used >= 5 * mib && used < 12 * mib);
    CHECK(cudaDeviceSetMemPool(0, own));

    expect_pool(a, standard);
    expect_pool(b, own);

    midpoint();

    expect_pool(a, standard);
    expect_pool(b + 5, own);
    CHECK(cudaDeviceGetMemPool(&seen, 0));
    EXPECT(seen == own);
    EXPECT(ask(standard, cudaMemPoolAttrReleaseThreshold) == keep);
    EXPECT(ask(own, cudaMemPoolAttrReleaseThreshold) == 0);
    int opportunistic = 1, follow = 0;
    CHECK(cudaMemPoolGetAttribute(standard, cudaMemPoolReuseAllowOpportunistic, &opportunistic));
    CHECK(cudaMemPoolGetAttribute(standard, cudaMemPoolReuseFollowEventDependencies, &follow));
    EXPECT(opportunistic == 0 && follow == 1);
    EXPECT(ask(own, cudaMemPoolAttrUsedMemCurrent) == used);
    EXPECT(ask(own, cudaMemPoolAttrUsedMemHigh) >= 12 * mib);
    EXPECT(ask(own, cudaMemPoolAttrReservedMemCurrent) >= used);
    unsigned long long zero = 0;
    CHECK(cudaMemPoolSetAttribute(own, cudaMemPoolAttrUsedMemHigh, &zero));
    EXPECT(ask(own, cudaMemPoolAttrUsedMemHigh) < 12 * mib);
    unsigned word = 0;
    CHECK(cudaMemcpy(&word, b + mib, 4, cudaMemcpyDeviceToHost));
    EXPECT(word == 0x5a5a5a5a);
    CHECK(cudaMallocAsync((void**)&c, 2 * mib, stream));  // From the current pool.
    expect_pool(c, own);
    EXPECT(ask(own, cudaMemPoolAttrUsedMemCurrent) >= used + 2 * mib);
    cudaMemAccessDesc access = {};
    access.location = props.location;
    cudaMemAccessFlags flags = cudaMemAccessFlagsProtNone;
    CHECK(cudaMemPoolGetAccess(&flags, own, &access.location));
    EXPECT(flags == cudaMemAccessFlagsProtReadWrite);
    CHECK(cudaFreeAsync(a, stream));
    CHECK(cudaFreeAsync(b, stream));
    CHECK(cudaFreeAsync(c, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(ask(own, cudaMemPoolAttrUsedMemCurrent) == 0);
    CHECK(cudaMemPoolTrimTo(own, 0));
    CHECK(cudaMemPoolDestroy(own));
    CHECK(cudaDeviceGetMemPool(&seen, 0));
    EXPECT(seen == standard);
    return pass("memory_pools");
}
