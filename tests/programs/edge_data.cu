// Trap: edges of graphs have data of their own: which part of a kernel the next one waits for. They
// are told as they were given, and who does not ask for them is told that something is missing.
#include "program.h"

__global__ void add(unsigned* word, unsigned value) { *word = *word * 10 + value; }

static cudaGraphNode_t add_to(cudaGraph_t graph, const cudaGraphNode_t* needs,
                              const cudaGraphEdgeData* data, size_t count, unsigned* word,
                              unsigned value) {
    void* arguments[] = {&word, &value};
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeKernel;
    params.kernel.func = (void*)add;
    params.kernel.gridDim = dim3(1);
    params.kernel.blockDim = dim3(1);
    params.kernel.kernelParams = arguments;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddNode(&node, graph, needs, data, count, &params));
    return node;
}

static bool is_same(const cudaGraphEdgeData* a, const cudaGraphEdgeData* b) {
    return memcmp(a, b, sizeof(*a)) == 0;
}

static cudaGraphEdgeData plain, programmatic;

static void look(cudaGraph_t graph, cudaGraphNode_t first, cudaGraphNode_t second,
                 cudaGraphNode_t third) {
    cudaGraphNode_t from[4], to[4];
    cudaGraphEdgeData data[4];
    size_t count = 0;
    CHECK(cudaGraphGetEdges(graph, NULL, NULL, NULL, &count));
    EXPECT(count == 2);
    count = 4;
    EXPECT_STATUS(cudaGraphGetEdges(graph, from, to, NULL, &count), cudaErrorLossyQuery);
    count = 4;
    CHECK(cudaGraphGetEdges(graph, from, to, data, &count));
    EXPECT(count == 2);
    for (size_t i = 0; i < count; ++i) {
        EXPECT(from[i] == (to[i] == second ? first : second));
        EXPECT(is_same(&data[i], to[i] == second ? &programmatic : &plain));
    }
    count = 4;
    CHECK(cudaGraphNodeGetDependencies(second, from, data, &count));
    EXPECT(count == 1 && from[0] == first && is_same(&data[0], &programmatic));
    count = 4;
    EXPECT_STATUS(cudaGraphNodeGetDependencies(second, from, NULL, &count), cudaErrorLossyQuery);
    count = 4;
    CHECK(cudaGraphNodeGetDependencies(third, from, NULL, &count));
    EXPECT(count == 1 && from[0] == second);
    count = 4;
    CHECK(cudaGraphNodeGetDependentNodes(first, to, data, &count));
    EXPECT(count == 1 && to[0] == second && is_same(&data[0], &programmatic));
}

static void run(cudaGraphExec_t exec, unsigned* word) {
    unsigned seen = 0;
    CHECK(cudaMemset(word, 0, 4));
    CHECK(cudaGraphLaunch(exec, 0));
    CHECK(cudaMemcpy(&seen, word, 4, cudaMemcpyDeviceToHost));
    EXPECT(seen == 123);
}

int main() {
    unsigned* word;
    CHECK(cudaMalloc((void**)&word, 4));
    programmatic.from_port = cudaGraphKernelNodePortProgrammatic;
    programmatic.type = cudaGraphDependencyTypeProgrammatic;
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    const cudaGraphNode_t first = add_to(graph, NULL, NULL, 0, word, 1);
    const cudaGraphNode_t second = add_to(graph, &first, &programmatic, 1, word, 2);
    const cudaGraphNode_t third = add_to(graph, NULL, NULL, 0, word, 3);
    CHECK(cudaGraphAddDependencies(graph, &second, &third, &plain, 1));
    look(graph, first, second, third);
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    run(exec, word);
    midpoint();
    look(graph, first, second, third);
    run(exec, word);
    CHECK(cudaGraphRemoveDependencies(graph, &first, &second, &programmatic, 1));
    size_t count = 0;
    CHECK(cudaGraphGetEdges(graph, NULL, NULL, NULL, &count));
    EXPECT(count == 1);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return pass("edge_data");
}
