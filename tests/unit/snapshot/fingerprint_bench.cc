// Speed of the fingerprint per implementation, on memory larger than the caches. Built on demand:
// ninja fingerprint-bench.
#include <benchmark/benchmark.h>

#include <vector>

#include "proto/snapshot/fingerprint.h"

namespace {

using namespace gantry::snapshot;

void BM_Fingerprint(benchmark::State& state) {
    const auto kind = static_cast<FingerprintKind>(state.range(0));
    if (!fingerprint_kind_available(kind)) {
        state.SkipWithError("this CPU has no such instructions");
        return;
    }
    const auto blocks = static_cast<std::size_t>(state.range(1));
    const FingerprintKey key({1, 2});
    const std::vector<std::byte> memory(blocks * kBlockBytes, std::byte{3});
    for (auto _ : state) {
        for (std::size_t i = 0; i < blocks; ++i) {
            const BlockSpan block(memory.data() + i * kBlockBytes, kBlockBytes);
            benchmark::DoNotOptimize(fingerprint_with(kind, key, block));
        }
    }
    state.SetBytesProcessed(static_cast<std::int64_t>(
        static_cast<std::size_t>(state.iterations()) * memory.size()));
}
BENCHMARK(BM_Fingerprint)->ArgsProduct({{0, 1, 2}, {4, 4096}});

}  // namespace

BENCHMARK_MAIN();
