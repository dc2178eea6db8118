// Trap: a copy and a memset of an executable graph change from allocated memory to a variable and
// to page-locked memory, and back. It all is one context's memory; a driver lets them.
#include "program.h"

enum { kWords = 1024, kBytes = kWords * 4 };

__device__ unsigned g_variable[kWords];

__global__ void fill(unsigned* words, unsigned value) { words[threadIdx.x] = value; }

/// Two of these at once give 1, one after the other 11.
__global__ void append(unsigned* word, unsigned digit, long long clocks) {
    const unsigned before = *(volatile unsigned*)word;
    const long long start = clock64();
    while (clock64() - start < clocks) {
    }
    *(volatile unsigned*)word = before * 10 + digit;
}

static unsigned *g_from, *g_to, *g_word, *g_pinned, *g_at;
static cudaGraphNode_t g_append, g_skipped, g_copy, g_memset;
static cudaStream_t g_streams[2];

static cudaKernelNodeParams append_params(unsigned* digit, long long* clocks) {
    static void* arguments[3];
    arguments[0] = &g_word;
    arguments[1] = digit;
    arguments[2] = clocks;
    cudaKernelNodeParams params = {};
    params.func = (void*)append;
    params.gridDim = dim3(1);
    params.blockDim = dim3(1);
    params.kernelParams = arguments;
    return params;
}

static cudaGraphExec_t make() {
    unsigned digit = 1;
    long long clocks = 0;
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaKernelNodeParams kernel = append_params(&digit, &clocks);
    CHECK(cudaGraphAddKernelNode(&g_append, graph, NULL, 0, &kernel));
    CHECK(cudaGraphAddKernelNode(&g_skipped, graph, &g_append, 1, &kernel));
    CHECK(cudaGraphAddMemcpyNode1D(&g_copy, graph, &g_skipped, 1, g_to, g_from, kBytes,
                                   cudaMemcpyDefault));
    cudaMemsetParams set = {};
    set.dst = g_from;
    set.elementSize = 4;
    set.width = 4;
    set.height = 1;
    set.value = 7;
    CHECK(cudaGraphAddMemsetNode(&g_memset, graph, &g_copy, 1, &set));
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

static void copy_from(cudaGraphExec_t exec, const void* source, cudaGraphNode_t copy = g_copy) {
    CHECK(cudaGraphExecMemcpyNodeSetParams1D(exec, copy, g_to, source, kBytes, cudaMemcpyDefault));
}

static void set_at(cudaGraphExec_t exec, void* target, unsigned value) {
    cudaMemsetParams set = {};
    set.dst = target;
    set.elementSize = 4;
    set.width = 4;
    set.height = 1;
    set.value = value;
    CHECK(cudaGraphExecMemsetNodeSetParams(exec, g_memset, &set));
}

/// Launches, and says what was copied and appended.
static void expect(cudaGraphExec_t exec, unsigned copied, unsigned appended) {
    static unsigned seen[kWords];
    CHECK(cudaMemset(g_word, 0, 4));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaGraphLaunch(exec, g_streams[0]));
    CHECK(cudaStreamSynchronize(g_streams[0]));
    CHECK(cudaMemcpy(seen, g_to, kBytes, cudaMemcpyDeviceToHost));
    EXPECT(seen[5] == copied && seen[kWords - 1] == copied);
    CHECK(cudaMemcpy(seen, g_word, 4, cudaMemcpyDeviceToHost));
    EXPECT(seen[0] == appended);
}

/// A copy in the body of a condition that always holds.
static cudaGraphExec_t make_conditional(cudaGraphNode_t* copy) {
    cudaGraph_t graph;
    cudaGraphConditionalHandle handle;
    cudaGraphNode_t node;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = cudaGraphCondTypeIf;
    params.conditional.size = 1;
    CHECK(cudaGraphAddNode(&node, graph, NULL, NULL, 0, &params));
    CHECK(cudaGraphAddMemcpyNode1D(copy, params.conditional.phGraph_out[0], NULL, 0, g_to, g_from,
                                   kBytes, cudaMemcpyDefault));
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

static void refill() {
    fill<<<1, kWords>>>(g_from, 100);
    fill<<<1, kWords>>>(g_at, 200);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < kWords; ++i) {
        g_pinned[i] = 300;
    }
}

static unsigned word_at(const void* address) {
    unsigned word;
    CHECK(cudaMemcpy(&word, address, 4, cudaMemcpyDefault));
    return word;
}

static void change_kinds(cudaGraphExec_t exec) {
    refill();
    copy_from(exec, g_at);  // Now a variable's.
    set_at(exec, g_from, 7);
    expect(exec, 200, 2);
    EXPECT(word_at(g_from) == 7);
    set_at(exec, g_at, 8);
    expect(exec, 200, 2);
    EXPECT(word_at(g_at) == 8);
    refill();
    copy_from(exec, g_pinned);
    set_at(exec, g_pinned, 9);
    expect(exec, 300, 2);
    EXPECT(g_pinned[3] == 9);
    copy_from(exec, g_from);
    set_at(exec, g_from, 7);
    expect(exec, 100, 2);
    EXPECT(word_at(g_from) == 7);
}

static void change_conditional(cudaGraphExec_t exec, cudaGraphNode_t copy) {
    const void* sources[] = {g_at, g_from, g_pinned, g_at};
    const unsigned wanted[] = {200, 100, 300, 200};
    refill();
    for (int i = 0; i < 4; ++i) {
        copy_from(exec, sources[i], copy);
        CHECK(cudaGraphLaunch(exec, g_streams[0]));
        CHECK(cudaStreamSynchronize(g_streams[0]));
        EXPECT(word_at(g_to) == wanted[i]);
    }
}

/// A launch comes after the launch before it, in whatever stream, and whatever changed between.
static void launch_in_order(cudaGraphExec_t exec) {
    unsigned digit = 2;
    long long clocks = 30 * 1000 * 1000;
    CHECK(cudaMemset(g_word, 0, 4));
    CHECK(cudaDeviceSynchronize());
    cudaKernelNodeParams kernel = append_params(&digit, &clocks);
    CHECK(cudaGraphExecKernelNodeSetParams(exec, g_append, &kernel));
    const void* sources[] = {g_at, g_from};
    for (int i = 0; i < 4; ++i) {
        CHECK(cudaGraphLaunch(exec, g_streams[i % 2]));
        copy_from(exec, sources[i % 2]);
    }
    CHECK(cudaDeviceSynchronize());
    EXPECT(word_at(g_word) == 2222);
    clocks = 0;
    kernel = append_params(&digit, &clocks);
    CHECK(cudaGraphExecKernelNodeSetParams(exec, g_append, &kernel));
}

int main() {
    CHECK(cudaMalloc((void**)&g_from, kBytes));
    CHECK(cudaMalloc((void**)&g_to, kBytes));
    CHECK(cudaMalloc((void**)&g_word, 4));
    CHECK(cudaMallocHost((void**)&g_pinned, kBytes));
    CHECK(cudaGetSymbolAddress((void**)&g_at, g_variable));
    for (int i = 0; i < 2; ++i) {
        CHECK(cudaStreamCreateWithFlags(&g_streams[i], cudaStreamNonBlocking));
    }
    const cudaGraphExec_t exec = make();
    cudaGraphNode_t copy;
    const cudaGraphExec_t conditional = make_conditional(&copy);
    refill();
    expect(exec, 100, 11);
    // These changes stay, however the others are made.
    unsigned digit = 2;
    long long clocks = 0;
    const cudaKernelNodeParams kernel = append_params(&digit, &clocks);
    CHECK(cudaGraphExecKernelNodeSetParams(exec, g_append, &kernel));
    CHECK(cudaGraphNodeSetEnabled(exec, g_skipped, 0));
    expect(exec, 100, 2);
    change_kinds(exec);
    launch_in_order(exec);
    change_conditional(conditional, copy);
    // It is moved with a variable and page-locked memory in the places of allocations.
    refill();
    copy_from(exec, g_at);
    set_at(exec, g_pinned, 9);
    midpoint();
    expect(exec, 200, 2);
    EXPECT(g_pinned[3] == 9);
    change_kinds(exec);
    launch_in_order(exec);
    CHECK(cudaMemset(g_to, 0, kBytes));
    CHECK(cudaDeviceSynchronize());  // The stream does not wait for the default one.
    CHECK(cudaGraphLaunch(conditional, g_streams[0]));
    CHECK(cudaStreamSynchronize(g_streams[0]));
    EXPECT(word_at(g_to) == 200);  // As it was changed before the move.
    change_conditional(conditional, copy);
    return pass("graph_kinds");
}
