// Trap: a capture can add to a graph that is there, behind nodes of it: it begins at those, shows
// that graph while it lasts, and ends with it, before and after a snapshot in the middle.
#include "program.h"

static const unsigned kWords = 1000;

__global__ void add(unsigned* words, unsigned value) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < kWords) {
        words[i] += value;
    }
}

__global__ void multiply(unsigned* words, unsigned value) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < kWords) {
        words[i] *= value;
    }
}

static struct {
    cudaStream_t stream;
    unsigned *one, *other;
} it;

static cudaGraphNode_t add_node(cudaGraph_t graph, unsigned* words, unsigned value) {
    void* arguments[] = {&words, &value};
    cudaKernelNodeParams params = {};
    params.func = (void*)add;
    params.gridDim = dim3(4);
    params.blockDim = dim3(256);
    params.kernelParams = arguments;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, NULL, 0, &params));
    return node;
}

static void begin(cudaGraph_t graph, const cudaGraphNode_t* behind, size_t count) {
    CHECK(cudaStreamBeginCaptureToGraph(it.stream, graph, behind, NULL, count,
                                        cudaStreamCaptureModeThreadLocal));
    cudaStreamCaptureStatus status;
    unsigned long long id = 0;
    cudaGraph_t shown = NULL;
#if CUDART_VERSION >= 13000
    CHECK(cudaStreamGetCaptureInfo(it.stream, &status, &id, &shown, NULL, NULL, NULL));
#else
    CHECK(cudaStreamGetCaptureInfo_v2(it.stream, &status, &id, &shown, NULL, NULL));
#endif
    EXPECT(status == cudaStreamCaptureStatusActive && shown == graph);
}

static void end(cudaGraph_t graph) {
    cudaGraph_t ended = NULL;
    CHECK(cudaStreamEndCapture(it.stream, &ended));
    EXPECT(ended == graph);
}

/// Launches the graph once; what each word must be then.
static void run(cudaGraph_t graph, unsigned one, unsigned other) {
    unsigned words[2][kWords];
    cudaGraphExec_t exec;
    CHECK(cudaMemset(it.one, 0, kWords * 4));
    CHECK(cudaMemset(it.other, 0, kWords * 4));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, it.stream));
    CHECK(cudaStreamSynchronize(it.stream));
    CHECK(cudaMemcpy(words[0], it.one, kWords * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(words[1], it.other, kWords * 4, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < kWords; ++i) {
        EXPECT(words[0][i] == one && words[1][i] == other);
    }
    CHECK(cudaGraphExecDestroy(exec));
}

static size_t nodes_of(cudaGraph_t graph) {
    size_t count = 0;
    CHECK(cudaGraphGetNodes(graph, NULL, &count));
    return count;
}

int main() {
    CHECK(cudaStreamCreateWithFlags(&it.stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc((void**)&it.one, kWords * 4));
    CHECK(cudaMalloc((void**)&it.other, kWords * 4));
    cudaGraph_t graph, foreign;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphCreate(&foreign, 0));
    const cudaGraphNode_t of_foreign = add_node(foreign, it.one, 1);
    const cudaGraphNode_t first = add_node(graph, it.one, 7);

    EXPECT_STATUS(cudaStreamBeginCaptureToGraph(it.stream, graph, &of_foreign, NULL, 1,
                                                cudaStreamCaptureModeThreadLocal),
                  cudaErrorInvalidValue);
    EXPECT_STATUS(cudaStreamBeginCaptureToGraph(cudaStreamLegacy, graph, NULL, NULL, 0,
                                                cudaStreamCaptureModeThreadLocal),
                  cudaErrorStreamCaptureUnsupported);

    begin(graph, &first, 1);
    multiply<<<4, 256, 0, it.stream>>>(it.one, 3);
    add<<<4, 256, 0, it.stream>>>(it.one, 1);
    end(graph);
    EXPECT(nodes_of(graph) == 3);
    run(graph, 22, 0);

    begin(graph, NULL, 0);  // A branch of its own.
    add<<<4, 256, 0, it.stream>>>(it.other, 5);
    CHECK(cudaMemsetAsync(it.other, 0xff, 4, it.stream));
    add<<<1, 1, 0, it.stream>>>(it.other, 6);  // All ones and 6: as the others.
    end(graph);
    EXPECT(nodes_of(graph) == 6);
    run(graph, 22, 5);
    midpoint();
    run(graph, 22, 5);

    cudaGraphNode_t last;
    CHECK(cudaGraphAddEmptyNode(&last, graph, NULL, 0));
    begin(graph, &last, 1);
    end(graph);  // Of nothing.
    EXPECT(nodes_of(graph) == 7);
    run(graph, 22, 5);
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphDestroy(foreign));
    CHECK(cudaStreamDestroy(it.stream));
    return pass("capture_to_graph");
}
