// Every call that the table refuses returns CUDA_ERROR_NOT_SUPPORTED through the shim, by each of
// its exported names, and is counted by its name in the report (GANTRY_REPORT). Run by run_program.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "proto/cuda/abi.h"
#include "proto/cuda/gen/op_table.h"

namespace {

using gantry::cuda::Op;

constexpr std::uint16_t kMostOps = 1024;

/// More zeros than any call has parameters: a refusal looks at none.
using Call = CUresult (*)(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*,
                          void*, void*);
CUresult with_zeros(void* function) {
    return reinterpret_cast<Call>(function)(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                            nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
}

std::map<std::string, int> counted(const std::string& path) {
    std::map<std::string, int> counts;
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        char name[128];
        int count = 0;
        if (std::sscanf(line.c_str(), "refused %127s %d", name, &count) == 2) {
            counts[name] = count;
        }
    }
    return counts;
}

}  // namespace

int main() {
    const std::string report = "refused_calls_report." + std::to_string(getpid());
    setenv("GANTRY_REPORT", report.c_str(), 1);
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const auto init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(driver, "cuInit"));
    const auto stop = reinterpret_cast<CUresult (*)()>(dlsym(driver, "cuProfilerStop"));
    if (init == nullptr || stop == nullptr || init(0) != CUDA_SUCCESS) {
        std::fprintf(stderr, "cuInit failed\n");
        return 1;
    }
    int wrong = 0;
    std::map<std::string, int> made;
    for (std::uint16_t number = 0; number < kMostOps; ++number) {
        const gantry::cuda::OpInfo& info = gantry::cuda::op_info(static_cast<Op>(number));
        if (info.op_class != gantry::cuda::OpClass::kRefused) {
            continue;
        }
        for (const char* twin : {"", "_ptsz", "_ptds"}) {
            const std::string symbol = std::string(info.name) + twin;
            void* function = dlsym(driver, symbol.c_str());
            if (function == nullptr) {
                continue;  // Which names are exported is another test's.
            }
            const CUresult result = with_zeros(function);
            if (result != CUDA_ERROR_NOT_SUPPORTED) {
                std::fprintf(stderr, "%s gave %d\n", symbol.c_str(), static_cast<int>(result));
                ++wrong;
            }
            ++made[info.name];
        }
    }
    stop();  // Writes the report.
    const std::string file = report + "." + std::to_string(getpid());
    const std::map<std::string, int> seen = counted(file);
    unlink(file.c_str());
    for (const auto& [name, count] : made) {
        const auto found = seen.find(name);
        if (found == seen.end() || found->second != count) {
            std::fprintf(stderr, "%s: called %d times, counted %d\n", name.c_str(), count,
                         found == seen.end() ? 0 : found->second);
            ++wrong;
        }
    }
    std::printf("%zu calls refused by name\n", made.size());
    std::fflush(nullptr);
    _exit(wrong == 0 && made.size() > 100 ? 0 : 1);  // An exit would write the report once more.
}
