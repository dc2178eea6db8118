// Trap: memory nodes. A graph's allocation has one address for all launches; one that the graph
// does not free is the program's until it frees it, also when the graph is gone, and moves with its
// bytes.
#include "program.h"

enum { kWords = 5000 };
static const size_t kBytes = kWords * sizeof(unsigned);

__global__ void fill(unsigned* data, unsigned seed) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < kWords) {
        data[i] = i * seed;
    }
}

__global__ void add(unsigned* out, const unsigned* in, unsigned value) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < kWords) {
        out[i] = in[i] + value;
    }
}

static unsigned g_back[kWords];
static const dim3 kGrid((kWords + 255) / 256), kBlock(256);

static void expect_back(unsigned seed, unsigned value) {
    for (unsigned i = 0; i < kWords; ++i) {
        EXPECT(g_back[i] == i * seed + value);
    }
}

static void expect_on_device(const unsigned* data, unsigned seed) {
    memset(g_back, 0xee, sizeof g_back);
    CHECK(cudaMemcpy(g_back, data, kBytes, cudaMemcpyDeviceToHost));
    expect_back(seed, 0);
}

static cudaGraphNode_t add_alloc(cudaGraph_t graph, const cudaGraphNode_t* needs, unsigned** out) {
    cudaGraphNode_t node;
    cudaMemAllocNodeParams params = {};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location.type = cudaMemLocationTypeDevice;
    params.bytesize = kBytes;
    CHECK(cudaGraphAddMemAllocNode(&node, graph, needs, needs != NULL, &params));
    *out = (unsigned*)params.dptr;
    cudaGraphNodeType type;
    CHECK(cudaGraphNodeGetType(node, &type));
    EXPECT(type == cudaGraphNodeTypeMemAlloc);
    CHECK(cudaGraphMemAllocNodeGetParams(node, &params));
    EXPECT(params.dptr == *out && params.bytesize == kBytes);
    return node;
}

template <typename... Arguments>
static cudaGraphNode_t add_kernel(cudaGraph_t graph, cudaGraphNode_t needs, void* function,
                                  Arguments... arguments) {
    void* pointers[] = {&arguments...};
    cudaKernelNodeParams params = {};
    params.func = function;
    params.gridDim = kGrid;
    params.blockDim = kBlock;
    params.kernelParams = pointers;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, &needs, 1, &params));
    return node;
}

/// Allocates a and b, fills a with seed, b = a + 3, b -> g_back, frees both.
static cudaGraphExec_t build_closed(unsigned seed) {
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    unsigned *a, *b;
    cudaGraphNode_t last = add_alloc(graph, NULL, &a), back;
    last = add_alloc(graph, &last, &b);
    last = add_kernel(graph, last, (void*)fill, a, seed);
    last = add_kernel(graph, last, (void*)add, b, (const unsigned*)a, 3u);
    CHECK(cudaGraphAddMemcpyNode1D(&back, graph, &last, 1, g_back, b, kBytes,
                                   cudaMemcpyDeviceToHost));
    CHECK(cudaGraphAddMemFreeNode(&last, graph, &back, 1, a));
    CHECK(cudaGraphAddMemFreeNode(&last, graph, &last, 1, b));
    void* freed = NULL;
    CHECK(cudaGraphMemFreeNodeGetParams(last, &freed));
    EXPECT(freed == b);
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
}

/// Allocates and fills, and leaves the memory to the program.
static cudaGraphExec_t build_open(unsigned seed, unsigned** out) {
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t alloc = add_alloc(graph, NULL, out);
    add_kernel(graph, alloc, (void*)fill, *out, seed);
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
}

/// Two allocations one after the other, which share an address, and one beside them, which may not:
/// what the second holds at its end is left in g_back.
static cudaGraphExec_t build_again(unsigned seed) {
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    unsigned *a, *b, *beside;
    cudaGraphNode_t last = add_alloc(graph, NULL, &a), other, freed;
    last = add_kernel(graph, last, (void*)fill, a, seed);
    CHECK(cudaGraphAddMemFreeNode(&freed, graph, &last, 1, a));
    other = add_alloc(graph, &last, &beside);  // Not behind the free.
    last = add_alloc(graph, &freed, &b);
    EXPECT(beside != a && beside != b);
    if (getenv("GANTRY_TRANSPORT") != NULL) {  // NVIDIA's driver does so, the soft GPU alone not.
        EXPECT(b == a);
    }
    cudaGraphNode_t both[] = {last, other};
    CHECK(cudaGraphAddEmptyNode(&last, graph, both, 2));
    last = add_kernel(graph, last, (void*)fill, beside, 1u);
    last = add_kernel(graph, last, (void*)fill, b, seed + 1);
    CHECK(cudaGraphAddMemcpyNode1D(&last, graph, &last, 1, g_back, b, kBytes,
                                   cudaMemcpyDeviceToHost));
    CHECK(cudaGraphAddMemFreeNode(&other, graph, &last, 1, b));
    CHECK(cudaGraphAddMemFreeNode(&last, graph, &other, 1, beside));
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
}

static cudaGraphExec_t capture_closed(cudaStream_t stream, unsigned seed) {
    unsigned *a, *b;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMallocAsync((void**)&a, kBytes, stream));
    CHECK(cudaMallocAsync((void**)&b, kBytes, stream));
    fill<<<kGrid, kBlock, 0, stream>>>(a, seed);
    add<<<kGrid, kBlock, 0, stream>>>(b, a, 4);
    CHECK(cudaFreeAsync(a, stream));
    CHECK(cudaMemcpyAsync(g_back, b, kBytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaFreeAsync(b, stream));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, NULL, &nodes));
    EXPECT(nodes == 7);
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
}

static cudaGraphExec_t build_free(unsigned* memory) {
    cudaGraph_t graph;
    cudaGraphNode_t node;
    cudaGraphExec_t exec;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddMemFreeNode(&node, graph, NULL, 0, memory));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
}

static void run(cudaGraphExec_t exec, cudaStream_t stream) {
    memset(g_back, 0xee, sizeof g_back);
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
}

/// What graphs hold now. How long they keep what was freed is the driver's affair.
static unsigned long long used_by_graphs(void) {
    unsigned long long used = 0;
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
    return used;
}

int main() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    // Something that is freed but not given back yet when the capture begins.
    void* before;
    CHECK(cudaMallocAsync(&before, 3 * kBytes, stream));
    CHECK(cudaFreeAsync(before, stream));
    cudaGraphExec_t captured = capture_closed(stream, 11);
    cudaGraphExec_t closed = build_closed(5);
    unsigned *first, *second;
    cudaGraphExec_t open = build_open(7, &first);
    cudaGraphExec_t other = build_open(9, &second);
    cudaGraphExec_t free_second = build_free(second);
    cudaGraphExec_t again = build_again(21);
    EXPECT(first != second);
    run(closed, stream);
    expect_back(5, 3);
    run(captured, stream);
    expect_back(11, 4);
    run(again, stream);
    run(again, stream);
    expect_back(22, 0);

    // What a graph leaves is freed in the stream, by another graph, and at once.
    run(open, stream);
    expect_on_device(first, 7);
    EXPECT(used_by_graphs() >= kBytes);
    CHECK(cudaFreeAsync(first, stream));
    run(other, stream);
    run(free_second, stream);
    run(other, stream);
    expect_on_device(second, 9);
    run(free_second, stream);
    run(open, stream);
    CHECK(cudaFree(first));
    run(open, stream);

    midpoint();

    expect_on_device(first, 7);
    EXPECT(used_by_graphs() >= kBytes);
    run(closed, stream);
    expect_back(5, 3);
    run(captured, stream);
    expect_back(11, 4);
    run(again, stream);
    expect_back(22, 0);
    run(other, stream);
    expect_on_device(second, 9);
    run(free_second, stream);
    CHECK(cudaFree(first));
    run(open, stream);
    EXPECT(used_by_graphs() >= kBytes);

    // The memory outlives all graphs.
    cudaGraphExec_t all[] = {captured, closed, open, other, free_second, again};
    for (cudaGraphExec_t exec : all) {
        CHECK(cudaGraphExecDestroy(exec));
    }
    CHECK(cudaDeviceSynchronize());
    unsigned* more;
    CHECK(cudaMalloc((void**)&more, kBytes));
    CHECK(cudaMemset(more, 0xff, kBytes));
    expect_on_device(first, 7);
    CHECK(cudaFree(first));
    CHECK(cudaFree(more));
    return pass("graph_memory");
}
