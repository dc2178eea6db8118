// Ways to copy a little between page-locked memory and the device, and to learn that it is done:
// what the worker's way is chosen from (proto/decisions/0011-small-copies.md). Natively: a worker
// adds what the ring takes. Prints, by direction and size, the median us of each way, its range,
// and its part of the first one's.
//   copy_ways [ROUNDS]
#include <cuda.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/programs/program.h"

#define DRIVER(call)                                                                     \
    do {                                                                                 \
        const CUresult result_ = (call);                                                 \
        if (result_ != CUDA_SUCCESS) {                                                   \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)result_); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

static const size_t kMost = 256 << 10, kTable = 65536;
static const size_t kSizes[] = {4096, 16384, 65536, kMost};

/// One block copies, and says so in a word of the host's.
__global__ void copy_and_say(uint4* to, const uint4* from, unsigned count, volatile unsigned* word,
                             unsigned value) {
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
        to[i] = from[i];
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        *word = value;
    }
}

static struct {
    CUcontext context;
    CUstream stream;
    CUevent event;
    CUdeviceptr device, host, table, word_address;
    volatile unsigned* word;
    unsigned value;
    CUgraph graph, whole;
    CUgraphExec exec, whole_exec, kernel_exec;
    CUgraphNode node, whole_node, kernel_node;
    CUfunction kernel;
    char unlocked[kMost];
} g;

struct Copy {
    CUdeviceptr to, from;
    size_t bytes;
};

static void wait_for_word() {
    while (*g.word != g.value) {
    }
}

static void start(const Copy& copy) {
    DRIVER(cuMemcpyAsync(copy.to, copy.from, copy.bytes, g.stream));
}

static void write_word() {
    DRIVER(cuStreamWriteValue32(g.stream, g.word_address, ++g.value, 0));
    wait_for_word();
}

static void synchronised(const Copy& copy) {
    start(copy);
    DRIVER(cuStreamSynchronize(g.stream));
}

static void blocking(const Copy& copy) {
    if (copy.to == g.host) {
        DRIVER(cuMemcpyDtoH((void*)copy.to, copy.from, copy.bytes));
    } else {
        DRIVER(cuMemcpyHtoD(copy.to, (void*)copy.from, copy.bytes));
    }
}

static void queried(const Copy& copy) {
    start(copy);
    while (cuStreamQuery(g.stream) == CUDA_ERROR_NOT_READY) {
    }
}

static void event(const Copy& copy) {
    start(copy);
    DRIVER(cuEventRecord(g.event, g.stream));
    while (cuEventQuery(g.event) == CUDA_ERROR_NOT_READY) {
    }
}

static void word(const Copy& copy) {
    start(copy);
    write_word();
}

/// By way of memory that is not page-locked: the driver takes what goes to the device along in its
/// command, and what comes from there waits in its own pages.
static void unlocked(const Copy& copy) {
    if (copy.to == g.host) {
        DRIVER(cuMemcpyDtoHAsync(g.unlocked, copy.from, copy.bytes, g.stream));
        memcpy((void*)copy.to, g.unlocked, copy.bytes);
    } else {
        memcpy(g.unlocked, (void*)copy.from, copy.bytes);
        DRIVER(cuMemcpyHtoDAsync(copy.to, g.unlocked, copy.bytes, g.stream));
    }
}

static void unlocked_synchronised(const Copy& copy) {
    unlocked(copy);
    DRIVER(cuStreamSynchronize(g.stream));
}

static void unlocked_word(const Copy& copy) {
    unlocked(copy);
    write_word();
}

/// The word is copied from a table of all values behind the bytes.
static void copied_word(const Copy& copy) {
    start(copy);
    g.value = (g.value + 1) % kTable;
    DRIVER(cuMemcpyAsync(g.word_address, g.table + 4 * g.value, 4, g.stream));
    wait_for_word();
}

/// Nobody promises that the copies of a batch end in their order: not to be used, for the record.
static void batch(const Copy& copy) {
    g.value = (g.value + 1) % kTable;
    CUdeviceptr to[] = {copy.to, g.word_address};
    CUdeviceptr from[] = {copy.from, g.table + 4 * g.value};
    size_t bytes[] = {copy.bytes, 4}, first = 0;
    CUmemcpyAttributes attributes = {};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    DRIVER(cuMemcpyBatchAsync(to, from, bytes, 2, &attributes, &first, 1, g.stream));
    wait_for_word();
}

static CUDA_MEMCPY3D node_of(const Copy& copy) {
    CUDA_MEMCPY3D node = {};
    node.srcMemoryType = node.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    node.srcDevice = copy.from;
    node.dstDevice = copy.to;
    node.WidthInBytes = node.srcPitch = node.dstPitch = copy.bytes;
    node.Height = node.Depth = node.srcHeight = node.dstHeight = 1;
    return node;
}

static void graph(const Copy& copy) {
    const CUDA_MEMCPY3D node = node_of(copy);
    DRIVER(cuGraphExecMemcpyNodeSetParams(g.exec, g.node, &node, g.context));
    DRIVER(cuGraphLaunch(g.exec, g.stream));
    write_word();
}

/// The word is written by the graph itself, which is launched as it is.
static void whole_graph(const Copy&) {
    *g.word = 0;
    DRIVER(cuGraphLaunch(g.whole_exec, g.stream));
    while (*g.word == 0) {
    }
}

/// ... for other bytes each time.
static void whole_graph_anew(const Copy& copy) {
    static size_t turn = 0;
    const size_t away = (++turn % 2) * kMost;
    const CUDA_MEMCPY3D node = node_of({copy.to + away, copy.from + away, copy.bytes});
    DRIVER(cuGraphExecMemcpyNodeSetParams(g.whole_exec, g.whole_node, &node, g.context));
    whole_graph(copy);
}

static void kernel(const Copy& copy) {
    ++g.value;
    unsigned count = copy.bytes / 16;
    void* arguments[] = {(void*)&copy.to, (void*)&copy.from, &count, &g.word_address, &g.value};
    CUDA_KERNEL_NODE_PARAMS node = {};
    node.func = g.kernel;
    node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1;
    node.blockDimX = std::min(count, 1024u);
    node.kernelParams = arguments;
    DRIVER(cuGraphExecKernelNodeSetParams(g.kernel_exec, g.kernel_node, &node));
    DRIVER(cuGraphLaunch(g.kernel_exec, g.stream));
    wait_for_word();
}

struct Way {
    const char* name;
    void (*copy)(const Copy&);
};
static const Way kWays[] = {
    {"cuMemcpyAsync, cuStreamSynchronize", synchronised},
    {"cuMemcpyDtoH, cuMemcpyHtoD", blocking},
    {"... cuStreamQuery again and again", queried},
    {"... an event, queried", event},
    {"... a word that the stream writes", word},
    {"... a word copied behind it", copied_word},
    {"by unlocked memory, synchronised", unlocked_synchronised},
    {"by unlocked memory, and the word", unlocked_word},
    {"a batch of it and of a word", batch},
    {"a graph of it, set anew, and a word", graph},
    {"a graph of it and of the word, again", whole_graph},
    {"a graph of it and of the word, anew", whole_graph_anew},
    {"a kernel as a graph, with the word", kernel},
};
static const size_t kWayCount = sizeof(kWays) / sizeof(Way);

static void set_up() {
    void* page = nullptr;
    CHECK(cudaFree(nullptr));
    DRIVER(cuCtxGetCurrent(&g.context));
    DRIVER(cuStreamCreate(&g.stream, 0));
    DRIVER(cuEventCreate(&g.event, CU_EVENT_DISABLE_TIMING));
    DRIVER(cuMemAlloc(&g.device, 2 * kMost));
    DRIVER(cuMemHostAlloc((void**)&g.host, 2 * kMost, CU_MEMHOSTALLOC_DEVICEMAP));
    DRIVER(cuMemHostAlloc(&page, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    DRIVER(cuMemHostGetDevicePointer(&g.word_address, page, 0));
    g.word = (volatile unsigned*)page;
    std::vector<unsigned> values(kTable);
    for (size_t i = 0; i < kTable; ++i) {
        values[i] = i;
    }
    DRIVER(cuMemAlloc(&g.table, 4 * kTable));
    DRIVER(cuMemcpyHtoD(g.table, values.data(), 4 * kTable));
    cudaFunction_t function = nullptr;
    CHECK(cudaGetFuncBySymbol(&function, (const void*)copy_and_say));
    g.kernel = (CUfunction)function;
    CUgraph kernel_graph = nullptr;
    DRIVER(cuGraphCreate(&kernel_graph, 0));
    CUDA_KERNEL_NODE_PARAMS params = {};
    unsigned count = 0;
    void* arguments[] = {&g.device, &g.device, &count, &g.word_address, &g.value};
    params.func = g.kernel;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    DRIVER(cuGraphAddKernelNode(&g.kernel_node, kernel_graph, nullptr, 0, &params));
    DRIVER(cuGraphInstantiate(&g.kernel_exec, kernel_graph, 0));
}

/// A graph's copy keeps its direction.
static void make_graph(const Copy& copy) {
    const CUDA_MEMCPY3D node = node_of(copy);
    DRIVER(cuGraphCreate(&g.graph, 0));
    DRIVER(cuGraphAddMemcpyNode(&g.node, g.graph, nullptr, 0, &node, g.context));
    DRIVER(cuGraphInstantiate(&g.exec, g.graph, 0));
    DRIVER(cuGraphCreate(&g.whole, 0));
    DRIVER(cuGraphAddMemcpyNode(&g.whole_node, g.whole, nullptr, 0, &node, g.context));
    CUstreamBatchMemOpParams write = {};
    write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address = g.word_address;
    write.writeValue.value = 1;
    CUDA_BATCH_MEM_OP_NODE_PARAMS words = {g.context, 1, &write, 0};
    CUgraphNode behind = nullptr;
    DRIVER(cuGraphAddBatchMemOpNode(&behind, g.whole, &g.whole_node, 1, &words));
    DRIVER(cuGraphInstantiate(&g.whole_exec, g.whole, 0));
}

static double us_of(void (*way)(const Copy&), const Copy& copy) {
    using namespace std::chrono;
    const int kCopies = 60, kWarm = 5;
    *g.word = g.value = 0;
    for (int i = 0; i < kWarm; ++i) {
        way(copy);
    }
    const auto begin = steady_clock::now();
    for (int i = 0; i < kCopies; ++i) {
        way(copy);
    }
    const double us = duration<double, std::micro>(steady_clock::now() - begin).count();
    DRIVER(cuStreamSynchronize(g.stream));
    return us / kCopies;
}

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 31;
    set_up();
    for (const bool to_host : {true, false}) {
        for (const size_t bytes : kSizes) {
            const Copy copy = {to_host ? g.host : g.device, to_host ? g.device : g.host, bytes};
            make_graph(copy);
            std::vector<double> us[kWayCount];
            for (int round = 0; round < rounds; ++round) {
                for (size_t way = 0; way < kWayCount; ++way) {
                    us[way].push_back(us_of(kWays[way].copy, copy));
                }
            }
            printf("%zu KiB %s the device\n", bytes >> 10, to_host ? "from" : "to");
            for (size_t way = 0; way < kWayCount; ++way) {
                std::sort(us[way].begin(), us[way].end());
                const double median = us[way][rounds / 2];
                printf("  %-38s %6.2f us (%.2f to %.2f)  %.3f\n", kWays[way].name, median,
                       us[way].front(), us[way].back(), median / us[0][rounds / 2]);
            }
            DRIVER(cuGraphExecDestroy(g.exec));
            DRIVER(cuGraphDestroy(g.graph));
            DRIVER(cuGraphExecDestroy(g.whole_exec));
            DRIVER(cuGraphDestroy(g.whole));
        }
    }
    return 0;
}
