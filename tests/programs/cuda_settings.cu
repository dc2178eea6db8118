// Trap: CUDA_VISIBLE_DEVICES hides the device, CUDA_LAUNCH_BLOCKING makes launches wait and tell
// their kernel's error. What is expected here is what an H200 with NVIDIA's driver answers.
#include <sys/wait.h>
#include <string>

#include "program.h"

__global__ void spin(long long nanoseconds, unsigned* out) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while ((long long)(now - begin) < nanoseconds);
    *out += 1;
}

__global__ void write_to(unsigned* address) { *address = 1; }

static unsigned* counter() {
    unsigned* memory = nullptr;
    CHECK(cudaMalloc((void**)&memory, 4));
    CHECK(cudaMemset(memory, 0, 4));
    CHECK(cudaDeviceSynchronize());  // The streams that use it wait for no other.
    return memory;
}

static unsigned value_of(const unsigned* memory) {
    unsigned value = 0;
    CHECK(cudaMemcpy(&value, memory, 4, cudaMemcpyDeviceToHost));
    return value;
}

/// Is the kernel still running when its launch returns?
static int check_wait(bool blocks) {
    unsigned* memory = counter();
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    spin<<<1, 1, 0, stream>>>(0, memory);
    CHECK(cudaStreamSynchronize(stream));
    spin<<<1, 1, 0, stream>>>(300'000'000, memory);
    EXPECT_STATUS(cudaStreamQuery(stream), blocks ? cudaSuccess : cudaErrorNotReady);
    // A stream that is being captured takes launches without waiting.
    CHECK(cudaStreamSynchronize(stream));
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    spin<<<1, 1, 0, stream>>>(300'000'000, memory);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    EXPECT_STATUS(cudaStreamQuery(stream), blocks ? cudaSuccess : cudaErrorNotReady);
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(value_of(memory) == 3);
    return 0;
}

/// Does the launch itself tell that its kernel wrote where it may not?
static int check_error(bool blocks) {
    CHECK(cudaFree(nullptr));
    spin<<<1, 1>>>(500'000'000, counter());
    write_to<<<1, 1>>>((unsigned*)16);
    EXPECT_STATUS(cudaGetLastError(), blocks ? cudaErrorIllegalAddress : cudaSuccess);
    EXPECT_STATUS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    return 0;
}

static int check_devices(int status, int count) {
    int got = -1;
    EXPECT_STATUS(cudaGetDeviceCount(&got), status);
    if (status == cudaSuccess) {
        EXPECT(got == count);
    }
    return 0;
}

/// This program once more, in a process of its own with one setting.
static void child(const std::string& setting, const char* what, int first, int second = 0) {
    const std::size_t equals = setting.find('=');
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        unsetenv("PROGRAM_MIDPOINT");
        setenv(setting.substr(0, equals).c_str(), setting.substr(equals + 1).c_str(), 1);
        execl("/proc/self/exe", "cuda_settings", what, std::to_string(first).c_str(),
              std::to_string(second).c_str(), (char*)nullptr);
        _exit(127);
    }
    int status = 0;
    EXPECT(waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "failed with %s\n", setting.c_str());
        exit(1);
    }
}

static std::string uuid_text() {
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
        char digits[4];
        snprintf(digits, sizeof digits, "%02x", (unsigned char)properties.uuid.bytes[i]);
        text += std::string(i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + digits;
    }
    return text;
}

int main(int argc, char** argv) {
    if (argc == 4) {
        const int first = atoi(argv[2]), second = atoi(argv[3]);
        const std::string what = argv[1];
        return what == "devices" ? check_devices(first, second)
               : what == "wait"  ? check_wait(first != 0)
                                 : check_error(first != 0);
    }
    unsigned* memory = counter();
    spin<<<1, 1>>>(0, memory);
    const std::string uuid = uuid_text();
    midpoint();
    spin<<<1, 1>>>(0, memory);
    EXPECT(value_of(memory) == 2);

    const std::string visible = "CUDA_VISIBLE_DEVICES=";
    for (const char* shown : {"0", " 0", "00", "+0", "0x0", "0abc", "0,-1", "0,99", "0,abc"}) {
        child(visible + shown, "devices", cudaSuccess, 1);
    }
    for (const char* hidden : {"", "-1", "99", "abc", "-1,0", "99,0"}) {
        child(visible + hidden, "devices", cudaErrorNoDevice);
    }
    child(visible + "0,0", "devices", cudaErrorInvalidDevice);
    child(visible + uuid, "devices", cudaSuccess, 1);
    child(visible + uuid.substr(0, 10), "devices", cudaSuccess, 1);
    // Shorter, another GPU of the host may begin like it.
    child(visible + uuid.substr(0, 8), "devices", cudaSuccess, 1);
    child(visible + uuid + "f", "devices", cudaSuccess, 1);
    child(visible + uuid + ",0", "devices", cudaSuccess, 1);
    child(visible + "0," + uuid, "devices", cudaSuccess, 1);
    child(visible + "GPU-", "devices", cudaErrorNoDevice);
    child(visible + "GPU-" + (uuid[4] == '0' ? "1" : "0"), "devices", cudaErrorNoDevice);

    child("CUDA_LAUNCH_BLOCKING=2", "wait", 0);
    child("CUDA_LAUNCH_BLOCKING=1", "wait", 1);
    child("CUDA_LAUNCH_BLOCKING=0", "error", 0);
    child("CUDA_LAUNCH_BLOCKING=1", "error", 1);
    return pass("cuda_settings");
}
