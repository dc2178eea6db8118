// Trap: a program measures with the device's clocks across the midpoint. Neither may go back, and
// the soft GPU's clock64 ticks at one rate before and after. An H200's was seen to begin anew
// between two launches of one process, when other processes had the card in between.
#include "program.h"

struct Clocks {
    unsigned long long cycles;
    unsigned long long ns;
};

static bool counts_on = true;  ///< clock64 does, whatever others do.

static bool follows(const Clocks& later, const Clocks& earlier) {
    return later.ns > earlier.ns && (!counts_on || later.cycles > earlier.cycles);
}

__global__ void read_clocks(Clocks* out) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(out->ns));
    out->cycles = clock64();
}

static Clocks now(Clocks* memory) {
    Clocks clocks;
    read_clocks<<<1, 1>>>(memory);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(&clocks, memory, sizeof clocks, cudaMemcpyDeviceToHost));
    return clocks;
}

/// Cycles per nanosecond over a tenth of a second.
static double rate(Clocks* memory) {
    const Clocks begin = now(memory);
    usleep(100'000);
    const Clocks end = now(memory);
    EXPECT(follows(end, begin));
    return (double)(end.cycles - begin.cycles) / (double)(end.ns - begin.ns);
}

int main() {
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    counts_on = strstr(properties.name, "Soft GPU") != nullptr;
    Clocks* memory = nullptr;
    CHECK(cudaMalloc((void**)&memory, sizeof(Clocks)));
    const double rate_before = rate(memory);
    const Clocks before = now(memory);
    midpoint();
    const Clocks after = now(memory);
    EXPECT(follows(after, before));
    const double rate_after = rate(memory);
    EXPECT(!counts_on || (rate_after < 4 * rate_before && rate_before < 4 * rate_after));
    return pass("clocks");
}
