// gantry-ptx-bench: runs kernels with known answers on the engine and prints G thread
// instructions per second, in all and per core. Without arguments it runs the built-in PTX
// texts; with FILE.ptx KERNEL it links that text only (a check that it is accepted).
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "host-daemon/softgpu/engine/engine.h"
#include "ptx_bench_kernels.h"

namespace {

using namespace gantry;
using namespace gantry::softgpu;

/// What va() has named: all that the kernels may touch.
Reach& lent() {
    static Reach reach;
    return reach;
}

class QuietServices : public Services {
public:
    void print(std::string_view text) override { std::fwrite(text.data(), 1, text.size(), stdout); }
    void assertion_failed(std::string_view text) override {
        std::fwrite(text.data(), 1, text.size(), stderr);
    }
    std::uint64_t heap_allocate(std::uint64_t) override { return 0; }
    void heap_free(std::uint64_t) override {}
    [[nodiscard]] const Reach& reach() const override { return lent(); }
};

struct Arguments {
    std::vector<std::byte> bytes;
    template <typename T>
    Arguments& add(T value) {
        const std::size_t at = (bytes.size() + sizeof(T) - 1) / sizeof(T) * sizeof(T);
        bytes.resize(at + sizeof(T));
        std::memcpy(&bytes[at], &value, sizeof(T));
        return *this;
    }
};

struct Case {
    const char* name;
    Dim3 grid;
    Dim3 block;
    Arguments arguments;
    int launches = 1;
};

double cpu_seconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <typename T>
std::uint64_t va(std::vector<T>& data) {
    const auto address = reinterpret_cast<std::uint64_t>(data.data());
    lent().add(address, data.size() * sizeof(T));
    return address;
}

bool run_case(const Program& program, const Case& item) {
    const auto kernel = program.find_kernel(item.name);
    if (!kernel) {
        std::fprintf(stderr, "no kernel '%s'\n", item.name);
        return false;
    }
    QuietServices services;
    LaunchConfig config;
    config.grid = item.grid;
    config.block = item.block;
    config.params = item.arguments.bytes;
    double best = 1e30;
    double best_cpu = 1e30;
    std::uint64_t instructions = 0;
    for (int repeat = 0; repeat < 5; ++repeat) {
        const auto begin = std::chrono::steady_clock::now();
        const double cpu_begin = cpu_seconds();
        instructions = 0;
        for (int i = 0; i < item.launches; ++i) {
            const LaunchStatus status = run(program, *kernel, config, DeviceProfile{}, services);
            if (!status.ok()) {
                std::fprintf(stderr, "%s: %s\n", item.name, status.text.c_str());
                return false;
            }
            instructions += status.thread_instructions;
        }
        best = std::min(
            best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        best_cpu = std::min(best_cpu, cpu_seconds() - cpu_begin);
    }
    // Seconds of CPU time are what a core needs, whatever else the machine is doing.
    std::printf("%-12s %8.1f M thread instructions %9.2f ms %6.2f G/s %6.2f G/s per core\n",
                item.name, static_cast<double>(instructions) / 1e6, best * 1e3,
                static_cast<double>(instructions) / best / 1e9,
                static_cast<double>(instructions) / best_cpu / 1e9);
    return true;
}

bool check(const char* name, bool right) {
    if (!right) {
        std::fprintf(stderr, "%s: WRONG RESULT\n", name);
    }
    return right;
}

bool bench_saxpy(const Program& program) {
    const std::uint32_t n = 1U << 22;
    std::vector<float> x(n, 1.5F);
    std::vector<float> y(n, 2.0F);
    Case item{"saxpy", {256, 1, 1}, {256, 1, 1}, {}, 1};
    item.arguments.add(va(x)).add(va(y)).add(0.0F).add(n);
    return run_case(program, item) && check("saxpy", y[n - 1] == 2.0F);
}

bool bench_sgemm(const Program& program) {
    const std::uint32_t n = 256;
    std::vector<float> a(n * n);
    std::vector<float> b(n * n);
    std::vector<float> c(n * n);
    for (std::uint32_t i = 0; i < n * n; ++i) {
        a[i] = static_cast<float>(i % 7);
        b[i] = static_cast<float>(i % 5);
    }
    Case item{"sgemm", {n / 16, n / 16, 1}, {16, 16, 1}, {}, 1};
    item.arguments.add(va(a)).add(va(b)).add(va(c)).add(n);
    if (!run_case(program, item)) {
        return false;
    }
    float expected = 0;
    for (std::uint32_t k = 0; k < n; ++k) {
        expected = std::fma(a[3 * n + k], b[k * n + 5], expected);
    }
    return check("sgemm", c[3 * n + 5] == expected);
}

bool bench_reduce(const Program& program) {
    const std::uint32_t n = 1U << 22;
    std::vector<float> data(n, 1.0F);
    std::vector<float> sums(64);
    Case item{"reduce", {64, 1, 1}, {256, 1, 1}, {}, 1};
    item.arguments.add(va(data)).add(va(sums)).add(n);
    if (!run_case(program, item)) {
        return false;
    }
    float total = 0;
    for (const float sum : sums) {
        total += sum;
    }
    return check("reduce", total == static_cast<float>(n));
}

bool bench_nbody(const Program& program) {
    const std::uint32_t n = 4096;
    std::vector<float> bodies(4 * n);
    std::vector<float> forces(4 * n);
    for (std::uint32_t i = 0; i < 4 * n; ++i) {
        bodies[i] = static_cast<float>(i % 97) / 97.0F;
    }
    Case item{"nbody", {n / 256, 1, 1}, {256, 1, 1}, {}, 1};
    item.arguments.add(va(bodies)).add(va(forces)).add(n);
    return run_case(program, item) && check("nbody", std::isfinite(forces[0]) && forces[0] != 0);
}

bool bench_divergent(const Program& program) {
    const std::uint32_t width = 512;
    std::vector<std::uint32_t> image(width * width);
    Case item{"mandelbrot", {width / 16, width / 16, 1}, {16, 16, 1}, {}, 1};
    item.arguments.add(va(image)).add(width).add(256U);
    return run_case(program, item) && check("mandelbrot", image[0] > 0);
}

int link_file(const char* path) {
    std::ifstream file(path);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const PtxSource source{text, path};
    const auto begin = std::chrono::steady_clock::now();
    LinkOptions options;
    options.unsupported = UnsupportedPolicy::kRefuseKernel;
    auto program = Program::link({&source, 1}, options);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!program.ok()) {
        std::printf("%s: %s\n", path, program.error().to_string().c_str());
        return 1;
    }
    for (const Refusal& refusal : (*program)->refusals()) {
        std::printf("refused: %s\n", refusal.text.c_str());
    }
    std::printf("%s: %zu kernels, %zu globals, linked in %.1f ms\n", path,
                (*program)->kernels().size(), (*program)->globals().size(), seconds * 1e3);
    return (*program)->refusals().empty() ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) {
        int worst = 0;
        for (int i = 1; i < argc; ++i) {
            worst = std::max(worst, link_file(argv[i]));
        }
        return worst;
    }
    const PtxSource source{kBenchKernels, "bench"};
    auto program = Program::link({&source, 1});
    if (!program.ok()) {
        std::fprintf(stderr, "%s\n", program.error().to_string().c_str());
        return 1;
    }
    const Program& linked = **program;
    const bool good = bench_saxpy(linked) && bench_sgemm(linked) && bench_reduce(linked) &&
                      bench_nbody(linked) && bench_divergent(linked);
    return good ? 0 : 1;
}
