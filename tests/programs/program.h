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

/// Where the runner may act: if PROGRAM_MIDPOINT names a file, creates it and waits (60 s at most)
/// until the runner has created the same name with ".go". Queued GPU work goes on meanwhile.
static inline void midpoint(void) {
    const char* path = getenv("PROGRAM_MIDPOINT");
    if (path == NULL) {
        return;
    }
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

static inline int pass(const char* name) {
    printf("PASS %s\n", name);
    return 0;
}
