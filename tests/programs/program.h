// Shared by the small CUDA programs: checks, digests and the midpoint at which the runner may
// take a snapshot, restore or move the process's GPU work. The programs are otherwise ordinary.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(call)                                                       \
    do {                                                                  \
        cudaError_t status_ = (call);                                     \
        if (status_ != cudaSuccess) {                                     \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                    cudaGetErrorName(status_));                           \
            exit(1);                                                      \
        }                                                                 \
    } while (0)

#define EXPECT(condition)                                                            \
    do {                                                                             \
        if (!(condition)) {                                                          \
            fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

#define EXPECT_STATUS(call, wanted)                                                              \
    do {                                                                                         \
        int got_ = (int)(call);                                                                  \
        if (got_ != (int)(wanted)) {                                                             \
            fprintf(stderr, "%s:%d: %s gave %d, expected %d\n", __FILE__, __LINE__, #call, got_, \
                    (int)(wanted));                                                              \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

/// 64-bit FNV-1a, for comparing runs.
static inline uint64_t digest(const void* data, size_t bytes) {
    uint64_t hash = 1469598103934665603ull;
    for (size_t i = 0; i < bytes; ++i) {
        hash = (hash ^ ((const unsigned char*)data)[i]) * 1099511628211ull;
    }
    return hash;
}

/// Where the runner may act: creates the file and waits (60 s at most) until the runner has created
/// the same name with ".go". Queued GPU work goes on meanwhile.
static inline void wait_for_runner(const char* path) {
    FILE* file = fopen(path, "w");
    EXPECT(file != NULL);
    fclose(file);
    char go[4096];
    snprintf(go, sizeof go, "%s.go", path);
    struct stat info;
    for (int tries = 0; stat(go, &info) != 0; ++tries) {
        if (tries > 60000) {
            fprintf(stderr, "midpoint: nobody created %s within 60 s\n", go);
            exit(1);
        }
        usleep(1000);
    }
}

#if CUDART_VERSION >= 12050 && !defined(PROGRAM_WITHOUT_RUNTIME)
/// What the driver under the worker says it holds, into the file (asking_driver.cc).
static inline void ask_driver(const char* path) {
    enum { kTextBytes = 1 << 20 };
    typedef int (*Memset)(unsigned long long, size_t, unsigned, size_t, size_t, void*);
    static void* memory = NULL;
    static char* text = NULL;
    void* ask = NULL;
    enum cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion("cuMemsetD2D32Async", &ask, 3020, cudaEnableDefault,
                                           &result));
    if (memory == NULL) {
        CHECK(cudaMalloc(&memory, kTextBytes));
        text = (char*)calloc(1, kTextBytes + 1);
    }
    EXPECT(((Memset)ask)((unsigned long long)(size_t)memory, kTextBytes, 0xa5c0ffeeu,
                         kTextBytes / 4, 1, NULL) == 0);
    CHECK(cudaMemcpy(text, memory, kTextBytes, cudaMemcpyDeviceToHost));
    FILE* file = fopen(path, "w");
    EXPECT(file != NULL && fputs(text, file) >= 0);
    fclose(file);
}
#endif

/// The place of which every program has one. PROGRAM_MIDPOINT names the file that the runner waits
/// for. It may want to act more than once (PROGRAM_MIDPOINTS; then .2 is added to the name), and to
/// know what the driver holds before, between and after (PROGRAM_ASKS; NAME.asked.0 and up).
static inline void midpoint(void) {
    const char* path = getenv("PROGRAM_MIDPOINT");
    if (path == NULL) {
        return;
    }
    const char* times = getenv("PROGRAM_MIDPOINTS");
    char name[4096];
    for (int i = 0; i <= (times == NULL ? 1 : atoi(times)); ++i) {
        if (i > 0) {
            snprintf(name, sizeof name, i == 1 ? "%s" : "%s.%d", path, i);
            wait_for_runner(name);
        }
#if CUDART_VERSION >= 12050 && !defined(PROGRAM_WITHOUT_RUNTIME)
        if (getenv("PROGRAM_ASKS") != NULL) {
            snprintf(name, sizeof name, "%s.asked.%d", path, i);
            ask_driver(name);
        }
#endif
    }
}

static inline int pass(const char* name) {
    printf("PASS %s\n", name);
    return 0;
}
