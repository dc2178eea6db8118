// Trap: programs read what is in a graph that they captured, and change it: one argument of each
// kernel, say, token by token. The parameters of such nodes are the driver's only.
#include "program.h"

enum { kWords = 64, kBytes = kWords * 4 };

struct Odd {  // An argument with padding.
    char first;
    double second;
};

__global__ void scale(unsigned* data, Odd odd, unsigned factor, unsigned short add) {
    data[threadIdx.x] = data[threadIdx.x] * factor + add + (unsigned)odd.second;
}

__global__ void without_arguments() {}

static unsigned *g_data, *g_other, *g_pinned;
static unsigned g_pages[kWords];
static int g_calls;

static void CUDART_CB called(void* user) { g_calls += *(int*)user; }

static cudaGraphNode_t node_of(cudaGraph_t graph, cudaGraphNodeType type, size_t skip) {
    cudaGraphNode_t nodes[16];
    size_t count = 16;
    CHECK(cudaGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; ++i) {
        cudaGraphNodeType found;
        CHECK(cudaGraphNodeGetType(nodes[i], &found));
        if (found == type && skip-- == 0) {
            return nodes[i];
        }
    }
    fprintf(stderr, "no such node of type %d\n", (int)type);
    exit(1);
}

static void expect_scale(cudaGraphNode_t node, unsigned factor, cudaKernelNodeParams* params) {
    CHECK(cudaGraphKernelNodeGetParams(node, params));
    EXPECT(params->func == (void*)scale);
    EXPECT(params->gridDim.x == 1 && params->gridDim.y == 1 && params->gridDim.z == 1);
    EXPECT(params->blockDim.x == kWords && params->blockDim.y == 1 && params->sharedMemBytes == 16);
    EXPECT(params->extra == NULL && params->kernelParams != NULL);
    EXPECT(*(unsigned**)params->kernelParams[0] == g_data);
    EXPECT(((Odd*)params->kernelParams[1])->first == 'x');
    EXPECT(((Odd*)params->kernelParams[1])->second == 100.0);
    EXPECT(*(unsigned*)params->kernelParams[2] == factor);
    EXPECT(*(unsigned short*)params->kernelParams[3] == 7);
}

static void expect_copy(cudaGraphNode_t node, const void* source, void* target) {
    cudaMemcpy3DParms params;
    CHECK(cudaGraphMemcpyNodeGetParams(node, &params));
    EXPECT(params.srcPtr.ptr == source && params.dstPtr.ptr == target);
    EXPECT(params.srcArray == NULL && params.dstArray == NULL);
    EXPECT(params.extent.width == kBytes && params.extent.height <= 1 && params.extent.depth <= 1);
}

static unsigned ran(cudaGraphExec_t exec, cudaStream_t stream) {
    for (int i = 0; i < kWords; ++i) {
        g_pinned[i] = 0;
    }
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 1; i < kWords; ++i) {
        EXPECT(g_pinned[i] == g_pinned[0]);
    }
    return g_pinned[0];
}

/// What a graph of capture() holds; `factor` as it is now.
static void expect_all(cudaGraph_t graph, unsigned factor, int* amount) {
    cudaKernelNodeParams params;
    cudaMemsetParams set;
    cudaHostNodeParams host;
    expect_scale(node_of(graph, cudaGraphNodeTypeKernel, 0), factor, &params);
    CHECK(cudaGraphKernelNodeGetParams(node_of(graph, cudaGraphNodeTypeKernel, 1), &params));
    EXPECT(params.func == (void*)without_arguments && params.blockDim.x == 32);
    CHECK(cudaGraphMemsetNodeGetParams(node_of(graph, cudaGraphNodeTypeMemset, 0), &set));
    EXPECT(set.dst == g_data && set.value == 0 && set.elementSize * set.width == kBytes);
    expect_copy(node_of(graph, cudaGraphNodeTypeMemcpy, 0), g_data, g_other);
    expect_copy(node_of(graph, cudaGraphNodeTypeMemcpy, 1), g_other, g_pinned);
    expect_copy(node_of(graph, cudaGraphNodeTypeMemcpy, 2), g_other, g_pages);
    CHECK(cudaGraphHostNodeGetParams(node_of(graph, cudaGraphNodeTypeHost, 0), &host));
    EXPECT(host.fn == called && host.userData == amount);
    // The wrong kind of node, as natively.
    EXPECT_STATUS(cudaGraphKernelNodeGetParams(node_of(graph, cudaGraphNodeTypeHost, 0), &params),
                  cudaErrorInvalidValue);
    EXPECT_STATUS(cudaGraphHostNodeGetParams(node_of(graph, cudaGraphNodeTypeMemset, 0), &host),
                  cudaErrorInvalidValue);
    CHECK((cudaGetLastError(), cudaSuccess));
}

int main() {
    int amount = 5;
    CHECK(cudaMalloc((void**)&g_data, kBytes));
    CHECK(cudaMalloc((void**)&g_other, kBytes));
    CHECK(cudaMallocHost((void**)&g_pinned, kBytes));
    cudaStream_t stream;
    cudaGraph_t graph, clone, parent, inner, again;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemsetAsync(g_data, 0, kBytes, stream));
    scale<<<1, kWords, 16, stream>>>(g_data, Odd{'x', 100.0}, 3, 7);
    without_arguments<<<2, 32, 0, stream>>>();
    CHECK(cudaMemcpyAsync(g_other, g_data, kBytes, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemcpyAsync(g_pinned, g_other, kBytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(g_pages, g_other, kBytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaLaunchHostFunc(stream, called, &amount));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    expect_all(graph, 3, &amount);
    EXPECT(ran(exec, stream) == 107 && g_calls == 5 && g_pages[0] == 107);

    // One argument of the captured kernel changes, in the executable graph and in the graph.
    cudaKernelNodeParams params;
    const cudaGraphNode_t kernel = node_of(graph, cudaGraphNodeTypeKernel, 0);
    expect_scale(kernel, 3, &params);
    void** const pointers = params.kernelParams;
    unsigned short add = 8;
    void* arguments[] = {pointers[0], pointers[1], pointers[2], &add};
    params.kernelParams = arguments;
    CHECK(cudaGraphExecKernelNodeSetParams(exec, kernel, &params));
    EXPECT(ran(exec, stream) == 108);
    expect_scale(kernel, 3, &params);
    EXPECT(params.kernelParams == pointers);  // They are good for as long as the node is there.
    unsigned factor = 4;
    void* others[] = {pointers[0], pointers[1], &factor, pointers[3]};
    params.kernelParams = others;
    CHECK(cudaGraphKernelNodeSetParams(kernel, &params));
    expect_all(graph, 4, &amount);

    // A clone's nodes and a child graph's have the same parameters, and one handle each.
    cudaGraphNode_t twin, twin_again, child;
    CHECK(cudaGraphClone(&clone, graph));
    CHECK(cudaGraphNodeFindInClone(&twin, kernel, clone));
    CHECK(cudaGraphNodeFindInClone(&twin_again, kernel, clone));
    EXPECT(twin == twin_again && twin != kernel);
    EXPECT(twin == node_of(clone, cudaGraphNodeTypeKernel, 0));
    CHECK(cudaGraphCreate(&parent, 0));
    CHECK(cudaGraphAddChildGraphNode(&child, parent, NULL, 0, graph));
    CHECK(cudaGraphChildGraphNodeGetGraph(child, &inner));
    CHECK(cudaGraphChildGraphNodeGetGraph(child, &again));
    EXPECT(inner == again);
    expect_all(clone, 4, &amount);
    expect_all(inner, 4, &amount);

    midpoint();
    expect_all(graph, 4, &amount);
    expect_all(clone, 4, &amount);
    expect_all(inner, 4, &amount);
    EXPECT(ran(exec, stream) == 108);
    expect_scale(twin, 4, &params);
    add = 9;
    void* last[] = {params.kernelParams[0], params.kernelParams[1], params.kernelParams[2], &add};
    params.kernelParams = last;
    CHECK(cudaGraphKernelNodeSetParams(twin, &params));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphInstantiate(&exec, clone, 0));
    EXPECT(ran(exec, stream) == 109 && g_pages[0] == 109);
    expect_all(graph, 4, &amount);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    expect_all(inner, 4, &amount);
    CHECK(cudaGraphDestroy(parent));
    CHECK(cudaGraphDestroy(clone));
    return pass("graph_parameters");
}
