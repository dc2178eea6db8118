// Trap: a program measures with the device's clocks across the midpoint. Neither may go back, and
// clock64, which is each multiprocessor's own, ticks at one rate before and after.
#include "program.h"

struct Clocks {
    unsigned long long cycles;
    unsigned long long ns;
    unsigned multiprocessor;
};

static bool follows(const Clocks& later, const Clocks& earlier) {
    return later.ns > earlier.ns && (later.multiprocessor != earlier.multiprocessor ||
                                     later.cycles > earlier.cycles);
}

__global__ void read_clocks(Clocks* out) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(out->ns));
    asm volatile("mov.u32 %0, %smid;" : "=r"(out->multiprocessor));
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
    Clocks begin, end;
    do {
        begin = now(memory);
        usleep(100'000);
        end = now(memory);
    } while (end.multiprocessor != begin.multiprocessor);
    EXPECT(follows(end, begin));
    return (double)(end.cycles - begin.cycles) / (double)(end.ns - begin.ns);
}

int main() {
    Clocks* memory = nullptr;
    CHECK(cudaMalloc((void**)&memory, sizeof(Clocks)));
    const double rate_before = rate(memory);
    const Clocks before = now(memory);
    midpoint();
    const Clocks after = now(memory);
    EXPECT(follows(after, before));
    const double rate_after = rate(memory);
    // A real card changes its frequency, within a factor of a few.
    EXPECT(rate_after < 4 * rate_before && rate_before < 4 * rate_after);
    return pass("clocks");
}
