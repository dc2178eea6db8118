// Does what it is told in NVTX ranges, line by line, and says "ok" after each:
//
//   op NAME CPU_MS ROUNDS ORDER   in a range: computes so long, runs a kernel of so many rounds and
//                                 waits for it. ORDER: cpu (first), gpu (the kernel's launch first)
//   loop NAME FILE                in a range: short kernels, each waited for, until FILE is there
//   flood N                       N ranges, each of another name
//   strange                       names that are no names; ranges of a domain, of a registered
//                                 string and of a start and an end; ends of ranges that are not
//                                 open
//   spin ROUNDS                   prints instead of "ok" the time of a kernel and its wait, in ns
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include <unistd.h>

__global__ void work(unsigned* out, unsigned rounds) {
    unsigned value = threadIdx.x;
    for (unsigned i = 0; i < rounds; ++i) {
        value = value * 1664525u + 1013904223u;
    }
    out[threadIdx.x] = value;
}

// Launch records tell kernels apart by their shape, and know a mean of each.
static constexpr unsigned kShortRounds = 1000;
static constexpr int kShortThreads = 32;
static constexpr int kLongThreads = 64;
static constexpr int kBesideThreads = 96;
static unsigned* g_out;

static long long now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

static void compute(int ms) {
    const long long end = now_ns() + ms * 1'000'000LL;
    while (now_ns() < end) {
    }
}

static void wait() {
    if (cudaDeviceSynchronize() != cudaSuccess) {
        fprintf(stderr, "a kernel failed\n");
        exit(1);
    }
}

static void launch(unsigned rounds, bool is_beside) {
    const int threads = rounds <= kShortRounds ? kShortThreads : kLongThreads;
    work<<<1, is_beside ? kBesideThreads : threads>>>(g_out, rounds);
}

static void operation(const char* name, int cpu_ms, unsigned rounds, bool is_gpu_first) {
    nvtxRangePushA(name);
    if (!is_gpu_first) {
        compute(cpu_ms);
    }
    if (rounds != 0) {
        launch(rounds, is_gpu_first);
    }
    if (is_gpu_first) {
        compute(cpu_ms);
    }
    if (rounds != 0) {
        wait();
    }
    nvtxRangePop();
}

static void strange() {
    nvtxRangePushA("<script>alert(1)</script>\n\x1b[2J\xff");
    nvtxRangePop();
    nvtxRangePushA(std::string(5000, 'x').c_str());
    nvtxRangePop();
    nvtxRangePushA("");
    nvtxRangePop();
    nvtxDomainHandle_t domain = nvtxDomainCreateA("library");
    nvtxEventAttributes_t event{};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = nvtxDomainRegisterStringA(domain, "a registered name");
    nvtxDomainRangePushEx(domain, &event);
    nvtxDomainRangePop(domain);
    event.messageType = NVTX_MESSAGE_TYPE_UNICODE;
    event.message.unicode = L"wide \x263a";
    const nvtxRangeId_t range = nvtxDomainRangeStartEx(domain, &event);
    nvtxRangePushW(L"within");
    nvtxRangePop();
    nvtxDomainRangeEnd(domain, range);
    nvtxDomainRangeEnd(domain, range);
    nvtxRangePop();
    nvtxRangePop();
}

int main() {
    if (cudaMalloc(&g_out, kBesideThreads * sizeof(unsigned)) != cudaSuccess) {
        return 1;
    }
    launch(1, false);
    wait();
    printf("ready\n");
    fflush(stdout);
    char line[4096];
    while (fgets(line, sizeof line, stdin) != nullptr) {
        char name[4096] = "";
        char rest[4096] = "";
        int number = 0;
        unsigned rounds = 0;
        if (sscanf(line, "op %4000s %d %u %4000s", name, &number, &rounds, rest) == 4) {
            operation(name, number, rounds, strcmp(rest, "gpu") == 0);
        } else if (sscanf(line, "loop %4000s %4000s", name, rest) == 2) {
            nvtxRangePushA(name);
            while (access(rest, F_OK) != 0) {
                launch(kShortRounds, false);
                wait();
            }
            nvtxRangePop();
        } else if (sscanf(line, "flood %d", &number) == 1) {
            for (int i = 0; i < number; ++i) {
                nvtxRangePushA(("flood " + std::to_string(i)).c_str());
                nvtxRangePop();
            }
        } else if (sscanf(line, "spin %u", &rounds) == 1) {
            const long long begun = now_ns();
            launch(rounds, false);
            wait();
            printf("%lld\n", now_ns() - begun);
            fflush(stdout);
            continue;
        } else if (strncmp(line, "strange", 7) == 0) {
            strange();
        } else {
            fprintf(stderr, "what is %s", line);
            return 2;
        }
        printf("ok\n");
        fflush(stdout);
    }
    return 0;
}
