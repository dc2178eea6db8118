// Trap: copies of a graph from and to pageable memory. Their bytes are read and written when the
// graph runs, not when it is made; they stay one copy node each; they work in clones and in execs
// whose graph is gone, and after a move.
#include "program.h"

enum { kWords = 30000, kColumns = 50, kRows = 20 };

__global__ void add(unsigned* data, unsigned count, unsigned value) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        data[i] += value;
    }
}

struct Pages {
    unsigned input[kWords];
    unsigned output[kWords];
    unsigned other[kWords];
};

static unsigned* g_data;
static Pages* g_pages;
static unsigned* g_pinned;
static int g_seen;

/// Runs behind the copy to `output`: the bytes must be there by then.
static void CUDART_CB look(void*) { g_seen = (int)g_pages->output[kWords - 1]; }

static size_t count_nodes(cudaGraph_t graph, cudaGraphNodeType type) {
    cudaGraphNode_t nodes[32];
    size_t count = 32, found = 0;
    CHECK(cudaGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; ++i) {
        cudaGraphNodeType each;
        CHECK(cudaGraphNodeGetType(nodes[i], &each));
        found += each == type;
    }
    return found;
}

/// input -> device, + value, device -> output, output -> look().
static cudaGraph_t build(unsigned value, cudaGraphNode_t* out_node) {
    cudaGraph_t graph;
    cudaGraphNode_t in, kernel, host;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddMemcpyNode1D(&in, graph, NULL, 0, g_data, g_pages->input,
                                   sizeof g_pages->input, cudaMemcpyHostToDevice));
    unsigned count = kWords;
    void* arguments[] = {&g_data, &count, &value};
    cudaKernelNodeParams params = {};
    params.func = (void*)add;
    params.gridDim = dim3((kWords + 255) / 256);
    params.blockDim = dim3(256);
    params.kernelParams = arguments;
    CHECK(cudaGraphAddKernelNode(&kernel, graph, &in, 1, &params));
    CHECK(cudaGraphAddMemcpyNode1D(out_node, graph, &kernel, 1, g_pages->output, g_data,
                                   sizeof g_pages->output, cudaMemcpyDeviceToHost));
    cudaHostNodeParams host_params = {look, NULL};
    CHECK(cudaGraphAddHostNode(&host, graph, out_node, 1, &host_params));
    EXPECT(count_nodes(graph, cudaGraphNodeTypeMemcpy) == 2);
    EXPECT(count_nodes(graph, cudaGraphNodeTypeGraph) == 0);
    return graph;
}

/// The same by capture, with a pitched copy (to `other`) and one from pages to pinned memory.
static cudaGraph_t capture(cudaStream_t stream, unsigned value) {
    cudaGraph_t graph;
    size_t row = kColumns * sizeof(unsigned);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemcpyAsync(g_data, g_pages->input, sizeof g_pages->input, cudaMemcpyHostToDevice,
                          stream));
    add<<<(kWords + 255) / 256, 256, 0, stream>>>(g_data, kWords, value);
    CHECK(cudaMemcpyAsync(g_pages->output, g_data, sizeof g_pages->output, cudaMemcpyDeviceToHost,
                          stream));
    CHECK(cudaMemcpy2DAsync(g_pages->other, 2 * row, g_data, row, row, kRows,
                            cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(g_pinned, g_pages->output, sizeof g_pages->output, cudaMemcpyDefault,
                          stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, NULL, &nodes));
    EXPECT(nodes == 5);
    EXPECT(count_nodes(graph, cudaGraphNodeTypeMemcpy) == 4);
    return graph;
}

static void fill(unsigned* words, unsigned seed) {
    for (unsigned i = 0; i < kWords; ++i) {
        words[i] = i * seed;
    }
}

static void run(cudaGraphExec_t exec, cudaStream_t stream, unsigned seed) {
    fill(g_pages->input, seed);
    memset(g_pages->output, 0xee, sizeof g_pages->output);
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
}

static void expect_output(const unsigned* words, unsigned seed, unsigned value) {
    for (unsigned i = 0; i < kWords; ++i) {
        EXPECT(words[i] == i * seed + value);
    }
}

static void expect_rows(unsigned seed, unsigned value) {
    for (unsigned i = 0; i < kWords; ++i) {
        unsigned row = i / (2 * kColumns), column = i % (2 * kColumns);
        bool is_copied = row < kRows && column < kColumns;
        EXPECT(g_pages->other[i] ==
               (is_copied ? (row * kColumns + column) * seed + value : 0xdddddddd));
    }
}

int main() {
    g_pages = (Pages*)malloc(sizeof(Pages));
    memset(g_pages, 0xdd, sizeof(Pages));
    CHECK(cudaMalloc((void**)&g_data, sizeof g_pages->input));
    CHECK(cudaMallocHost((void**)&g_pinned, sizeof g_pages->output));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cudaGraphNode_t out_node;
    cudaGraph_t built = build(5, &out_node), clone;
    cudaGraphExec_t plain, cloned, orphan, kept;
    CHECK(cudaGraphInstantiate(&plain, built, 0));
    CHECK(cudaGraphClone(&clone, built));
    CHECK(cudaGraphInstantiate(&cloned, clone, 0));
    CHECK(cudaGraphDestroy(clone));
    cudaGraph_t captured = capture(stream, 7);
    CHECK(cudaGraphInstantiate(&orphan, captured, 0));
    CHECK(cudaGraphDestroy(captured));
    captured = capture(stream, 9);
    CHECK(cudaGraphInstantiate(&kept, captured, 0));

    run(plain, stream, 3);
    expect_output(g_pages->output, 3, 5);
    EXPECT(g_seen == (int)((kWords - 1) * 3 + 5));
    run(cloned, stream, 4);
    expect_output(g_pages->output, 4, 5);
    run(orphan, stream, 5);
    expect_output(g_pages->output, 5, 7);
    expect_output(g_pinned, 5, 7);
    expect_rows(5, 7);

    // Many graphs that come and go: their staging must not fill the pool.
    for (unsigned i = 0; i < 200; ++i) {
        cudaGraphNode_t ignored;
        cudaGraph_t brief = build(i, &ignored);
        cudaGraphExec_t exec;
        CHECK(cudaGraphInstantiate(&exec, brief, 0));
        CHECK(cudaGraphDestroy(brief));
        if (i % 50 == 0) {
            run(exec, stream, i);
            expect_output(g_pages->output, i, i);
        }
        CHECK(cudaGraphExecDestroy(exec));
    }

    // And an exec that is updated again and again.
    for (unsigned i = 0; i < 200; ++i) {
        cudaGraphNode_t ignored;
        cudaGraph_t brief = build(i, &ignored);
        cudaGraphExecUpdateResultInfo info;
        CHECK(cudaGraphExecUpdate(cloned, brief, &info));
        CHECK(cudaGraphDestroy(brief));
        if (i % 50 == 49) {
            run(cloned, stream, i);
            expect_output(g_pages->output, i, i);
        }
    }

    midpoint();

    run(plain, stream, 6);
    expect_output(g_pages->output, 6, 5);
    EXPECT(g_seen == (int)((kWords - 1) * 6 + 5));
    run(cloned, stream, 7);
    expect_output(g_pages->output, 7, 199);
    run(orphan, stream, 8);
    expect_output(g_pages->output, 8, 7);
    expect_output(g_pinned, 8, 7);
    expect_rows(8, 7);
    run(kept, stream, 9);
    expect_output(g_pages->output, 9, 9);
    EXPECT(count_nodes(captured, cudaGraphNodeTypeMemcpy) == 4);

    // Another target for one exec only, then for the graph.
    CHECK(cudaGraphExecMemcpyNodeSetParams1D(plain, out_node, g_pages->other, g_data,
                                             sizeof g_pages->other, cudaMemcpyDeviceToHost));
    run(plain, stream, 10);
    expect_output(g_pages->other, 10, 5);
    EXPECT(g_pages->output[0] == 0xeeeeeeee);
    run(cloned, stream, 11);
    expect_output(g_pages->output, 11, 199);
    CHECK(cudaGraphMemcpyNodeSetParams1D(out_node, g_pages->other, g_data, sizeof g_pages->other,
                                         cudaMemcpyDeviceToHost));
    cudaGraphExec_t again;
    CHECK(cudaGraphInstantiate(&again, built, 0));
    run(again, stream, 12);
    expect_output(g_pages->other, 12, 5);
    cudaGraphExec_t all[] = {plain, cloned, orphan, kept, again};
    for (cudaGraphExec_t exec : all) {
        CHECK(cudaGraphExecDestroy(exec));
    }
    CHECK(cudaGraphDestroy(built));
    CHECK(cudaGraphDestroy(captured));
    free(g_pages);
    return pass("graph_pageable");
}
