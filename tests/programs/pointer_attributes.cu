// Trap: what kind of memory does a pointer name? Device, inside, freed, pinned, managed, pageable.
#include "program.h"

static void expect_kind(const void* pointer, cudaMemoryType wanted, const char* what) {
    cudaPointerAttributes attributes;
    memset(&attributes, 0xee, sizeof attributes);
    CHECK(cudaPointerGetAttributes(&attributes, pointer));
    if (attributes.type != wanted) {
        fprintf(stderr, "%s: type %d, expected %d\n", what, (int)attributes.type, (int)wanted);
        exit(1);
    }
    if (wanted == cudaMemoryTypeDevice || wanted == cudaMemoryTypeManaged) {
        EXPECT(attributes.devicePointer == pointer);
        EXPECT(attributes.device == 0);
    }
    if (wanted == cudaMemoryTypeHost || wanted == cudaMemoryTypeManaged) {
        EXPECT(attributes.hostPointer == pointer);
    }
}

int main() {
    char *device = nullptr, *pinned = nullptr, *managed = nullptr;
    char* pageable = (char*)malloc(4096);
    CHECK(cudaMalloc((void**)&device, 1 << 20));
    CHECK(cudaMallocHost((void**)&pinned, 1 << 16));
    CHECK(cudaMallocManaged((void**)&managed, 1 << 16));
    for (int half = 0; half < 2; ++half) {
        expect_kind(device, cudaMemoryTypeDevice, "device");
        expect_kind(device + 12345, cudaMemoryTypeDevice, "inside device memory");
        expect_kind(pinned, cudaMemoryTypeHost, "pinned");
        expect_kind(pinned + 77, cudaMemoryTypeHost, "inside pinned memory");
        expect_kind(managed, cudaMemoryTypeManaged, "managed");
        expect_kind(pageable, cudaMemoryTypeUnregistered, "pageable");
        expect_kind(&half, cudaMemoryTypeUnregistered, "stack");
        if (half == 0) {
            midpoint();
        }
    }
    CHECK(cudaFree(device));
    expect_kind(device, cudaMemoryTypeUnregistered, "freed");
    EXPECT_STATUS(cudaFree(device), cudaErrorInvalidValue);
    EXPECT_STATUS(cudaFree(pageable), cudaErrorInvalidValue);
    CHECK(cudaFree(nullptr));
    cudaGetLastError();
    return pass("pointer_attributes");
}
