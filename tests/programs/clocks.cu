// Trap: a program measures with the device's clocks across the midpoint. Neither may go back, and
// clock64 ticks at one rate before and after.
#include "program.h"

struct Clocks {
    unsigned long long cycles;
    unsigned long long ns;
};

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
    EXPECT(end.ns > begin.ns && end.cycles > begin.cycles);
    return (double)(end.cycles - begin.cycles) / (double)(end.ns - begin.ns);
}

int main() {
    Clocks* memory = nullptr;
    CHECK(cudaMalloc((void**)&memory, sizeof(Clocks)));
    const double rate_before = rate(memory);
    const Clocks before = now(memory);
    midpoint();
    const Clocks after = now(memory);
    EXPECT(after.ns > before.ns);
    EXPECT(after.cycles > before.cycles);
    const double rate_after = rate(memory);
    // A real card changes its frequency, within a factor of a few.
    EXPECT(rate_after < 4 * rate_before && rate_before < 4 * rate_after);
    return pass("clocks");
}
