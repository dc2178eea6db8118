// A hostile kernel: each way to read or write memory, at addresses that are not the program's to
// touch: its own host memory and its driver's, the worker's if there is one, memory given back, and
// beyond the windows of shared and local memory. Each gets error 700, nothing is read or written.
// An error of that kind is the end of a process's CUDA, so each attempt is a process of its own.
#include <ctype.h>
#include <dirent.h>
#include <sys/wait.h>

#include "program.h"

enum Way {
    kLoad,
    kLoadGlobal,
    kLoadVector,
    kLoadVolatile,
    kCopyAsync,
    kStore,
    kStoreVector,
    kAtomic,
    kReduce,
    kWays
};
static const char* const kWayNames[kWays] = {"ld", "ld.global", "ld.v4", "ld.volatile", "cp.async",
                                             "st", "st.v4",     "atom",  "red"};

__device__ unsigned variable = 5;
__constant__ unsigned constant = 6;

__global__ void touch(int way, uint64_t at, unsigned* out) {
    __shared__ __align__(16) unsigned buffer[8];
    unsigned value = 0;
    unsigned more = 0;
    switch (way) {
        case kLoad: asm volatile("ld.u32 %0, [%1];" : "=r"(value) : "l"(at)); break;
        case kLoadGlobal: asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(at)); break;
        case kLoadVector:
            asm volatile("{ .reg .u32 %%c, %%d; ld.v4.u32 {%0, %1, %%c, %%d}, [%2]; }"
                         : "=r"(value), "=r"(more)
                         : "l"(at));
            break;
        case kLoadVolatile:
            asm volatile("ld.volatile.u32 %0, [%1];" : "=r"(value) : "l"(at));
            break;
        case kCopyAsync:
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.wait_all;"
                         :
                         : "r"((unsigned)__cvta_generic_to_shared(buffer)), "l"(at)
                         : "memory");
            value = buffer[0];
            break;
        case kStore: asm volatile("st.u32 [%0], %1;" : : "l"(at), "r"(0x41414141)); break;
        case kStoreVector:
            asm volatile("st.v4.u32 [%0], {%1, %1, %1, %1};" : : "l"(at), "r"(0x41414141));
            break;
        case kAtomic:
            asm volatile("atom.add.u32 %0, [%1], 1;" : "=r"(value) : "l"(at) : "memory");
            break;
        default: asm volatile("red.global.add.u32 [%0], 1;" : : "l"(at) : "memory");
    }
    out[0] = value;
    out[1] = more;
}

/// Generic addresses of shared (0) and local memory (1), moved on by an offset.
__global__ void beyond(int local, uint64_t offset, unsigned* out) {
    __shared__ unsigned shared[16];
    volatile unsigned own[16];
    shared[threadIdx.x % 16] = 3;
    own[threadIdx.x % 16] = 4;
    const uint64_t at = (uint64_t)(local ? (void*)own : (void*)shared) + offset;
    out[0] = *(volatile unsigned*)at;
}

/// Each block tells where its shared memory is, each thread where its local memory is; block 1 and
/// thread 1 then read there, where they find their own.
__global__ void swap_addresses(unsigned long long* place, unsigned* out) {
    __shared__ volatile unsigned shared;
    volatile unsigned own = 100 + threadIdx.x;
    shared = 200 + blockIdx.x;
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        place[0] = (unsigned long long)&own;
        place[1] = (unsigned long long)&shared;
        __threadfence();
        atomicExch(&place[2], 1ull);
    }
    while (atomicAdd(&place[2], 0ull) == 0) {
    }
    if (blockIdx.x == 1 && threadIdx.x == 1) {
        out[0] = *(volatile unsigned*)place[0];
        out[1] = *(volatile unsigned*)place[1];
    }
}

__global__ void sample(cudaTextureObject_t texture, unsigned* out) {
    out[0] = tex1Dfetch<unsigned>(texture, 1 << 20);  // In granules of its own.
}

static uint64_t first_mapping(const char* file, const char* name, const char* access) {
    FILE* maps = fopen(file, "r");
    uint64_t found = 0;
    char line[512];
    while (maps != NULL && found == 0 && fgets(line, sizeof line, maps) != NULL) {
        unsigned long long begin = 0;
        char got[8] = "";
        if (sscanf(line, "%llx-%*x %4s", &begin, got) == 2 && strncmp(got, access, 3) == 0 &&
            strstr(line, name) != NULL) {
            found = begin;
        }
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return found;
}

/// The newest process of that name; 0 if there is none.
static long newest_process(const char* wanted) {
    long newest = 0;
    DIR* all = opendir("/proc");
    struct dirent* entry;
    while ((entry = readdir(all)) != NULL) {
        char path[300];
        char name[64] = "";
        snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
        FILE* comm = isdigit(entry->d_name[0]) ? fopen(path, "r") : NULL;
        if (comm != NULL) {
            if (fgets(name, sizeof name, comm) != NULL &&
                strncmp(name, wanted, strlen(wanted)) == 0 && atol(entry->d_name) > newest) {
                newest = atol(entry->d_name);
            }
            fclose(comm);
        }
    }
    closedir(all);
    return newest;
}

static unsigned secret[64];

/// The address of that name; 0 where there is no such thing.
static uint64_t address_of(const char* name) {
    static unsigned on_stack_of_main;
    const long worker = newest_process("gantry-worker");
    char maps[64];
    snprintf(maps, sizeof maps, "/proc/%ld/maps", worker);
    if (strcmp(name, "worker.fixed") == 0)
        return 0x555555554000;
    if (strcmp(name, "worker.text") == 0)
        return first_mapping(maps, "gantry-worker", "r--");
    if (strcmp(name, "worker.heap") == 0)
        return first_mapping(maps, "[heap]", "rw-");
    if (strcmp(name, "worker.stack") == 0)
        return first_mapping(maps, "[stack]", "rw-");
    if (strcmp(name, "worker.driver") == 0)
        return first_mapping(maps, "libcuda-soft", "r-x");
    if (strcmp(name, "worker.driver_data") == 0)
        return first_mapping(maps, "libcuda-soft", "rw-");
    if (strcmp(name, "own.data") == 0)
        return (uint64_t)secret;
    if (strcmp(name, "own.stack") == 0)
        return (uint64_t)&on_stack_of_main & ~15ull;
    if (strcmp(name, "own.heap") == 0)
        return (uint64_t)memset(malloc(4096), 0xC7, 4096);
    if (strcmp(name, "own.text") == 0)
        return (uint64_t)&address_of & ~15ull;
    if (strcmp(name, "own.driver") == 0)
        return first_mapping("/proc/self/maps", "libcuda", "r-x");
    if (strcmp(name, "own.driver_data") == 0)
        return first_mapping("/proc/self/maps", "libcuda", "rw-");
    if (strcmp(name, "vdso") == 0)
        return first_mapping("/proc/self/maps", "[vdso]", "r-x");
    return strtoull(name, NULL, 16);
}

static unsigned* out;

static void expect_refusal(void) {
    EXPECT_STATUS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    for (int i = 0; i < 64; ++i) {
        EXPECT(out[i] == 0x11111111);
        EXPECT(secret[i] == 0xC7C7C7C7);
    }
}

static void attempt(const char* what, const char* name) {
    for (int way = 0; way < kWays; ++way) {
        if (strcmp(what, kWayNames[way]) == 0) {
            const uint64_t at = address_of(name);
            if (at == 0) {
                exit(77);
            }
            touch<<<1, 1>>>(way, at, out);
            expect_refusal();
        }
    }
    if (strcmp(what, "beyond.shared") == 0 || strcmp(what, "beyond.local") == 0) {
        beyond<<<1, 32>>>(strcmp(what, "beyond.local") == 0, strtoull(name, NULL, 16), out);
        expect_refusal();
    }
    if (strcmp(what, "freed") == 0) {
        void* memory = NULL;
        const size_t bytes = 8 << 20;
        if (strcmp(name, "device") == 0) {
            CHECK(cudaMalloc(&memory, bytes));
            CHECK(cudaFree(memory));
            CHECK(cudaDeviceSynchronize());  // A worker gives memory back once the device is idle.
        } else if (strcmp(name, "pinned") == 0) {
            CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped));
            CHECK(cudaFreeHost(memory));
        } else {
            EXPECT(posix_memalign(&memory, 4096, bytes) == 0);
            memset(memory, 0xC7, bytes);
            CHECK(cudaHostRegister(memory, bytes, cudaHostRegisterMapped));
            CHECK(cudaHostUnregister(memory));
        }
        touch<<<1, 1>>>(kLoad, (uint64_t)memory + (4 << 20), out);
        expect_refusal();
    }
    if (strcmp(what, "texture") == 0) {
        void* memory = NULL;
        CHECK(cudaMalloc(&memory, 8 << 20));
        cudaResourceDesc resource;
        memset(&resource, 0, sizeof resource);
        resource.resType = cudaResourceTypeLinear;
        resource.res.linear.devPtr = memory;
        resource.res.linear.desc = cudaCreateChannelDesc<unsigned>();
        resource.res.linear.sizeInBytes = 8 << 20;
        cudaTextureDesc description;
        memset(&description, 0, sizeof description);
        description.readMode = cudaReadModeElementType;
        cudaTextureObject_t texture = 0;
        CHECK(cudaCreateTextureObject(&texture, &resource, &description, NULL));
        CHECK(cudaFree(memory));
        CHECK(cudaDeviceSynchronize());
        sample<<<1, 1>>>(texture, out);
        expect_refusal();
    }
}

/// An array of 2^64 + 2^32 bytes is none of 4 GiB, whose texels would lie anywhere.
static void wrapped_array(void) {
    cudaArray_t array = NULL;
    const cudaChannelFormatDesc texel = cudaCreateChannelDesc<float4>();
    EXPECT(cudaMalloc3DArray(&array, &texel, make_cudaExtent(1 << 28, 6700417, 641)) !=
           cudaSuccess);
}

/// What a program may do goes on working.
static void legal(void) {
    unsigned* memory[5] = {};
    unsigned* registered = NULL;
    CHECK(cudaMalloc((void**)&memory[0], 4096));
    CHECK(cudaHostAlloc((void**)&memory[1], 4096, cudaHostAllocMapped));
    EXPECT(posix_memalign((void**)&registered, 4096, 8192) == 0);
    memset(registered, 0, 8192);
    CHECK(cudaHostRegister(registered, 8192, cudaHostRegisterMapped));
    CHECK(cudaHostGetDevicePointer((void**)&memory[2], registered, 0));
    CHECK(cudaGetSymbolAddress((void**)&memory[3], variable));
    CHECK(cudaMallocManaged((void**)&memory[4], 4096));
    for (int i = 0; i < 5; ++i) {
        for (int way = 0; way < kWays; ++way) {
            const bool vector = way == kLoadVector || way == kStoreVector;
            if (vector && i == 3) {
                continue;  // The variable is smaller.
            }
            touch<<<1, 1>>>(way, (uint64_t)memory[i], out);
            CHECK(cudaDeviceSynchronize());
        }
        touch<<<1, 1>>>(kLoad, (uint64_t)memory[i], out);
        CHECK(cudaDeviceSynchronize());
        EXPECT(out[0] == 0x41414143);
    }
    unsigned* at = NULL;
    CHECK(cudaGetSymbolAddress((void**)&at, constant));
    touch<<<1, 1>>>(kLoad, (uint64_t)at, out);
    CHECK(cudaDeviceSynchronize());
    EXPECT(out[0] == 6);
    for (int local = 0; local < 2; ++local) {
        beyond<<<2, 64>>>(local, 0, out);
        CHECK(cudaDeviceSynchronize());
    }
    unsigned long long* place = NULL;
    CHECK(cudaMalloc((void**)&place, 64));
    CHECK(cudaMemset(place, 0, 64));
    swap_addresses<<<2, 2>>>(place, out);
    CHECK(cudaDeviceSynchronize());
    EXPECT(out[0] == 101);
    EXPECT(out[1] == 201);
}

/// Runs one attempt in a process of its own; whether it was made.
static bool run(const char* what, const char* name) {
    const pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "kernel_reach", what, name, NULL);
        _exit(126);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        return false;
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "%s at %s: wait status 0x%x\n", what, name, status);
        exit(1);
    }
    return true;
}

int main(int argc, char** argv) {
    if (argc == 3) {
        memset(secret, 0xC7, sizeof secret);
        CHECK(cudaFree(0));
        CHECK(cudaHostAlloc((void**)&out, 256, cudaHostAllocMapped));
        memset(out, 0x11, 256);
        if (strcmp(argv[1], "legal") == 0) {
            legal();
        } else if (strcmp(argv[1], "array") == 0) {
            wrapped_array();
        } else {
            attempt(argv[1], argv[2]);
        }
        return 0;
    }
    EXPECT(run("legal", "all"));
    static const char* const kPlaces[] = {
        "worker.text",        "worker.heap",  "worker.stack",  "worker.driver",
        "worker.driver_data", "own.data",     "own.stack",     "own.heap",
        "own.text",           "own.driver",   "vdso",          "10",
        "own.driver_data",    "7ffffffff000", "1000500000000", "worker.fixed"};
    const int count = sizeof kPlaces / sizeof kPlaces[0];
    int made = 0;
    for (int i = 0; i < count; ++i) {
        made += run(kWayNames[i % kWays], kPlaces[i]) ? 1 : 0;
    }
    for (int way = 0; way < kWays; ++way) {  // The worker's, or as good as that.
        made += run(kWayNames[way], run("ld", "worker.heap") ? "worker.heap" : "own.data") ? 1 : 0;
    }
    EXPECT(made >= kWays + 10);
    static const char* const kOffsets[] = {"10000", "400000", "10000000", "ffffffffff000000"};
    for (int i = 0; i < 4; ++i) {
        EXPECT(run("beyond.shared", kOffsets[i]));
        EXPECT(run("beyond.local", kOffsets[i]));
    }
    EXPECT(run("freed", "device"));
    EXPECT(run("freed", "pinned"));
    EXPECT(run("freed", "registered"));
    EXPECT(run("texture", "freed"));
    EXPECT(run("array", "wrapped"));
    return pass("kernel_reach");
}
