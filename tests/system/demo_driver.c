/* demo_walk.cu where there is no nvcc: a plain C program on the CUDA driver API, whose kernels are
   PTX text (demo_driver.ptx). It keeps the same state on the GPU, makes the same calls in each step
   and prints the same digests, line for line; what nvcc's program has beside it is the CUDA runtime
   in the program and images that a compiler made.

   It declares the few functions of the driver that it uses, as cuda.h does, and finds them as any
   program may: in the libcuda.so.1 that the loader gives it. It knows nothing of Gantry. Usage and
   environment: as demo_walk.cu. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "demo_marks.h"

typedef uint64_t DevicePointer;
typedef void* Handle;

enum { kSegments = 9, kLists = 32, kNodes = 256, kThreads = 256, kBlocks = 512 };
enum { kNodeBytes = 24 };
/* Numbers of cuda.h: of device attributes, and flags without timing or order. */
enum { kAttributeSmCount = 16, kAttributeMajor = 75, kAttributeMinor = 76 };
enum { kStreamNonBlocking = 1, kEventDisableTiming = 2 };

struct Digests {
    uint64_t segment;
    uint64_t list;
};

/* What is used of the driver: name in the library, arguments; all return a CUresult. */
#define DRIVER_FUNCTIONS(F)                                                                \
    F(cuInit, (unsigned))                                                                  \
    F(cuGetErrorName, (int, const char**))                                                 \
    F(cuDeviceGet, (int*, int))                                                            \
    F(cuDeviceGetName, (char*, int, int))                                                  \
    F(cuDeviceGetAttribute, (int*, int, int))                                              \
    F(cuDevicePrimaryCtxRetain, (Handle*, int))                                            \
    F(cuCtxSetCurrent, (Handle))                                                           \
    F(cuModuleLoadData, (Handle*, const void*))                                            \
    F(cuModuleGetFunction, (Handle*, Handle, const char*))                                 \
    F(cuModuleGetGlobal_v2, (DevicePointer*, size_t*, Handle, const char*))                \
    F(cuMemAlloc_v2, (DevicePointer*, size_t))                                             \
    F(cuMemHostAlloc, (void**, size_t, unsigned))                                          \
    F(cuMemcpyHtoD_v2, (DevicePointer, const void*, size_t))                               \
    F(cuMemcpyDtoH_v2, (void*, DevicePointer, size_t))                                     \
    F(cuMemcpyHtoDAsync_v2, (DevicePointer, const void*, size_t, Handle))                  \
    F(cuMemcpyDtoHAsync_v2, (void*, DevicePointer, size_t, Handle))                        \
    F(cuMemsetD8_v2, (DevicePointer, unsigned char, size_t))                               \
    F(cuMemsetD8Async, (DevicePointer, unsigned char, size_t, Handle))                     \
    F(cuStreamCreate, (Handle*, unsigned))                                                 \
    F(cuStreamSynchronize, (Handle))                                                       \
    F(cuStreamWaitEvent, (Handle, Handle, unsigned))                                       \
    F(cuEventCreate, (Handle*, unsigned))                                                  \
    F(cuEventRecord, (Handle, Handle))                                                     \
    F(cuLaunchKernel, (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                       unsigned, Handle, void**, void**))

#define DECLARE(name, arguments) static int(*name) arguments;
DRIVER_FUNCTIONS(DECLARE)

extern const char g_ptx[];
__asm__(
    ".pushsection .rodata\n"
    "g_ptx: .incbin \"" DEMO_PTX_FILE
    "\"\n"
    ".byte 0\n"
    ".popsection\n");

static void check(int status, const char* call) {
    const char* name = NULL;
    if (status == 0) {
        return;
    }
    if (cuGetErrorName(status, &name) != 0) {
        name = "an unknown error";
    }
    printf("demo_driver: %s: %s\n", call, name);
    fflush(stdout);
    exit(1);
}
#define CHECK(call) check(call, #call)

static void load_driver(void) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        printf("demo_driver: %s\n", dlerror());
        exit(1);
    }
#define FIND(name, arguments)                                   \
    *(void**)&name = dlsym(library, #name);                     \
    if (name == NULL) {                                         \
        printf("demo_driver: libcuda.so.1 has no %s\n", #name); \
        exit(1);                                                \
    }
    DRIVER_FUNCTIONS(FIND)
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 27;
    return x;
}

static void launch(Handle kernel, unsigned blocks, unsigned threads, Handle stream,
                   void** arguments) {
    CHECK(cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL));
}

static Handle g_context;

static void* send_marks(void* where) {
    const int fd = demo_open_marks((const char*)where);
    Handle stream = NULL;
    DevicePointer word = 0;
    if (fd < 0) {
        printf("demo_driver: DEMO_MARKS=%s is not ADDRESS:PORT\n", (const char*)where);
        return NULL;
    }
    CHECK(cuCtxSetCurrent(g_context));
    CHECK(cuStreamCreate(&stream, kStreamNonBlocking));
    CHECK(cuMemAlloc_v2(&word, sizeof word));
    for (uint64_t number = 0;; ++number) {
        uint64_t back = 0;
        CHECK(cuMemcpyHtoDAsync_v2(word, &number, sizeof back, stream));
        CHECK(cuMemcpyDtoHAsync_v2(&back, word, sizeof back, stream));
        CHECK(cuStreamSynchronize(stream));
        if (back != number) {
            printf("demo_driver: wrote %lu to the GPU, read %lu\n", (unsigned long)number,
                   (unsigned long)back);
            exit(1);
        }
        demo_send_mark(fd, number);
        usleep(5000);
    }
}

struct Kernels {
    Handle fill, rewrite, digest_all, link_lists, walk_lists;
};

/* The module, and the globals through which its kernels find the segments. */
static struct Kernels load_kernels(const DevicePointer* segments) {
    struct Kernels kernels;
    Handle module = NULL;
    DevicePointer global = 0;
    size_t bytes = 0;
    CHECK(cuModuleLoadData(&module, g_ptx));
    CHECK(cuModuleGetFunction(&kernels.fill, module, "fill"));
    CHECK(cuModuleGetFunction(&kernels.rewrite, module, "rewrite"));
    CHECK(cuModuleGetFunction(&kernels.digest_all, module, "digest_all"));
    CHECK(cuModuleGetFunction(&kernels.link_lists, module, "link_lists"));
    CHECK(cuModuleGetFunction(&kernels.walk_lists, module, "walk_lists"));
    CHECK(cuModuleGetGlobal_v2(&global, &bytes, module, "g_segments"));
    if (bytes != kSegments * sizeof *segments) {
        printf("demo_driver: g_segments has %zu bytes\n", bytes);
        exit(1);
    }
    CHECK(cuMemcpyHtoD_v2(global, segments, bytes));
    return kernels;
}

static void open_device(void) {
    char name[256];
    int device = 0, major = 0, minor = 0, sm_count = 0;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDeviceGetName(name, sizeof name, device));
    CHECK(cuDeviceGetAttribute(&major, kAttributeMajor, device));
    CHECK(cuDeviceGetAttribute(&minor, kAttributeMinor, device));
    CHECK(cuDeviceGetAttribute(&sm_count, kAttributeSmCount, device));
    CHECK(cuDevicePrimaryCtxRetain(&g_context, device));
    CHECK(cuCtxSetCurrent(g_context));
    printf("demo_driver: %s, compute capability %d.%d, %d SMs\n", name, major, minor, sm_count);
    fflush(stdout);
}

int main(int argc, char** argv) {
    const int steps = argc > 1 ? atoi(argv[1]) : 0;
    const int mib = argc > 2 ? atoi(argv[2]) : 64;
    const int pause_ms = argc > 3 ? atoi(argv[3]) : 0;
    if (steps < 1 || mib < 1 || mib > 4096 || pause_ms < 0 || pause_ms > 60000) {
        printf("usage: demo_driver STEPS [SEGMENT_MIB [PAUSE_MS]]\n");
        return 2;
    }
    uint64_t words = (uint64_t)mib * 1024 * 1024 / sizeof(uint64_t);
    load_driver();
    open_device();

    DevicePointer segments[kSegments], nodes = 0, digests = 0, seed = 0;
    struct Digests* digests_out = NULL;
    uint64_t* seed_in = NULL;
    Handle main_stream, list_stream, seed_ready, lists_walked;
    for (int i = 0; i < kSegments; ++i) {
        CHECK(cuMemAlloc_v2(&segments[i], words * sizeof(uint64_t)));
    }
    struct Kernels kernels = load_kernels(segments);
    CHECK(cuMemAlloc_v2(&nodes, (size_t)kNodeBytes * kLists * kNodes));
    CHECK(cuMemAlloc_v2(&digests, sizeof *digests_out));
    CHECK(cuMemAlloc_v2(&seed, sizeof *seed_in));
    CHECK(cuMemHostAlloc((void**)&digests_out, sizeof *digests_out, 0));
    CHECK(cuMemHostAlloc((void**)&seed_in, sizeof *seed_in, 0));
    CHECK(cuStreamCreate(&main_stream, kStreamNonBlocking));
    CHECK(cuStreamCreate(&list_stream, kStreamNonBlocking));
    CHECK(cuEventCreate(&seed_ready, kEventDisableTiming));
    CHECK(cuEventCreate(&lists_walked, kEventDisableTiming));

    for (int i = 0; i < kSegments; ++i) {
        launch(kernels.fill, kBlocks, kThreads, main_stream, (void*[]){&i, &words});
    }
    launch(kernels.link_lists, 1, kLists, main_stream, (void*[]){&nodes});
    CHECK(cuStreamSynchronize(main_stream));
    const char* marks = getenv("DEMO_MARKS");
    const int stop_fd = marks != NULL ? demo_open_stop() : -1;
    pthread_t thread;
    if (marks != NULL &&
        (stop_fd < 0 || pthread_create(&thread, NULL, send_marks, (void*)marks) != 0)) {
        printf("demo_driver: cannot listen for the word to stop, or start the marks' thread\n");
        return 1;
    }
    printf("demo_driver: %d MiB of device memory, %d MiB rewritten a step\n", kSegments * mib, mib);
    fflush(stdout);

    uint64_t chain = 0;
    for (int step = 1; step <= steps; ++step) {
        int segment = step % kSegments;
        *seed_in = mix((uint64_t)step + chain); /* Each step depends on all before it. */
        CHECK(cuMemsetD8Async(digests, 0, sizeof *digests_out, main_stream));
        CHECK(cuMemcpyHtoDAsync_v2(seed, seed_in, sizeof *seed_in, main_stream));
        CHECK(cuEventRecord(seed_ready, main_stream));
        CHECK(cuStreamWaitEvent(list_stream, seed_ready, 0));
        launch(kernels.rewrite, kBlocks, kThreads, main_stream,
               (void*[]){&segment, &words, &seed, &digests});
        launch(kernels.walk_lists, 1, kLists, list_stream, (void*[]){&seed, &digests});
        CHECK(cuEventRecord(lists_walked, list_stream));
        CHECK(cuStreamWaitEvent(main_stream, lists_walked, 0));
        CHECK(cuMemcpyDtoHAsync_v2(digests_out, digests, sizeof *digests_out, main_stream));
        CHECK(cuStreamSynchronize(main_stream));
        chain = mix(chain + digests_out->segment) + digests_out->list;
        printf("step %d digest %016lx\n", step, (unsigned long)chain);
        fflush(stdout);
        if (demo_is_told_to_stop(stop_fd)) {
            break;
        }
        usleep((useconds_t)pause_ms * 1000);
    }

    CHECK(cuMemsetD8_v2(digests, 0, sizeof *digests_out));
    for (int i = 0; i < kSegments; ++i) {
        launch(kernels.digest_all, kBlocks, kThreads, NULL, (void*[]){&i, &words, &digests});
    }
    CHECK(cuMemcpyDtoH_v2(digests_out, digests, sizeof *digests_out));
    printf("all memory digest %016lx\n", (unsigned long)digests_out->segment);
    printf("demo_driver: done\n");
    fflush(stdout);
    _exit(0); /* The marks' thread is in the middle of a call. */
}
