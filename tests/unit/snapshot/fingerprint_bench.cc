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
    const auto at_a_time = static_cast<std::size_t>(state.range(2));
    // As device memory is: blocks begin with a page.
    const std::vector<std::byte> memory((blocks + 1) * kBlockBytes, std::byte{3});
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    std::vector<const std::byte*> at;
    for (std::size_t i = 0; i < blocks; ++i) {
        at.push_back(memory.data() + (kBlockBytes - begin % kBlockBytes) + i * kBlockBytes);
    }
    std::vector<Fingerprint> fingerprints(blocks);
    for (auto _ : state) {
        for (std::size_t i = 0; i < blocks; i += at_a_time) {
            fingerprints_with(kind, key, std::span(at).subspan(i, at_a_time),
                              std::span(fingerprints).subspan(i, at_a_time));
        }
        benchmark::DoNotOptimize(fingerprints.data());
    }
    state.SetBytesProcessed(static_cast<std::int64_t>(static_cast<std::size_t>(state.iterations()) *
                                                      blocks * kBlockBytes));
}
BENCHMARK(BM_Fingerprint)
    ->ArgsProduct({{0, 1, 2}, {4, 4096}, {1, 2}})
    ->ArgNames({"kind", "blocks", "at a time"});

}  // namespace

BENCHMARK_MAIN();
