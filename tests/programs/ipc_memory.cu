// Trap: device memory of one process that another one opens: the same bytes for both, offsets
// inside a larger block, opened twice, closed twice, and handles that name nothing. The other
// process is this program again, started with its ends of two pipes.
#include <sys/wait.h>

#include "program.h"

enum { kWords = 3 << 18, kSmallWords = 300 };

struct Message {
    cudaIpcMemHandle_t large, small;
    unsigned seed;
};

__global__ void fill(unsigned* data, unsigned words, unsigned seed) {
    const unsigned step = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step) {
        data[i] = i * seed;
    }
}

__global__ void add(unsigned* data, unsigned words, unsigned value) {
    const unsigned step = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step) {
        data[i] += value;
    }
}

static unsigned g_back[kWords];

static void expect_on_device(const unsigned* data, unsigned words, unsigned seed, unsigned value) {
    CHECK(cudaMemcpy(g_back, data, words * sizeof(unsigned), cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < words; ++i) {
        EXPECT(g_back[i] == i * seed + value);
    }
}

static void write_all(int fd, const void* bytes, size_t count) {
    EXPECT(write(fd, bytes, count) == (ssize_t)count);
}

static void read_all(int fd, void* bytes, size_t count) {
    char* at = (char*)bytes;
    while (count != 0) {
        ssize_t got = read(fd, at, count);
        EXPECT(got > 0);
        at += got;
        count -= (size_t)got;
    }
}

/// Opens what comes, changes it, says so, and waits until the giver has seen it.
static int take(int in, int out) {
    Message message;
    read_all(in, &message, sizeof message);
    unsigned *large, *small, *again;
    CHECK(cudaFree(nullptr));
    CHECK(cudaIpcOpenMemHandle((void**)&large, message.large, cudaIpcMemLazyEnablePeerAccess));
    CHECK(cudaIpcOpenMemHandle((void**)&small, message.small, cudaIpcMemLazyEnablePeerAccess));
    CHECK(cudaIpcOpenMemHandle((void**)&again, message.small, cudaIpcMemLazyEnablePeerAccess));
    EXPECT(again == small && large != small);
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, large + 5));
    EXPECT(attributes.type == cudaMemoryTypeDevice);
    expect_on_device(large, kWords, message.seed, 0);
    expect_on_device(small, kSmallWords, message.seed + 1, 0);
    add<<<64, 256>>>(large, kWords, 17);
    add<<<1, 256>>>(small, kSmallWords, 18);
    CHECK(cudaDeviceSynchronize());
    // What is opened is not this process's to free, nor to give on.
    cudaIpcMemHandle_t other;
    EXPECT(cudaFree(large) != cudaSuccess);
    cudaGetLastError();
    EXPECT(cudaIpcGetMemHandle(&other, large) != cudaSuccess);
    cudaGetLastError();
    char word = 'd';
    write_all(out, &word, 1);
    read_all(in, &word, 1);
    CHECK(cudaIpcCloseMemHandle(small));
    expect_on_device(small, kSmallWords, message.seed + 1, 18);  // It was opened twice.
    CHECK(cudaIpcCloseMemHandle(small));
    EXPECT(cudaIpcCloseMemHandle(small) != cudaSuccess);
    cudaGetLastError();
    CHECK(cudaIpcCloseMemHandle(large));
    write_all(out, &word, 1);
    read_all(in, &word, 1);                       // The giver has freed the small block.
    if (getenv("GANTRY_TRANSPORT") != nullptr) {  // Natively nothing is promised then.
        EXPECT(cudaIpcOpenMemHandle((void**)&again, message.small,
                                    cudaIpcMemLazyEnablePeerAccess) != cudaSuccess);
        cudaGetLastError();
    }
    memset(&message.large, 0x5a, sizeof message.large);
    EXPECT(cudaIpcOpenMemHandle((void**)&again, message.large, cudaIpcMemLazyEnablePeerAccess) !=
           cudaSuccess);
    write_all(out, &word, 1);
    return 0;
}

/// The program again, with `in` and `out` for what take() reads and writes.
static pid_t start_taker(int* to, int* from) {
    int down[2], up[2];
    EXPECT(pipe(down) == 0 && pipe(up) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(down[1]);
        close(up[0]);
        char in[16], out[16];
        snprintf(in, sizeof in, "%d", down[0]);
        snprintf(out, sizeof out, "%d", up[1]);
        execl("/proc/self/exe", "ipc_memory", in, out, (char*)nullptr);
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    *to = down[1];
    *from = up[0];
    return child;
}

static void share_once(unsigned* large, unsigned seed) {
    int to, from, status = 0;
    char word = 0;
    pid_t child = start_taker(&to, &from);
    // Many small blocks share what the driver gives out: the handle is of one of them.
    unsigned *before, *small;
    CHECK(cudaMalloc((void**)&before, 4096));
    CHECK(cudaMalloc((void**)&small, kSmallWords * sizeof(unsigned)));
    fill<<<64, 256>>>(large, kWords, seed);
    fill<<<1, 256>>>(small, kSmallWords, seed + 1);
    CHECK(cudaMemset(before, 0x77, 4096));
    CHECK(cudaDeviceSynchronize());
    Message message;
    cudaIpcMemHandle_t again;
    CHECK(cudaIpcGetMemHandle(&message.large, large));
    CHECK(cudaIpcGetMemHandle(&message.small, small));
    CHECK(cudaIpcGetMemHandle(&again, large));
    EXPECT(memcmp(&again, &message.large, sizeof again) == 0);
    message.seed = seed;
    write_all(to, &message, sizeof message);
    read_all(from, &word, 1);
    if (getenv("PROGRAM_HOLDS") != nullptr) {
        midpoint();  // With the memory open: nothing can be moved now.
    }
    expect_on_device(large, kWords, seed, 17);
    expect_on_device(small, kSmallWords, seed + 1, 18);
    write_all(to, &word, 1);
    read_all(from, &word, 1);
    CHECK(cudaFree(small));
    CHECK(cudaFree(before));
    write_all(to, &word, 1);
    read_all(from, &word, 1);
    close(to);
    close(from);
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char** argv) {
    if (argc == 3) {
        return take(atoi(argv[1]), atoi(argv[2]));
    }
    unsigned* large = nullptr;
    CHECK(cudaMalloc((void**)&large, kWords * sizeof(unsigned)));
    share_once(large, 3);

    if (getenv("PROGRAM_HOLDS") == nullptr) {
        midpoint();  // It was shared; nobody has it open now.
    }

    expect_on_device(large, kWords, 3, 17);
    cudaIpcMemHandle_t handle;
    CHECK(cudaIpcGetMemHandle(&handle, large));
    // A process that comes now talks to the host that this one began on.
    if (getenv("PROGRAM_MOVES") == nullptr) {
        share_once(large, 5);
    }
    EXPECT(cudaIpcGetMemHandle(&handle, g_back) != cudaSuccess);
    cudaGetLastError();
    CHECK(cudaFree(large));
    return pass("ipc_memory");
}
