// Trap: kernels decide while a graph runs which of its parts run, and how often. They are given the
// condition's number, which must be true wherever the graph runs later.
#include "program.h"

__global__ void set(cudaGraphConditionalHandle condition, unsigned value) {
    cudaGraphSetConditional(condition, value);
}

__global__ void set_from(cudaGraphConditionalHandle condition, const unsigned* value) {
    cudaGraphSetConditional(condition, *value);
}

__global__ void count_down(cudaGraphConditionalHandle condition, unsigned* left, unsigned* sum,
                           unsigned step) {
    *sum += step;
    cudaGraphSetConditional(condition, --*left != 0);
}

__global__ void put(unsigned* word, unsigned value) { *word = value; }

static struct { unsigned *left, *sum, *choice, *chosen; } it;

static cudaGraphNode_t add_kernel(cudaGraph_t graph, const cudaGraphNode_t* need, void* kernel,
                                  void** arguments) {
    cudaKernelNodeParams params = {};
    params.func = kernel;
    params.gridDim = dim3(1);
    params.blockDim = dim3(1);
    params.kernelParams = arguments;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, need, need != NULL ? 1 : 0, &params));
    return node;
}

static cudaGraphNode_t add_conditional(cudaGraph_t graph, const cudaGraphNode_t* need,
                                       cudaGraphConditionalHandle condition,
                                       cudaGraphConditionalNodeType type, unsigned size,
                                       cudaGraph_t* bodies) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = condition;
    params.conditional.type = type;
    params.conditional.size = size;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddNode(&node, graph, need, NULL, need != NULL ? 1 : 0, &params));
    for (unsigned i = 0; i < size; ++i) {
        bodies[i] = params.conditional.phGraph_out[i];
    }
    cudaGraphNodeType told;
    CHECK(cudaGraphNodeGetType(node, &told));
    EXPECT(told == cudaGraphNodeTypeConditional);
    return node;
}

/// Counts down from `left`, `step` at a time, and then chooses one of `size` numbers.
struct Built {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t in_loop;
    cudaGraphConditionalHandle loop;
};

static Built build(unsigned step) {
    Built built;
    CHECK(cudaGraphCreate(&built.graph, 0));
    cudaGraphConditionalHandle choice;
    CHECK(
        cudaGraphConditionalHandleCreate(&built.loop, built.graph, 1, cudaGraphCondAssignDefault));
    CHECK(cudaGraphConditionalHandleCreate(&choice, built.graph, 0, 0));
    cudaGraph_t body, bodies[3];
    const cudaGraphNode_t loop =
        add_conditional(built.graph, NULL, built.loop, cudaGraphCondTypeWhile, 1, &body);
    void* of_loop[] = {&built.loop, &it.left, &it.sum, &step};
    built.in_loop = add_kernel(body, NULL, (void*)count_down, of_loop);
    void* of_choice[] = {&choice, &it.choice};
    const cudaGraphNode_t chooses = add_kernel(built.graph, &loop, (void*)set_from, of_choice);
    (void)add_conditional(built.graph, &chooses, choice, cudaGraphCondTypeSwitch, 3, bodies);
    for (unsigned i = 0; i < 3; ++i) {
        unsigned value = 100 + i;
        void* arguments[] = {&it.chosen, &value};
        const cudaGraphNode_t first = add_kernel(bodies[i], NULL, (void*)put, arguments);
        if (i == 2) {  // One inside another, with an else.
            cudaGraphConditionalHandle inner;
            cudaGraph_t both[2];
            CHECK(
                cudaGraphConditionalHandleCreate(&inner, bodies[i], 1, cudaGraphCondAssignDefault));
            unsigned no = 0;
            void* of_inner[] = {&inner, &no};
            const cudaGraphNode_t sets = add_kernel(bodies[i], &first, (void*)set, of_inner);
            (void)add_conditional(bodies[i], &sets, inner, cudaGraphCondTypeIf, 2, both);
            for (unsigned k = 0; k < 2; ++k) {
                value = 200 + k;
                (void)add_kernel(both[k], NULL, (void*)put, arguments);
            }
        }
    }
    CHECK(cudaGraphInstantiate(&built.exec, built.graph, 0));
    return built;
}

static void run(cudaGraphExec_t exec, unsigned left, unsigned choice, unsigned sum,
                unsigned chosen) {
    const unsigned before[] = {left, 0, choice, 7};
    unsigned seen[4];
    CHECK(cudaMemcpy(it.left, before, sizeof before, cudaMemcpyHostToDevice));
    CHECK(cudaGraphLaunch(exec, 0));
    CHECK(cudaMemcpy(seen, it.left, sizeof seen, cudaMemcpyDeviceToHost));
    EXPECT(seen[0] == 0 && seen[1] == sum && seen[3] == chosen);
}

static void run_all(cudaGraphExec_t exec, unsigned step) {
    run(exec, 5, 0, 5 * step, 100);
    run(exec, 1, 1, step, 101);
    run(exec, 17, 2, 17 * step, 201);
    run(exec, 2, 3, 2 * step, 7);
}

int main() {
    CHECK(cudaMalloc((void**)&it.left, 16));
    it.sum = it.left + 1;
    it.choice = it.left + 2;
    it.chosen = it.left + 3;
    const Built gone = build(1);  // Leaves numbers free below those that stay.
    const Built stays = build(3);
    const Built graphless = build(4);
    run_all(gone.exec, 1);
    CHECK(cudaGraphExecDestroy(gone.exec));
    CHECK(cudaGraphDestroy(gone.graph));
    CHECK(cudaGraphDestroy(graphless.graph));
    cudaGraph_t clone;
    EXPECT(cudaGraphClone(&clone, stays.graph) != cudaSuccess);
    (void)cudaGetLastError();
    // The executable copy is changed inside its loop.
    unsigned step = 6;
    void* arguments[] = {(void*)&stays.loop, &it.left, &it.sum, &step};
    cudaKernelNodeParams params = {};
    params.func = (void*)count_down;
    params.gridDim = dim3(1);
    params.blockDim = dim3(1);
    params.kernelParams = arguments;
    CHECK(cudaGraphExecKernelNodeSetParams(stays.exec, stays.in_loop, &params));
    run_all(stays.exec, 6);
    run_all(graphless.exec, 4);
    midpoint();
    run_all(stays.exec, 6);
    run_all(graphless.exec, 4);
    step = 8;
    CHECK(cudaGraphExecKernelNodeSetParams(stays.exec, stays.in_loop, &params));
    run_all(stays.exec, 8);
    CHECK(cudaGraphExecDestroy(stays.exec));
    cudaGraphExec_t again;
    CHECK(cudaGraphInstantiate(&again, stays.graph, 0));
    run_all(again, 3);
    CHECK(cudaGraphExecDestroy(again));
    CHECK(cudaGraphDestroy(stays.graph));
    CHECK(cudaGraphExecDestroy(graphless.exec));
    return pass("conditional_nodes");
}
