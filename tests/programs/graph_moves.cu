// Trap: what is in an executable graph after a move, however it came about: nodes added one by one
// or captured, child graphs, every kind of node, nodes set, disabled and updated since, graphs that
// are gone, pinned memory at the other end of a copy.
#include "program.h"

enum { kWords = 64 };

__global__ void scale(unsigned* data, unsigned factor, unsigned add) {
    data[threadIdx.x] = data[threadIdx.x] * factor + add;
}

static unsigned* g_data;
static unsigned* g_pinned;
static int g_calls;

static void CUDART_CB called(void* user) { g_calls += *(int*)user; }

static unsigned first_word(void) {
    unsigned word = 0;
    CHECK(cudaMemcpy(&word, g_data, sizeof word, cudaMemcpyDeviceToHost));
    return word;
}

static void run(cudaGraphExec_t exec, cudaStream_t stream) {
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
}

static cudaKernelNodeParams scale_params(void** arguments) {
    cudaKernelNodeParams params = {};
    params.func = (void*)scale;
    params.gridDim = dim3(1);
    params.blockDim = dim3(kWords);
    params.kernelParams = arguments;
    return params;
}

/// memset 1 -> child graph (x3+1) -> kernel (x2+5) -> copy to pinned -> host function -> event.
static cudaGraph_t build(cudaGraphNode_t* kernel, cudaGraphNode_t* host, cudaEvent_t event,
                         int* amount) {
    cudaGraph_t graph, child;
    cudaGraphNode_t set, inner, nested, copy, record, empty;
    unsigned three = 3, one = 1, two = 2, five = 5;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphCreate(&child, 0));
    void* inner_arguments[] = {&g_data, &three, &one};
    cudaKernelNodeParams params = scale_params(inner_arguments);
    CHECK(cudaGraphAddKernelNode(&inner, child, NULL, 0, &params));
    cudaMemsetParams memset_params = {};
    memset_params.dst = g_data;
    memset_params.value = 1;
    memset_params.elementSize = 4;
    memset_params.width = kWords;
    memset_params.height = 1;
    CHECK(cudaGraphAddEmptyNode(&empty, graph, NULL, 0));
    CHECK(cudaGraphAddMemsetNode(&set, graph, &empty, 1, &memset_params));
    CHECK(cudaGraphAddChildGraphNode(&nested, graph, &set, 1, child));
    CHECK(cudaGraphDestroy(child));
    void* arguments[] = {&g_data, &two, &five};
    params = scale_params(arguments);
    CHECK(cudaGraphAddKernelNode(kernel, graph, &nested, 1, &params));
    CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, kernel, 1, g_pinned, g_data,
                                   kWords * sizeof(unsigned), cudaMemcpyDeviceToHost));
    cudaHostNodeParams host_params = {called, amount};
    CHECK(cudaGraphAddHostNode(host, graph, &copy, 1, &host_params));
    CHECK(cudaGraphAddEventRecordNode(&record, graph, host, 1, event));
    return graph;
}

static cudaGraph_t capture(cudaStream_t stream, unsigned factor, unsigned add, int* amount) {
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemsetAsync(g_data, 0, kWords * sizeof(unsigned), stream));
    scale<<<1, kWords, 0, stream>>>(g_data, factor, add);
    CHECK(cudaMemcpyAsync(g_pinned, g_data, kWords * sizeof(unsigned), cudaMemcpyDeviceToHost,
                          stream));
    CHECK(cudaLaunchHostFunc(stream, called, amount));
    CHECK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

/// The only kernel node of a graph.
static cudaGraphNode_t kernel_of(cudaGraph_t graph) {
    cudaGraphNode_t nodes[16];
    size_t count = 16;
    CHECK(cudaGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; ++i) {
        cudaGraphNodeType type;
        CHECK(cudaGraphNodeGetType(nodes[i], &type));
        if (type == cudaGraphNodeTypeKernel) {
            return nodes[i];
        }
    }
    EXPECT(!"a kernel node");
    return NULL;
}

int main() {
    static int ones = 1, tens = 10, hundreds = 100;
    CHECK(cudaMalloc((void**)&g_data, kWords * sizeof(unsigned)));
    CHECK(cudaMallocHost((void**)&g_pinned, kWords * sizeof(unsigned)));
    cudaStream_t stream;
    cudaEvent_t event, before;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&event));
    CHECK(cudaEventCreate(&before));
    CHECK(cudaEventRecord(before, stream));

    // Built: one exec as it is, one with a changed kernel and a disabled host node.
    cudaGraphNode_t kernel, host;
    cudaGraph_t built = build(&kernel, &host, event, &ones);
    cudaGraphExec_t plain, changed;
    CHECK(cudaGraphInstantiate(&plain, built, 0));
    CHECK(cudaGraphInstantiate(&changed, built, 0));
    unsigned seven = 7, nine = 9;
    void* arguments[] = {&g_data, &seven, &nine};
    cudaKernelNodeParams params = scale_params(arguments);
    CHECK(cudaGraphExecKernelNodeSetParams(changed, kernel, &params));
    run(plain, stream);
    EXPECT(first_word() == 4 * 2 + 5 && g_pinned[kWords - 1] == 13 && g_calls == 1);
    run(changed, stream);
    EXPECT(first_word() == 4 * 7 + 9 && g_calls == 2);

    // Captured: one whose graph is gone, one updated from another capture that is gone, one kept.
    cudaGraph_t captured = capture(stream, 11, 21, &tens);
    cudaGraphExec_t orphan, updated, kept;
    CHECK(cudaGraphInstantiate(&orphan, captured, 0));
    CHECK(cudaGraphInstantiate(&updated, captured, 0));
    CHECK(cudaGraphDestroy(captured));
    captured = capture(stream, 1, 77, &hundreds);
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(updated, captured, &info));
    CHECK(cudaGraphDestroy(captured));
    captured = capture(stream, 1, 55, &tens);
    CHECK(cudaGraphInstantiate(&kept, captured, 0));
    g_calls = 0;
    run(orphan, stream);
    EXPECT(first_word() == 21 && g_calls == 10);
    run(updated, stream);
    EXPECT(first_word() == 77 && g_calls == 110);

    midpoint();

    g_calls = 0;
    g_pinned[0] = 0;
    run(plain, stream);
    EXPECT(first_word() == 13 && g_pinned[0] == 13 && g_calls == 1);
    float elapsed = -1;
    CHECK(cudaEventElapsedTime(&elapsed, before, event));  // The launch recorded it anew.
    EXPECT(elapsed > 0);
    run(changed, stream);
    EXPECT(first_word() == 37 && g_calls == 2);
    run(orphan, stream);
    EXPECT(first_word() == 21 && g_calls == 12);
    run(updated, stream);
    EXPECT(first_word() == 77 && g_pinned[3] == 77 && g_calls == 112);
    run(kept, stream);
    EXPECT(first_word() == 55);

    // Nodes of the guest's graphs still mean those of their execs, known before or not.
    unsigned eight = 8;
    void* other[] = {&g_data, &eight, &nine};
    params = scale_params(other);
    CHECK(cudaGraphExecKernelNodeSetParams(plain, kernel, &params));
    run(plain, stream);
    EXPECT(first_word() == 4 * 8 + 9);
    CHECK(cudaGraphExecKernelNodeSetParams(kept, kernel_of(captured), &params));
    run(kept, stream);
    EXPECT(first_word() == 9);
    CHECK(cudaGraphKernelNodeSetParams(kernel, &params));
    cudaGraphExec_t again;
    CHECK(cudaGraphInstantiate(&again, built, 0));
    run(again, stream);
    EXPECT(first_word() == 41);
    CHECK(cudaGraphExecUpdate(changed, built, &info));
    run(changed, stream);
    EXPECT(first_word() == 41);
    cudaGraphExec_t all[] = {plain, changed, orphan, updated, kept, again};
    for (cudaGraphExec_t exec : all) {
        CHECK(cudaGraphExecDestroy(exec));
    }
    CHECK(cudaGraphDestroy(built));
    CHECK(cudaGraphDestroy(captured));
    return pass("graph_moves");
}
