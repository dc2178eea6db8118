/* Runs in the test VM: counts in a shared-memory region (a file: the ivshmem BAR) and prints each
   count with what it found there, so that a test sees whether anything was lost or done twice.
   Usage: guest_counter FILE */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { kPageBytes = 4096, kIntervalNs = 50000000 };

int main(int argc, char** argv) {
    struct stat status;
    const struct timespec interval = {0, kIntervalNs};
    const int fd = argc > 1 ? open(argv[1], O_RDWR) : -1;
    if (fd < 0 || fstat(fd, &status) != 0 || status.st_size < kPageBytes) {
        printf("guest_counter: cannot use '%s'\n", argc > 1 ? argv[1] : "(no file)");
        return 1;
    }
    volatile uint64_t* words =
        mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED) {
        printf("guest_counter: cannot map %ld bytes\n", (long)status.st_size);
        return 1;
    }
    /* First and last page, so that the whole region is seen to move. */
    volatile uint64_t* last = words + (status.st_size - kPageBytes) / (long)sizeof *words;
    printf("region %ld bytes\n", (long)status.st_size);
    for (uint64_t i = 1;; ++i) {
        printf("count %lu first %lu last %lu\n", (unsigned long)i, (unsigned long)words[0],
               (unsigned long)last[0]);
        fflush(stdout);
        words[0] = i;
        last[0] = i;
        nanosleep(&interval, NULL);
    }
}
