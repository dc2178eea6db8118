// GANTRY_ASSERT: for programmer errors only. Always on, prints its operands, ends this process
// (a worker serves one guest process, so the blast radius is one tenant process). Input from a
// guest, a stream or a disk is never asserted on: it is validated and refused. Uses libc only.
#pragma once

#include <cstdio>
#include <cstdlib>

#define GANTRY_ASSERT(condition, ...)                                                              \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0)) {                                                   \
            std::fprintf(stderr, "%s:%d: assertion failed: %s: ", __FILE__, __LINE__, #condition); \
            std::fprintf(stderr, __VA_ARGS__);                                                     \
            std::fputc('\n', stderr);                                                              \
            std::abort();                                                                          \
        }                                                                                          \
    } while (0)
