// Trap: a program that was built with an older CUDA has that release's runtime library, which asks
// the driver in its own way. This one takes any: PROGRAM_RUNTIME names the library, by default the
// toolkit's own, and nothing of the runtime is linked. What nvcc would generate, the registration
// of a fatbin with a kernel and a variable, is done by hand.
#include <dlfcn.h>

#define PROGRAM_WITHOUT_RUNTIME
#include "program.h"

enum { kCount = 1000, kThreads = 256 };

static void* runtime;

static void* function(const char* name) {
    void* found = dlsym(runtime, name);
    if (found == NULL) {
        fprintf(stderr, "no %s: %s\n", name, dlerror());
        exit(1);
    }
    return found;
}

#define RUN(name, ...) EXPECT_STATUS(((__typeof__(&name))function(#name))(__VA_ARGS__), 0)

// Their addresses name the kernel and the variable to the runtime.
static char twice;
static int counter;

static void register_code(void) {
    static _Alignas(16) char fatbin[1 << 16];
    static struct {
        int magic, version;
        const void* data;
        void* file;
    } wrapper = {0x466243b1, 1, fatbin, NULL};
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof ".fatbin");
    EXPECT(length > 0);
    strcpy(path + length, ".fatbin");
    FILE* file = fopen(path, "rb");
    EXPECT(file != NULL);
    const size_t bytes = fread(fatbin, 1, sizeof fatbin, file);
    EXPECT(bytes != 0 && bytes < sizeof fatbin);
    fclose(file);

    void** handle = ((void** (*)(void*))function("__cudaRegisterFatBinary"))(&wrapper);
    EXPECT(handle != NULL);
    ((void (*)(void**, const char*, char*, const char*, int, void*, void*, void*, void*,
               int*))function("__cudaRegisterFunction"))(handle, &twice, "twice", "twice", -1, NULL,
                                                         NULL, NULL, NULL, NULL);
    ((void (*)(void**, char*, char*, const char*, int, size_t, int, int))function(
        "__cudaRegisterVar"))(handle, (char*)&counter, "counter", "counter", 0, sizeof counter, 0,
                              0);
    ((void (*)(void**))function("__cudaRegisterFatBinaryEnd"))(handle);
}

static void double_all(float* memory, cudaStream_t stream) {
    int count = kCount;
    void* arguments[] = {&memory, &count};
    const dim3 grid = {(kCount + kThreads - 1) / kThreads, 1, 1}, block = {kThreads, 1, 1};
    RUN(cudaLaunchKernel, &twice, grid, block, arguments, 0, stream);
}

static void expect_multiples(const float* memory, int of) {
    float got[kCount];
    RUN(cudaMemcpy, got, memory, sizeof got, cudaMemcpyDeviceToHost);
    for (int i = 0; i < kCount; ++i) {
        EXPECT(got[i] == (float)(i * of));
    }
}

static int variable(void) {
    int value = -1;
    RUN(cudaMemcpyFromSymbol, &value, &counter, sizeof value, 0, cudaMemcpyDeviceToHost);
    return value;
}

int main(void) {
    const char* wanted = getenv("PROGRAM_RUNTIME");
    char own[64];
    snprintf(own, sizeof own, "libcudart.so.%d", CUDART_VERSION / 1000);
    runtime = dlopen(wanted == NULL ? own : wanted, RTLD_NOW);
    if (runtime == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    register_code();
    int version = 0, devices = 0, occupancy = 0;
    RUN(cudaRuntimeGetVersion, &version);
    EXPECT(wanted != NULL || version / 1000 == CUDART_VERSION / 1000);
    RUN(cudaGetDeviceCount, &devices);
    EXPECT(devices >= 1);

    float initial[kCount], elapsed_ms = -1;
    for (int i = 0; i < kCount; ++i) {
        initial[i] = (float)i;
    }
    float *memory = NULL, *pinned = NULL;
    void *from_pool = NULL, *managed = NULL;
    cudaStream_t stream;
    cudaEvent_t before, after;
    RUN(cudaMalloc, (void**)&memory, sizeof initial);
    RUN(cudaMemcpy, memory, initial, sizeof initial, cudaMemcpyHostToDevice);
    double_all(memory, NULL);
    RUN(cudaDeviceSynchronize);
    expect_multiples(memory, 2);
    RUN(cudaStreamCreate, &stream);
    RUN(cudaEventCreate, &before);
    RUN(cudaEventCreate, &after);
    RUN(cudaEventRecord, before, stream);
    double_all(memory, stream);
    RUN(cudaEventRecord, after, stream);
    RUN(cudaEventSynchronize, after);
    expect_multiples(memory, 4);
    EXPECT(variable() == 5);
    RUN(cudaOccupancyMaxActiveBlocksPerMultiprocessor, &occupancy, &twice, kThreads, 0);
    EXPECT(occupancy >= 1);

    cudaGraph_t graph;
    cudaGraphExec_t exec;
    RUN(cudaStreamBeginCapture, stream, cudaStreamCaptureModeGlobal);
    double_all(memory, stream);
    RUN(cudaStreamEndCapture, stream, &graph);
    RUN(cudaGraphInstantiateWithFlags, &exec, graph, 0);
    RUN(cudaMallocHost, (void**)&pinned, sizeof initial);
    RUN(cudaMemcpyAsync, pinned, memory, sizeof initial, cudaMemcpyDeviceToHost, stream);
    RUN(cudaMallocAsync, &from_pool, 1 << 20, stream);
    RUN(cudaFreeAsync, from_pool, stream);
    RUN(cudaMallocManaged, &managed, 4096, cudaMemAttachGlobal);
    *(int*)managed = 7;
    const int changed = 6;
    RUN(cudaMemcpyToSymbol, &counter, &changed, sizeof changed, 0, cudaMemcpyHostToDevice);
    midpoint();
    RUN(cudaGraphLaunch, exec, stream);
    RUN(cudaStreamSynchronize, stream);
    expect_multiples(memory, 8);
    EXPECT(pinned[9] == 36 && *(int*)managed == 7 && variable() == 6);
    RUN(cudaEventElapsedTime, &elapsed_ms, before, after);
    EXPECT(elapsed_ms >= 0);
    RUN(cudaFree, managed);
    RUN(cudaFree, memory);
    RUN(cudaFreeHost, pinned);
    RUN(cudaGetLastError);
    RUN(cudaDeviceReset);
    fprintf(stderr, "runtime %d.%d\n", version / 1000, version % 1000 / 10);
    return pass("other_runtime");
}
