#include <utility>
#include <vector>

#include "driver_fixture.h"

namespace gantry::softgpu::test {
namespace {

class GraphTest : public DriverTest {
protected:
    void SetUp() override {
        DriverTest::SetUp();
        module_ = load();
        poke_ = function(module_, "poke");
        scale_ = function(module_, "scale");
        ASSERT_CU(cuMemAlloc_v2(&memory_, 4096));
        ASSERT_CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    }
    unsigned read(std::size_t index) {
        unsigned value = 0;
        EXPECT_CU(CUDA_SUCCESS, cuMemcpyDtoH_v2(&value, memory_ + 4 * index, 4));
        return value;
    }
    CUgraphNode add_poke(CUgraph graph, std::size_t index, unsigned value,
                         std::vector<CUgraphNode> needs) {
        CUdeviceptr p = memory_ + 4 * index;
        void* params[] = {&p, &value};
        CUDA_KERNEL_NODE_PARAMS_v1 node{};
        node.func = poke_;
        node.gridDimX = node.gridDimY = node.gridDimZ = 1;
        node.blockDimX = node.blockDimY = node.blockDimZ = 1;
        node.kernelParams = params;
        CUgraphNode made = nullptr;
        EXPECT_CU(CUDA_SUCCESS,
                  cuGraphAddKernelNode(&made, graph, needs.data(), needs.size(), &node));
        return made;
    }

    CUmodule module_ = nullptr;
    CUfunction poke_ = nullptr;
    CUfunction scale_ = nullptr;
    CUdeviceptr memory_ = 0;
    CUstream stream_ = nullptr;
};

TEST_F(GraphTest, BuiltGraphRunsInDependencyOrderAndReplays) {
    CUgraph graph = nullptr;
    ASSERT_CU(cuGraphCreate(&graph, 0));
    CUgraphNode first = add_poke(graph, 0, 4, {});
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = memory_;
    copy.dstDevice = memory_ + 4;
    copy.WidthInBytes = 4;
    copy.Height = copy.Depth = 1;
    CUgraphNode second = nullptr;
    ASSERT_CU(cuGraphAddMemcpyNode(&second, graph, &first, 1, &copy, context_));
    CUgraphNode third = add_poke(graph, 0, 8, {second});
    std::size_t count = 0;
    ASSERT_CU(cuGraphGetNodes(graph, nullptr, &count));
    EXPECT_EQ(count, 3U);
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; ++i) {
        ASSERT_CU(cuMemsetD32_v2(memory_, 0, 2));
        ASSERT_CU(cuCtxSynchronize());  // The fill is asynchronous and the stream not blocking.
        ASSERT_CU(cuGraphLaunch(exec, stream_));
        ASSERT_CU(cuStreamSynchronize(stream_));
        EXPECT_EQ(read(0), 8U);
        EXPECT_EQ(read(1), 4U);
    }

    // A changed parameter counts for later launches of the exec.
    CUDA_KERNEL_NODE_PARAMS_v1 params{};
    ASSERT_CU(cuGraphKernelNodeGetParams(third, &params));
    EXPECT_EQ(*static_cast<unsigned*>(params.kernelParams[1]), 8U);
    CUdeviceptr p = memory_ + 8;
    unsigned value = 99;
    void* changed[] = {&p, &value};
    params.kernelParams = changed;
    ASSERT_CU(cuGraphExecKernelNodeSetParams(exec, third, &params));
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read(0), 4U);
    EXPECT_EQ(read(2), 99U);

    // A cycle cannot be instantiated.
    ASSERT_CU(cuGraphAddDependencies(graph, &third, &first, 1));
    CUgraphExec never = nullptr;
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&never, graph, 0));
    ASSERT_CU(cuGraphExecDestroy(exec));
    ASSERT_CU(cuGraphDestroy(graph));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph));
}

TEST_F(GraphTest, ArgumentsShownStayValidWhileTheNodeChanges) {
    CUgraph graph = nullptr;
    ASSERT_CU(cuGraphCreate(&graph, 0));
    CUgraphNode node = add_poke(graph, 3, 4, {});
    CUDA_KERNEL_NODE_PARAMS_v1 params{};
    ASSERT_CU(cuGraphKernelNodeGetParams(node, &params));
    const auto shown_address = [&] { return *static_cast<CUdeviceptr*>(params.kernelParams[0]); };
    const auto shown_value = [&] { return *static_cast<unsigned*>(params.kernelParams[1]); };

    // Attributes change the node and not its arguments.
    CUlaunchAttributeValue priority{};
    priority.priority = -1;
    ASSERT_CU(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &priority));
    EXPECT_EQ(shown_address(), memory_ + 12);
    EXPECT_EQ(shown_value(), 4U);

    // As programs do token by token: one argument changes, the others are what was once shown.
    for (unsigned value = 10; value < 40; ++value) {
        void* const shown = std::exchange(params.kernelParams[1], &value);
        ASSERT_CU(cuGraphKernelNodeSetParams(node, &params));
        params.kernelParams[1] = shown;
        ASSERT_EQ(shown_address(), memory_ + 12);
        ASSERT_EQ(shown_value(), value);
    }

    // What is written there is the program's own until it is set.
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    *static_cast<unsigned*>(params.kernelParams[1]) = 77;
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read(3), 39U);
    ASSERT_CU(cuGraphExecKernelNodeSetParams(exec, node, &params));
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read(3), 77U);
    ASSERT_CU(cuGraphExecDestroy(exec));
    ASSERT_CU(cuGraphDestroy(graph));
}

TEST_F(GraphTest, ANodesAttributesCanBeCopiedToItself) {
    CUgraph graph = nullptr;
    ASSERT_CU(cuGraphCreate(&graph, 0));
    CUgraphNode node = add_poke(graph, 0, 4, {});
    CUlaunchAttributeValue value{};
    value.priority = -1;
    ASSERT_CU(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    value = {};
    value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
    ASSERT_CU(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
    value = {};
    value.cooperative = 1;
    ASSERT_CU(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
    for (int i = 0; i < 100; ++i) {
        ASSERT_CU(cuGraphKernelNodeCopyAttributes(node, node));
    }
    ASSERT_CU(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    EXPECT_EQ(value.priority, -1);
    ASSERT_CU(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
    EXPECT_EQ(value.memSyncDomain, CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
    ASSERT_CU(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
    EXPECT_EQ(value.cooperative, 1);
    ASSERT_CU(cuGraphDestroy(graph));
}

TEST_F(GraphTest, AChainOfManyNodesEnds) {
    CUgraph graph = nullptr;
    ASSERT_CU(cuGraphCreate(&graph, 0));
    CUgraphNode last = nullptr;
    for (int i = 0; i < 400'000; ++i) {
        CUgraphNode made = nullptr;
        ASSERT_CU(cuGraphAddEmptyNode(&made, graph, &last, last != nullptr ? 1 : 0));
        last = made;
    }
    ASSERT_CU(cuGraphDestroy(graph));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph));
}

TEST_F(GraphTest, CaptureForksJoinsAndReplays) {
    CUstream other = nullptr;
    CUevent fork = nullptr;
    CUevent join = nullptr;
    ASSERT_CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    ASSERT_CU(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    ASSERT_CU(cuMemsetD32_v2(memory_, 1, 64));
    ASSERT_CU(cuCtxSynchronize());
    ASSERT_CU(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ASSERT_CU(launch_scale(scale_, memory_, 3, 32, stream_));
    ASSERT_CU(cuEventRecord(fork, stream_));
    ASSERT_CU(cuStreamWaitEvent(other, fork, 0));
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    ASSERT_CU(cuStreamIsCapturing(other, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ASSERT_CU(launch_scale(scale_, memory_, 5, 16, other));
    ASSERT_CU(cuEventRecord(join, other));
    ASSERT_CU(cuStreamWaitEvent(stream_, join, 0));
    ASSERT_CU(launch_scale(scale_, memory_, 7, 8, stream_));
    // What was drawn in and has joined again may go before the capture ends.
    ASSERT_CU(cuStreamDestroy_v2(other));
    ASSERT_CU(cuEventDestroy_v2(fork));
    ASSERT_CU(cuEventDestroy_v2(join));
    CUgraph graph = nullptr;
    ASSERT_CU(cuStreamEndCapture(stream_, &graph));
    EXPECT_EQ(read(0), 1U);
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read(0), 105U * 105U);
    EXPECT_EQ(read(10), 15U * 15U);
    EXPECT_EQ(read(20), 9U);
}

TEST_F(GraphTest, CaptureRulesGiveTheirErrors) {
    EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
              cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUgraph graph = nullptr;
    ASSERT_CU(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUdeviceptr p = 0;
    EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc_v2(&p, 4));
    EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, launch_poke(poke_, memory_, 1, stream_));
    EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream_, &graph));

    // Relaxed captures forbid nothing; a fork that is not joined is an error.
    ASSERT_CU(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_CU(CUDA_SUCCESS, cuMemAlloc_v2(&p, 4));
    CUstream other = nullptr;
    CUevent fork = nullptr;
    ASSERT_CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    ASSERT_CU(cuEventRecord(fork, stream_));
    EXPECT_CU(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(fork));
    EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream_, &graph));
    ASSERT_CU(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_CU(cuEventRecord(fork, stream_));
    ASSERT_CU(cuStreamWaitEvent(other, fork, 0));
    ASSERT_CU(launch_poke(poke_, memory_, 1, other));
    ASSERT_CU(cuStreamDestroy_v2(other));
    EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream_, &graph));
    EXPECT_EQ(graph, nullptr);
}

TEST_F(GraphTest, UpdateRefusesAnotherShape) {
    CUgraph one = nullptr;
    CUgraph two = nullptr;
    ASSERT_CU(cuGraphCreate(&one, 0));
    ASSERT_CU(cuGraphCreate(&two, 0));
    add_poke(one, 0, 1, {});
    add_poke(two, 0, 2, {});
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuGraphInstantiateWithFlags(&exec, one, 0));
    CUgraphExecUpdateResultInfo info{};
    ASSERT_CU(cuGraphExecUpdate_v2(exec, two, &info));
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read(0), 2U);
    CUgraphNode empty = nullptr;
    ASSERT_CU(cuGraphAddEmptyNode(&empty, two, nullptr, 0));
    EXPECT_CU(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, two, &info));
    EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

TEST_F(GraphTest, ChildGraphsAndMemoryNodes) {
    CUgraph child = nullptr;
    CUgraph graph = nullptr;
    ASSERT_CU(cuGraphCreate(&child, 0));
    ASSERT_CU(cuGraphCreate(&graph, 0));
    add_poke(child, 3, 33, {});
    CUDA_MEM_ALLOC_NODE_PARAMS alloc{};
    alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    alloc.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    alloc.bytesize = 4096;
    CUgraphNode allocation = nullptr;
    ASSERT_CU(cuGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &alloc));
    ASSERT_NE(alloc.dptr, 0U);
    CUgraphNode inner = nullptr;
    ASSERT_CU(cuGraphAddChildGraphNode(&inner, graph, &allocation, 1, child));
    CUgraphNode release = nullptr;
    ASSERT_CU(cuGraphAddMemFreeNode(&release, graph, &inner, 1, alloc.dptr));
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read(3), 33U);
    cuuint64_t used = 1;
    ASSERT_CU(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
    EXPECT_EQ(used, 0U);
}

constexpr const char* kSetsConditions = R"(
.version 8.0
.target sm_75
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 c, .param .b32 v);
.visible .entry count_down(.param .u64 condition, .param .u64 left)
{
    .reg .pred %q;
    .reg .b32 %r<4>;
    .reg .b64 %d<3>;
    ld.param.u64 %d0, [condition];
    ld.param.u64 %d1, [left];
    ld.global.u32 %r0, [%d1];
    sub.u32 %r1, %r0, 1;
    st.global.u32 [%d1], %r1;
    setp.ne.u32 %q, %r1, 0;
    selp.u32 %r2, 1, 0, %q;
    {
    .param .b64 p0;
    .param .b32 p1;
    st.param.b64 [p0], %d0;
    st.param.b32 [p1], %r2;
    call.uni cudaGraphSetConditional, (p0, p1);
    }
    ret;
}
)";

TEST_F(GraphTest, AConditionIsGivenTheLowestNumberAndLoopsUntilAKernelSaysSo) {
    CUmodule module = nullptr;
    CUfunction count_down = nullptr;
    ASSERT_CU(cuModuleLoadData(&module, kSetsConditions));
    ASSERT_CU(cuModuleGetFunction(&count_down, module, "count_down"));
    CUgraph other = nullptr;
    CUgraph graph = nullptr;
    CUgraphConditionalHandle gone = 0;
    CUgraphConditionalHandle condition = 0;
    ASSERT_CU(cuGraphCreate(&other, 0));
    ASSERT_CU(cuGraphConditionalHandleCreate(&gone, other, context_, 0, 0));
    ASSERT_CU(cuGraphDestroy(other));
    ASSERT_CU(cuGraphCreate(&graph, 0));
    ASSERT_CU(cuGraphConditionalHandleCreate(&condition, graph, context_, 1,
                                             CU_GRAPH_COND_ASSIGN_DEFAULT));
    EXPECT_EQ(condition, gone);
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              cuGraphConditionalHandleCreate(&gone, graph, context_, 1, 2));

    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = condition;
    params.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
    params.conditional.size = 2;
    params.conditional.ctx = context_;
    CUgraphNode loop = nullptr;
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              cuGraphAddNode_v2(&loop, graph, nullptr, nullptr, 0, &params));
    params.conditional.size = 1;
    ASSERT_CU(cuGraphAddNode_v2(&loop, graph, nullptr, nullptr, 0, &params));
    CUdeviceptr left = memory_;
    void* arguments[] = {&condition, &left};
    CUDA_KERNEL_NODE_PARAMS_v2 kernel{};
    kernel.func = count_down;
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
    kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = arguments;
    CUgraphNode node = nullptr;
    ASSERT_CU(
        cuGraphAddKernelNode_v2(&node, params.conditional.phGraph_out[0], nullptr, 0, &kernel));
    CUgraph clone = nullptr;
    EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone(&clone, graph));

    CUgraphExec exec = nullptr;
    CUgraphExec second = nullptr;
    ASSERT_CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuGraphInstantiateWithFlags(&second, graph, 0));
    for (const unsigned rounds : {5U, 1U}) {
        ASSERT_CU(cuMemcpyHtoD_v2(memory_, &rounds, 4));
        ASSERT_CU(cuGraphLaunch(exec, stream_));
        ASSERT_CU(cuStreamSynchronize(stream_));
        EXPECT_EQ(read(0), 0U);
    }
    ASSERT_CU(cuGraphDestroy(graph));
    ASSERT_CU(cuGraphExecDestroy(exec));
}

}  // namespace
}  // namespace gantry::softgpu::test
