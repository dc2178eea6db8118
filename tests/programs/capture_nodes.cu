// Trap: a library asks an open capture for its graph and the nodes that come next, adds a node of
// its own to them, and lets the capture go on behind that.
#include "program.h"

__global__ void append(unsigned* word, unsigned digit) { *word = *word * 10 + digit; }

struct Info {
    cudaGraph_t graph;
    const cudaGraphNode_t* nodes;
    const cudaGraphEdgeData* edges;
    size_t count;
};

static Info info_of(cudaStream_t stream) {
    Info info = {};
    cudaStreamCaptureStatus status;
    unsigned long long id = 0;
    CHECK(cudaStreamGetCaptureInfo(stream, &status, &id, &info.graph, &info.nodes, &info.edges,
                                   &info.count));
    EXPECT(status == cudaStreamCaptureStatusActive && id != 0);
    return info;
}

static cudaGraphNode_t add_to(cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                              unsigned* word, unsigned digit) {
    void* arguments[] = {&word, &digit};
    cudaKernelNodeParams params = {};
    params.func = (void*)append;
    params.gridDim = dim3(1);
    params.blockDim = dim3(1);
    params.kernelParams = arguments;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, needs, count, &params));
    return node;
}

static void run(cudaGraphExec_t exec, cudaStream_t stream, unsigned* word, unsigned wanted) {
    unsigned seen = 0;
    CHECK(cudaMemsetAsync(word, 0, 4, stream));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaMemcpyAsync(&seen, word, 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(seen == wanted);
}

int main() {
    unsigned* word;
    cudaStream_t stream, other;
    cudaEvent_t event;
    CHECK(cudaMalloc((void**)&word, 4));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));

    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    EXPECT(info_of(stream).count == 0);
    append<<<1, 1, 0, stream>>>(word, 1);
    const Info info = info_of(stream);
    EXPECT(info.count == 1 && info.graph != NULL);
    cudaGraphNodeType type;
    CHECK(cudaGraphNodeGetType(info.nodes[0], &type));
    EXPECT(type == cudaGraphNodeTypeKernel);
    cudaGraphNode_t mine = add_to(info.graph, info.nodes, info.count, word, 2);
    CHECK(cudaStreamUpdateCaptureDependencies(stream, &mine, NULL, 1,
                                              cudaStreamSetCaptureDependencies));
    EXPECT(info_of(stream).count == 1 && info_of(stream).nodes[0] == mine);
    append<<<1, 1, 0, stream>>>(word, 3);
    // Another stream takes part, and is asked as well.
    CHECK(cudaEventRecord(event, stream));
    CHECK(cudaStreamWaitEvent(other, event, 0));
    EXPECT(info_of(other).graph == info.graph);
    append<<<1, 1, 0, other>>>(word, 4);
    cudaGraphNode_t last = info_of(other).nodes[0];
    CHECK(cudaStreamUpdateCaptureDependencies(stream, &last, NULL, 1,
                                              cudaStreamAddCaptureDependencies));
    EXPECT(info_of(stream).count == 2);
    append<<<1, 1, 0, stream>>>(word, 5);
    EXPECT_STATUS(cudaStreamUpdateCaptureDependencies(stream, NULL, NULL, 0, 7),
                  cudaErrorInvalidValue);
    cudaGraph_t graph;
    CHECK(cudaStreamEndCapture(stream, &graph));
    EXPECT(graph == info.graph);
    EXPECT_STATUS(cudaStreamUpdateCaptureDependencies(stream, &last, NULL, 1, 0),
                  cudaErrorIllegalState);
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    run(exec, stream, word, 12345);

    // A capture whose graph was named, and that comes to nothing.
    CHECK(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
    append<<<1, 1, 0, other>>>(word, 9);
    EXPECT(info_of(other).count == 1);
    EXPECT_STATUS(cudaStreamSynchronize(other), cudaErrorStreamCaptureUnsupported);
    cudaGraph_t nothing;
    EXPECT_STATUS(cudaStreamEndCapture(other, &nothing), cudaErrorStreamCaptureInvalidated);
    (void)cudaGetLastError();

    midpoint();
    run(exec, stream, word, 12345);
    size_t count = 0;
    CHECK(cudaGraphGetNodes(graph, NULL, &count));
    EXPECT(count == 5);
    CHECK(cudaGraphNodeGetType(mine, &type));
    EXPECT(type == cudaGraphNodeTypeKernel);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return pass("capture_nodes");
}
