// Switches for planted faults (tests/mutation/plant.py): compiled in front of every file of a build
// for `scripts/dev/mutate`, never of the product.
//
// Many faults are compiled into one program, each behind gantry_fault(number). The file
// /dev/shm/planted_fault has the number of the one that is on: a file, since a worker gets nothing
// of gantryd's environment. /dev/shm/planted_faults_reached, where it is, has kGantryFaults bytes:
// the byte of each number that is asked for becomes 1, in whatever process. Asking costs a load and
// a compare.
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
    const int number = open("/dev/shm/planted_fault", O_RDONLY | O_CLOEXEC);
    char digits[16] = {};
    if (number >= 0) {
        if (read(number, digits, sizeof(digits) - 1) > 0) {
            faults.on = static_cast<unsigned>(atoi(digits));
        }
        close(number);
    }
    const int file = open("/dev/shm/planted_faults_reached", O_RDWR | O_CLOEXEC);
    if (file >= 0) {
        void* const bytes =
            mmap(nullptr, kGantryFaults, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (bytes != MAP_FAILED) {
            faults.reached = static_cast<volatile unsigned char*>(bytes);
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
