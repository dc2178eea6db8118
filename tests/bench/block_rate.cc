// Rates of what a move does to device memory, on the driver that is named: fingerprints by the
// kernel, and copies to the host and back through page-locked staging, beside plain page-locked
// copies of the same bytes (what the link to the device gives). Lines "name value", GB/s, medians.
//   gantry-block-rate DRIVER [MiB of device memory] [runs]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "host-daemon/state/blocks/gpu_fingerprints.h"

namespace {

using namespace gantry;
using snapshot::kBlockBytes;

constexpr std::size_t kCopyBlocks = 4096;  // 256 MiB

void need(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) {
        std::fprintf(stderr, "%s: error %d\n", what, static_cast<int>(result));
        std::exit(1);
    }
}

template <typename T>
T need(Result<T> result, const char* what) {
    if (!result.ok()) {
        std::fprintf(stderr, "%s: %s\n", what, result.error().to_string().c_str());
        std::exit(1);
    }
    return std::move(result).value();
}

void measure(const char* name, std::size_t bytes, int runs, const std::function<void()>& job) {
    std::vector<double> rates;
    job();  // Once to warm up.
    for (int i = 0; i < runs; ++i) {
        const auto begun = std::chrono::steady_clock::now();
        job();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
        rates.push_back(static_cast<double>(bytes) / took.count() / 1e9);
    }
    std::sort(rates.begin(), rates.end());
    std::printf("%s %.3f\n", name, rates[rates.size() / 2]);
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: gantry-block-rate DRIVER [MiB] [runs]\n");
        return 2;
    }
    const std::size_t mib = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 16384;
    const int runs = argc > 3 ? std::atoi(argv[3]) : 5;
    const std::size_t blocks = std::max<std::size_t>(mib * 16, 1);
    const std::size_t copied = std::min(blocks, kCopyBlocks);
    auto library = need(driver::DriverLibrary::load(argv[1]), "loading the driver");
    auto device = need(worker::Device::open(*library, 0), "opening the device");
    auto fingerprints = need(state::GpuFingerprints::make(*device), "fingerprints");
    const driver::DriverApi& api = library->api();
    CUdeviceptr base = 0;
    void* host = nullptr;
    CUstream stream = nullptr;
    need(api.cuMemAlloc_v2(&base, (blocks + 1) * kBlockBytes), "device memory");
    need(api.cuMemHostAlloc(&host, copied * kBlockBytes, 0), "page-locked memory");
    need(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "a stream");
    const CUdeviceptr first = (base + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    need(api.cuMemsetD32_v2(first, 0x5eed1234, blocks * kBlockBytes / 4), "filling");
    need(api.cuCtxSynchronize(), "filling");
    std::vector<std::uint64_t> addresses(blocks);
    for (std::size_t i = 0; i < blocks; ++i) {
        addresses[i] = first + i * kBlockBytes;
    }
    std::vector<snapshot::Fingerprint> out(blocks);
    const snapshot::FingerprintKey key({1, 2});
    const std::span to(static_cast<std::byte*>(host), copied * kBlockBytes);
    const auto settle = [&](CUresult queued) {
        need(queued, "a copy");
        need(api.cuStreamSynchronize(stream), "a copy");
    };
    const auto done = [](Result<bool> result) {
        if (!need(std::move(result), "fingerprints")) {
            std::fprintf(stderr, "the device is busy\n");
            std::exit(1);
        }
    };
    measure("fingerprint", blocks * kBlockBytes, runs,
            [&] { done(fingerprints->look(key, addresses, out)); });
    measure("plain_out", to.size(), runs,
            [&] { settle(api.cuMemcpyDtoHAsync_v2(host, first, to.size(), stream)); });
    measure("staged_out", to.size(), runs, [&] {
        done(fingerprints->copy(key, std::span(addresses).first(copied), to, true, out));
    });
    measure("plain_in", to.size(), runs,
            [&] { settle(api.cuMemcpyHtoDAsync_v2(first, host, to.size(), stream)); });
    measure("staged_in", to.size(), runs, [&] {
        constexpr std::size_t kPiece = 32 * kBlockBytes;  // As batches come from another host.
        for (std::size_t at = 0; at < to.size(); at += kPiece) {
            need(api.cuMemcpyHtoDAsync_v2(first + at, &to[at], std::min(kPiece, to.size() - at),
                                          stream),
                 "a copy");
        }
        settle(CUDA_SUCCESS);
    });
    need(api.cuStreamDestroy_v2(stream), "the stream");
    need(api.cuMemFreeHost(host), "page-locked memory");
    need(api.cuMemFree_v2(base), "device memory");
    return 0;
}
