// Trap: registered pages stay what they were: the process's own, in a forked child too, and shared
// with others only where a driver can have it so (else it must refuse by name, not tear them off).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "program.h"

static const size_t kBytes = 1 << 20;
static unsigned char bss_bytes[3 << 14];

__global__ void add_one(unsigned char* bytes, size_t count) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        ++bytes[i];
    }
}

static void fill(unsigned char* bytes, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; ++i) {
        bytes[i] = (unsigned char)(i * 7 + seed);
    }
}

static int is_filled(const unsigned char* bytes, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; ++i) {
        if (bytes[i] != (unsigned char)(i * 7 + seed)) {
            return 0;
        }
    }
    return 1;
}

/// By a kernel where the pages lie, and by copies both ways.
static void use(unsigned char* bytes, size_t count, unsigned seed) {
    unsigned char* on_device = NULL;
    unsigned char* copy = NULL;
    CHECK(cudaHostGetDevicePointer((void**)&on_device, bytes, 0));
    CHECK(cudaMalloc((void**)&copy, count));
    add_one<<<8, 64>>>(on_device, count);
    CHECK(cudaMemcpyAsync(copy, bytes, count, cudaMemcpyHostToDevice, 0));
    CHECK(cudaDeviceSynchronize());
    EXPECT(is_filled(bytes, count, seed + 1));
    memset(bytes, 0, count);
    CHECK(cudaMemcpyAsync(bytes, copy, count, cudaMemcpyDeviceToHost, 0));
    CHECK(cudaDeviceSynchronize());
    EXPECT(is_filled(bytes, count, seed + 1));
    CHECK(cudaMemset(bytes, 0x77, count));
    CHECK(cudaDeviceSynchronize());
    EXPECT(bytes[0] == 0x77 && bytes[count - 1] == 0x77);
    fill(bytes, count, seed + 1);
    CHECK(cudaFree(copy));
}

/// A variable of a function that is being executed, with what else lies on its pages: what the
/// functions beneath keep there while the pages are exchanged.
static unsigned on_the_stack(int depth) {
    volatile unsigned char page_or_so[1000];
    volatile unsigned value = 77 + (unsigned)depth;
    page_or_so[depth * 9 % 1000] = (unsigned char)depth;
    unsigned char* on_device = NULL;
    CHECK(cudaHostRegister((void*)&value, sizeof value, cudaHostRegisterMapped));
    EXPECT(value == 77 + (unsigned)depth);
    CHECK(cudaHostGetDevicePointer((void**)&on_device, (void*)&value, 0));
    add_one<<<1, 1>>>(on_device, 1);
    CHECK(cudaDeviceSynchronize());
    EXPECT(value == 78 + (unsigned)depth);
    value += 100;
    CHECK(cudaHostUnregister((void*)&value));
    EXPECT(page_or_so[depth * 9 % 1000] == (unsigned char)depth);
    return value + (depth == 0 ? 0 : on_the_stack(depth - 1));
}

/// What a child writes, and whether it sees what it should, as its exit status.
static int child_writes(unsigned char* bytes, size_t count, unsigned seed) {
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        const int was_right = is_filled(bytes, count, seed);
        memset(bytes, 0xee, count);
        _exit(was_right ? 0 : 1);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main() {
    // Not at the start of a page, and not to the end of one.
    unsigned char* heap = (unsigned char*)malloc(kBytes + 100) + 100;
    fill(heap, kBytes, 1);
    fill(bss_bytes, sizeof bss_bytes, 1);
    CHECK(cudaHostRegister(heap, kBytes, cudaHostRegisterDefault));
    CHECK(cudaHostRegister(bss_bytes, sizeof bss_bytes, cudaHostRegisterPortable));
    EXPECT(is_filled(heap, kBytes, 1) && is_filled(bss_bytes, sizeof bss_bytes, 1));
    EXPECT_STATUS(cudaHostRegister(heap, kBytes, 0), cudaErrorHostMemoryAlreadyRegistered);
    (void)cudaGetLastError();
    use(heap, kBytes, 1);
    use(bss_bytes, sizeof bss_bytes, 1);
    midpoint();
    use(heap, kBytes, 2);
    use(bss_bytes, sizeof bss_bytes, 2);

    // A child has its own pages from the fork on.
    EXPECT(child_writes(heap, kBytes, 3));
    EXPECT(is_filled(heap, kBytes, 3));
    use(heap, kBytes, 3);

    CHECK(cudaHostUnregister(heap));
    EXPECT(is_filled(heap, kBytes, 4));
    EXPECT(child_writes(heap, kBytes, 4));
    EXPECT(is_filled(heap, kBytes, 4));
    CHECK(cudaHostRegister(heap, kBytes, cudaHostRegisterMapped));
    use(heap, kBytes, 4);
    CHECK(cudaHostUnregister(heap));
    CHECK(cudaHostUnregister(bss_bytes));
    EXPECT(is_filled(bss_bytes, sizeof bss_bytes, 3));

    EXPECT(on_the_stack(20) == 21 * 178 + 210);

    // Shared with a child: registered or refused, it stays shared.
    unsigned char* shared = (unsigned char*)mmap(NULL, kBytes, PROT_READ | PROT_WRITE,
                                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(shared != MAP_FAILED);
    fill(shared, kBytes, 9);
    const cudaError_t status = cudaHostRegister(shared, kBytes, cudaHostRegisterDefault);
    EXPECT(status == cudaSuccess || status == cudaErrorNotSupported);
    (void)cudaGetLastError();
    EXPECT(child_writes(shared, kBytes, 9));
    EXPECT(shared[0] == 0xee && shared[kBytes - 1] == 0xee);
    if (status == cudaSuccess) {
        CHECK(cudaHostUnregister(shared));
    }

    // A file's pages that may only be read: for the device, too, and they keep their protection.
    char name[] = "/tmp/host_register_XXXXXX";
    const int file = mkstemp(name);
    EXPECT(file >= 0 && unlink(name) == 0);
    fill(shared, kBytes, 5);
    EXPECT(write(file, shared, kBytes) == (ssize_t)kBytes);
    unsigned char* weights = (unsigned char*)mmap(NULL, kBytes, PROT_READ, MAP_PRIVATE, file, 0);
    EXPECT(weights != MAP_FAILED);
    CHECK(cudaHostRegister(weights, kBytes, cudaHostRegisterReadOnly));
    unsigned char* copy = NULL;
    CHECK(cudaMalloc((void**)&copy, kBytes));
    CHECK(cudaMemcpyAsync(copy, weights, kBytes, cudaMemcpyHostToDevice, 0));
    CHECK(cudaMemcpyAsync(shared, copy, kBytes, cudaMemcpyDeviceToHost, 0));
    CHECK(cudaDeviceSynchronize());
    EXPECT(is_filled(shared, kBytes, 5) && is_filled(weights, kBytes, 5));
    CHECK(cudaHostUnregister(weights));
    EXPECT(is_filled(weights, kBytes, 5));
    const pid_t child = fork();
    if (child == 0) {
        ((volatile unsigned char*)weights)[0] = 1;  // Ends the child.
        _exit(0);
    }
    int how = 0;
    EXPECT(waitpid(child, &how, 0) == child);
    EXPECT(WIFSIGNALED(how));
    return pass("host_register");
}
