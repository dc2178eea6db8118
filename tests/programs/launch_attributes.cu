// Trap: what is wrong with a launch's attributes is told by the launch itself, and by the call that
// gives a kernel node of a graph an attribute. `launch_attributes --print` shows what this machine
// answers.
#include "driver_entry.h"

__global__ void nothing() {}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
__global__ void in_pairs() {}  // A move may lead to a device that has no clusters.
#else
__global__ void __cluster_dims__(2, 1, 1) in_pairs() {}
#endif
__global__ void __launch_bounds__(1024) crowd() {}

static decltype(&cuLaunchKernelEx) launch_ex_;
static decltype(&cuGraphCreate) graph_create_;
static decltype(&cuGraphDestroy) graph_destroy_;
static decltype(&cuGraphAddKernelNode) add_kernel_node_;
static decltype(&cuGraphKernelNodeSetAttribute) set_attribute_;
static decltype(&cuGraphKernelNodeGetAttribute) get_attribute_;
static decltype(&cuGraphInstantiateWithFlags) instantiate_;
static decltype(&cuGraphExecDestroy) exec_destroy_;
static decltype(&cuCtxSynchronize) synchronize_;

static CUfunction nothing_function, pairs_function, crowd_function;
static CUevent timed, untimed;

struct Case {
    const char* what;
    CUfunction* function;
    unsigned grid;
    int known;  // The launch's result; kAsk: none is expected; kClusters: 0 where there are any.
    int id;
    void (*set)(CUlaunchAttributeValue* value);
};

#define SET(statement)              \
    [](CUlaunchAttributeValue* v) { \
        (void)v;                    \
        statement;                  \
    }
static void cluster(CUlaunchAttributeValue* v, unsigned x, unsigned y, unsigned z) {
    v->clusterDim.x = x, v->clusterDim.y = y, v->clusterDim.z = z;
}
static void preferred(CUlaunchAttributeValue* v, unsigned x) {
    v->preferredClusterDim.x = x, v->preferredClusterDim.y = 1, v->preferredClusterDim.z = 1;
}

static const int kNone = 0;
static const int kAsk = -1;
static const int kClusters = -2;
static const Case kCases[] = {
    {"no attribute", &nothing_function, 4, 0, kNone, SET()},
    {"id 15, of none", &nothing_function, 4, kAsk, 15, SET()},
    {"id 17, of none", &nothing_function, 4, kAsk, 17, SET()},
    {"id 99, of none", &nothing_function, 4, CUDA_ERROR_INVALID_VALUE, 99, SET()},
    {"id -1", &nothing_function, 4, kAsk, -1, SET()},
    {"synchronization policy, of streams only", &nothing_function, 4, kAsk, 3,
     SET(v->syncPolicy = CU_SYNC_POLICY_AUTO)},
    {"cluster 2 of grid 4", &nothing_function, 4, kClusters, 4, SET(cluster(v, 2, 1, 1))},
    {"cluster 1 of grid 4", &nothing_function, 4, 0, 4, SET(cluster(v, 1, 1, 1))},
    {"cluster 2 of grid 3", &nothing_function, 3, kAsk, 4, SET(cluster(v, 2, 1, 1))},
    {"cluster 1,2 of grid 4,1", &nothing_function, 4, kAsk, 4, SET(cluster(v, 1, 2, 1))},
    {"cluster 0", &nothing_function, 4, kAsk, 4, SET(cluster(v, 0, 0, 0))},
    {"cluster 2,0,0", &nothing_function, 4, kAsk, 4, SET(cluster(v, 2, 0, 0))},
    {"cluster 8 of grid 16", &nothing_function, 16, kClusters, 4, SET(cluster(v, 8, 1, 1))},
    {"cluster 16 of grid 16, not allowed", &nothing_function, 16, kAsk, 4,
     SET(cluster(v, 16, 1, 1))},
    {"cluster 32 of grid 32", &nothing_function, 32, kAsk, 4, SET(cluster(v, 32, 1, 1))},
    {"kernel of clusters 2, grid 4", &pairs_function, 4, kAsk, kNone, SET()},
    {"kernel of clusters 2, grid 3", &pairs_function, 3, kAsk, kNone, SET()},
    {"kernel of clusters 2, cluster 4", &pairs_function, 4, kAsk, 4, SET(cluster(v, 4, 1, 1))},
    {"scheduling policy 0", &nothing_function, 4, kAsk, 5, SET()},
    {"scheduling policy 2", &nothing_function, 4, kAsk, 5, SET(memset(v, 0, 64); v->pad[0] = 2)},
    {"scheduling policy 9", &nothing_function, 4, kAsk, 5, SET(memset(v, 0, 64); v->pad[0] = 9)},
    {"cooperative", &nothing_function, 4, 0, 2, SET(v->cooperative = 1)},
    {"cooperative, 4096 x 1024 threads", &crowd_function, 4096, 720, 2, SET(v->cooperative = 1)},
    {"cooperative 0, 4096 x 1024 threads", &crowd_function, 4096, 0, 2, SET()},
    {"priority 0", &nothing_function, 4, 0, 8, SET()},
    {"priority -1", &nothing_function, 4, kAsk, 8, SET(v->priority = -1)},
    {"priority 99", &nothing_function, 4, kAsk, 8, SET(v->priority = 99)},
    {"priority -99", &nothing_function, 4, kAsk, 8, SET(v->priority = -99)},
    {"programmatic serialization 1", &nothing_function, 4, kAsk, 6,
     SET(v->programmaticStreamSerializationAllowed = 1)},
    {"programmatic serialization 7", &nothing_function, 4, kAsk, 6,
     SET(v->programmaticStreamSerializationAllowed = 7)},
    {"programmatic event null", &nothing_function, 4, kAsk, 7, SET()},
    {"programmatic event, timed", &nothing_function, 4, kAsk, 7,
     SET(v->programmaticEvent.event = timed)},
    {"programmatic event, untimed", &nothing_function, 4, kAsk, 7,
     SET(v->programmaticEvent.event = untimed)},
    {"completion event null", &nothing_function, 4, kAsk, 12, SET()},
    {"completion event, timed", &nothing_function, 4, kAsk, 12,
     SET(v->launchCompletionEvent.event = timed)},
    {"completion event, untimed", &nothing_function, 4, kAsk, 12,
     SET(v->launchCompletionEvent.event = untimed)},
    {"memory domain 1", &nothing_function, 4, kAsk, 10,
     SET(v->memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE)},
    {"memory domain 9", &nothing_function, 4, kAsk, 10, SET(v->pad[0] = 9)},
    {"memory domain map 0, 1", &nothing_function, 4, kAsk, 9, SET(v->memSyncDomainMap.remote = 1)},
    {"memory domain map 0, 200", &nothing_function, 4, kAsk, 9,
     SET(v->memSyncDomainMap.remote = 200)},
    {"access policy window, empty", &nothing_function, 4, kAsk, 1, SET()},
    {"access policy window, ratio 7", &nothing_function, 4, kAsk, 1,
     SET(v->accessPolicyWindow.hitRatio = 7)},
    {"preferred cluster 2 alone", &nothing_function, 4, kAsk, 11, SET(preferred(v, 2))},
    {"preferred cluster 3 of grid 4", &nothing_function, 4, kAsk, 11, SET(preferred(v, 3))},
    {"device-updatable 1", &nothing_function, 4, kAsk, 13,
     SET(v->deviceUpdatableKernelNode.deviceUpdatable = 1)},
    {"device-updatable 0", &nothing_function, 4, kAsk, 13, SET()},
    {"carveout 50", &nothing_function, 4, kAsk, 14, SET(v->sharedMemCarveout = 50)},
    {"carveout 101", &nothing_function, 4, kAsk, 14, SET(v->sharedMemCarveout = 101)},
    {"carveout -1", &nothing_function, 4, kAsk, 14, SET(v->sharedMemCarveout = ~0u)},
    {"nvlink scheduling 1", &nothing_function, 4, kAsk, 16, SET(v->pad[0] = 1)},
    {"nvlink scheduling 2", &nothing_function, 4, kAsk, 16, SET(v->pad[0] = 2)},
};

/// A launch with this result is what was expected.
static bool is_right(const Case& each, int launched, int clusters) {
    if (each.known == kClusters) {
        return (launched == 0) == (clusters != 0);
    }
    return each.known == kAsk || launched == each.known;
}

static CUlaunchAttribute attribute_of(const Case& each) {
    CUlaunchAttribute attribute = {};
    attribute.id = (CUlaunchAttributeID)each.id;
    each.set(&attribute.value);
    return attribute;
}

static int launch(const Case& each) {
    CUlaunchAttribute attribute = attribute_of(each);
    CUlaunchConfig config = {};
    config.gridDimX = each.grid, config.gridDimY = 1, config.gridDimZ = 1;
    config.blockDimX = each.function == &crowd_function ? 1024 : 32;
    config.blockDimY = 1, config.blockDimZ = 1;
    config.attrs = &attribute;
    config.numAttrs = each.id == kNone ? 0 : 1;
    return (int)launch_ex_(&config, *each.function, nullptr, nullptr);
}

struct NodeAnswer {
    int set, instantiated;
};

static NodeAnswer as_node(const Case& each) {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec = nullptr;
    OK(graph_create_(&graph, 0));
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = *each.function;
    params.gridDimX = each.grid, params.gridDimY = 1, params.gridDimZ = 1;
    params.blockDimX = each.function == &crowd_function ? 1024 : 32;
    params.blockDimY = 1, params.blockDimZ = 1;
    NodeAnswer answer = {(int)add_kernel_node_(&node, graph, nullptr, 0, &params), 0};
    const CUlaunchAttribute attribute = attribute_of(each);
    if (each.id != kNone && answer.set == 0) {
        answer.set = (int)set_attribute_(node, attribute.id, &attribute.value);
    }
    answer.instantiated = (int)instantiate_(&exec, graph, 0);
    if (exec != nullptr) {
        OK(exec_destroy_(exec));
    }
    OK(graph_destroy_(graph));
    return answer;
}

/// Attributes that a kernel node is given and asked for; the results are those of driver 580 on an
/// H100.
static int check_node(CUgraphNode node) {
    static const struct {
        int id, value, set, got;
    } kKnown[] = {{16, 1, 0, CUDA_ERROR_INVALID_VALUE},
                  {16, 2, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE},
                  {13, 0, 0, 0},
                  {5, 2, 0, 0},
                  {6, 1, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE},
                  {15, 0, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE},
                  {17, 0, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE}};
    int wrong = 0;
    for (const auto& known : kKnown) {
        CUlaunchAttributeValue value = {};
        value.pad[0] = (char)known.value;
        const int set = (int)set_attribute_(node, (CUlaunchAttributeID)known.id, &value);
        memset(&value, 0x55, sizeof value);
        const int got = (int)get_attribute_(node, (CUlaunchAttributeID)known.id, &value);
        if (set != known.set || got != known.got || (got == 0 && value.pad[0] != known.value)) {
            ++wrong;
            fprintf(stderr, "node attribute %d, value %d: set %d, got %d with %d\n", known.id,
                    known.value, set, got, value.pad[0]);
        }
    }
    return wrong;
}

int main(int argc, char** argv) {
    const bool print = argc > 1 && strcmp(argv[1], "--print") == 0;
    CHECK(cudaFree(nullptr));
    launch_ex_ = entry<decltype(launch_ex_)>("cuLaunchKernelEx", 12000);
    graph_create_ = entry<decltype(graph_create_)>("cuGraphCreate", 12000);
    graph_destroy_ = entry<decltype(graph_destroy_)>("cuGraphDestroy", 12000);
    add_kernel_node_ = entry<decltype(add_kernel_node_)>("cuGraphAddKernelNode", 12000);
    set_attribute_ = entry<decltype(set_attribute_)>("cuGraphKernelNodeSetAttribute", 12000);
    get_attribute_ = entry<decltype(get_attribute_)>("cuGraphKernelNodeGetAttribute", 12000);
    instantiate_ = entry<decltype(instantiate_)>("cuGraphInstantiateWithFlags", 12000);
    exec_destroy_ = entry<decltype(exec_destroy_)>("cuGraphExecDestroy", 12000);
    synchronize_ = entry<decltype(synchronize_)>("cuCtxSynchronize", 12000);
    CHECK(cudaGetFuncBySymbol(&nothing_function, (const void*)nothing));
    CHECK(cudaGetFuncBySymbol(&pairs_function, (const void*)in_pairs));
    CHECK(cudaGetFuncBySymbol(&crowd_function, (const void*)crowd));
    CHECK(cudaEventCreate(&timed));
    CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    int clusters = -1;
    CHECK(cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, 0));
    if (print) {
        printf("cluster launches: %d\n%-42s launch  waiting  node: set  instantiated\n", clusters,
               "");
    }
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    OK(graph_create_(&graph, 0));
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = nothing_function;
    params.gridDimX = 1, params.gridDimY = 1, params.gridDimZ = 1;
    params.blockDimX = 1, params.blockDimY = 1, params.blockDimZ = 1;
    OK(add_kernel_node_(&node, graph, nullptr, 0, &params));
    int wrong = check_node(node);
    OK(instantiate_(&exec, graph, 0));
    for (int half = 0; half < 2; ++half) {
        for (const Case& each : kCases) {
            const int launched = launch(each);
            const int again = launch(each);  // What was accepted before may not be asked again.
            const int late = (int)synchronize_();
            if (late != 0 || again != launched || !is_right(each, launched, clusters)) {
                ++wrong;
                fprintf(stderr, "%s: %d, expected %d; again %d, late %d\n", each.what, launched,
                        each.known, again, late);
            }
            if (print) {
                const NodeAnswer node = as_node(each);
                printf("%-42s %6d  %7d  %9d  %12d\n", each.what, launched, late, node.set,
                       node.instantiated);
                fflush(stdout);
            }
        }
        if (print) {
            return 0;
        }
        if (half == 0) {
            midpoint();
        }
    }
    wrong += check_node(node);
    EXPECT(wrong == 0);
    return pass("launch_attributes");
}
