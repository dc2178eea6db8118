// This machine's memcpy rate, one thread: the yardstick of snapshot and restore. Two lines, "name
// value", bytes per second, medians of the runs:
//   warm   between two buffers whose pages are there already, what is commonly called memcpy
//   fresh  from such a buffer into shared memory that the system has yet to make, as a new file's
//          and a fresh worker's is: what no program that takes N new bytes can do without
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr std::size_t kBytes = 256U << 20;
constexpr int kRuns = 9;

double copy(char* to, const char* from) {
    const auto begun = std::chrono::steady_clock::now();
    std::memcpy(to, from, kBytes);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    return static_cast<double>(kBytes) / took.count();
}

double copy_to_fresh(const char* from) {
    const int file = memfd_create("gantry-memcpy-rate", MFD_CLOEXEC);
    void* made = MAP_FAILED;
    if (file >= 0 && ftruncate(file, kBytes) == 0) {
        made = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (made == MAP_FAILED) {
        std::perror("shared memory");
        std::exit(1);
    }
    const double rate = copy(static_cast<char*>(made), from);
    munmap(made, kBytes);
    close(file);
    return rate;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

}  // namespace

int main() {
    std::vector<char> from(kBytes, 1);
    std::vector<char> to(kBytes, 2);
    std::vector<double> warm;
    std::vector<double> fresh;
    for (int run = 0; run < kRuns; ++run) {
        from[static_cast<std::size_t>(run)] = static_cast<char>(run);
        warm.push_back(copy(to.data(), from.data()));
        if (to[kBytes / 2] != from[kBytes / 2]) {
            return 1;
        }
        fresh.push_back(copy_to_fresh(from.data()));
    }
    std::printf("warm %.0f\nfresh %.0f\n", median(warm), median(fresh));
    return 0;
}
