#include "host-daemon/execution/device/launch_graphs.h"

#include "host-daemon/execution/base/log.h"

namespace gantry::worker {
namespace {

constexpr char kEmptyPtx[] = R"ptx(
.version 7.0
.target sm_75
.address_size 64
.visible .entry gantry_empty()
{
    ret;
}
)ptx";

CUDA_KERNEL_NODE_PARAMS one_thread(CUfunction function) {
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = function;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    return params;
}

}  // namespace

LaunchGraphs::LaunchGraphs(const driver::DriverApi& api) : api_(api) {
    if (api.cuGraphCreate == nullptr || api.cuGraphAddKernelNode_v2 == nullptr ||
        api.cuGraphInstantiateWithFlags == nullptr || api.cuGraphLaunch == nullptr ||
        api.cuGraphExecKernelNodeSetParams_v2 == nullptr || api.cuGraphExecDestroy == nullptr ||
        api.cuGraphDestroy == nullptr) {
        return;
    }
    if (const CUresult result = api.cuModuleLoadData(&module_, kEmptyPtx);
        result != CUDA_SUCCESS ||
        api.cuModuleGetFunction(&empty_, module_, "gantry_empty") != CUDA_SUCCESS) {
        log_line("launches go to the driver one by one: it does not load an empty kernel (%d)",
                 static_cast<int>(result));
        return;
    }
    while (count_ < kGraphs && make(&graphs_[count_], kernels_of(count_))) {
        ++count_;
    }
}

LaunchGraphs::~LaunchGraphs() {
    for (std::size_t i = 0; i < count_; ++i) {
        end(graphs_[i]);
    }
    if (module_ != nullptr) {
        api_.cuModuleUnload(module_);
    }
}

bool LaunchGraphs::make(Graph* graph, std::size_t kernels) {
    CUresult result = api_.cuGraphCreate(&graph->graph, 0);
    const CUDA_KERNEL_NODE_PARAMS params = one_thread(empty_);
    for (std::size_t i = 0; i < kernels && result == CUDA_SUCCESS; ++i) {
        const CUgraphNode* before = i == 0 ? nullptr : &graph->nodes[i - 1];
        result = api_.cuGraphAddKernelNode_v2(&graph->nodes[i], graph->graph, before,
                                              i == 0 ? 0 : 1, &params);
    }
    if (result == CUDA_SUCCESS) {
        result = api_.cuGraphInstantiateWithFlags(&graph->exec, graph->graph, 0);
    }
    if (result != CUDA_SUCCESS) {
        log_line("%zu graphs for launches instead of %zu: the driver says %d", count_, kGraphs,
                 static_cast<int>(result));
        end(*graph);
        *graph = {};
    }
    return result == CUDA_SUCCESS;
}

void LaunchGraphs::end(const Graph& graph) {
    if (graph.exec != nullptr) {
        api_.cuGraphExecDestroy(graph.exec);
    }
    if (graph.graph != nullptr) {
        api_.cuGraphDestroy(graph.graph);
    }
}

CUresult LaunchGraphs::clear(std::size_t graph, std::size_t kernel) {
    const CUDA_KERNEL_NODE_PARAMS params = one_thread(empty_);
    return set(graph, kernel, params);
}

}  // namespace gantry::worker
