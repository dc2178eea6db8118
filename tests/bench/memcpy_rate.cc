// This machine's memcpy rate: the yardstick of snapshot and restore. Prints bytes per second, the
// median of the runs, of one thread copying between two buffers whose pages are there already.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

int main() {
    constexpr std::size_t kBytes = 256U << 20;
    constexpr int kRuns = 9;
    std::vector<char> from(kBytes, 1);
    std::vector<char> to(kBytes, 2);
    std::vector<double> rates;
    for (int run = 0; run < kRuns; ++run) {
        from[static_cast<std::size_t>(run)] = static_cast<char>(run);
        const auto begun = std::chrono::steady_clock::now();
        std::memcpy(to.data(), from.data(), kBytes);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
        rates.push_back(static_cast<double>(kBytes) / took.count());
        if (to[kBytes / 2] != from[kBytes / 2]) {
            return 1;
        }
    }
    std::sort(rates.begin(), rates.end());
    std::printf("%.0f\n", rates[kRuns / 2]);
    return 0;
}
