// Switches for planted faults (tests/mutation/plant.py): compiled in front of every file of a build
// for `scripts/dev/mutate`, never of the product.
//
// Many faults are compiled into one program, each behind gantry_fault(number), and PLANTED_FAULT
// names the one that is on. PLANTED_FAULTS_REACHED names a file of kGantryFaults bytes: the byte of
// each number that is asked for becomes 1, in whatever process. Asking costs a load and a compare.
#pragma once

#ifdef __cplusplus
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

inline constexpr unsigned kGantryFaults = 65536;

struct GantryFaults {
    unsigned on;
    volatile unsigned char* reached;
};

inline GantryFaults gantry_read_faults() noexcept {
    GantryFaults faults{};
    if (const char* number = getenv("PLANTED_FAULT")) {
        faults.on = static_cast<unsigned>(atoi(number));
    }
    if (const char* path = getenv("PLANTED_FAULTS_REACHED")) {
        const int file = open(path, O_RDWR | O_CLOEXEC);
        if (file >= 0) {
            void* const bytes =
                mmap(nullptr, kGantryFaults, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            close(file);
            if (bytes != MAP_FAILED) {
                faults.reached = static_cast<volatile unsigned char*>(bytes);
            }
        }
    }
    return faults;
}

// Zero, that is off, until the initialisers have run.
inline GantryFaults gantry_faults = gantry_read_faults();

/// Is this fault on? Never where the compiler evaluates the code.
constexpr bool gantry_fault(unsigned number) noexcept {
    if (__builtin_is_constant_evaluated()) {
        return false;
    }
    if (gantry_faults.reached != nullptr) {
        gantry_faults.reached[number] = 1;
    }
    return gantry_faults.on == number;
}
#endif
