// Trap: a captured graph with a fork and a join is replayed with its baked pointers after a move.
#include "program.h"

__global__ void add(unsigned* data, unsigned value) { data[threadIdx.x] += value; }
__global__ void join(unsigned* a, const unsigned* b) { a[threadIdx.x] ^= b[threadIdx.x] << 8; }

int main() {
    unsigned *a = nullptr, *b = nullptr;
    unsigned back[32];
    CHECK(cudaMalloc((void**)&a, sizeof back));
    CHECK(cudaMalloc((void**)&b, sizeof back));
    cudaStream_t main_stream, side;
    cudaEvent_t fork_event, join_event;
    CHECK(cudaStreamCreate(&main_stream));
    CHECK(cudaStreamCreate(&side));
    CHECK(cudaEventCreateWithFlags(&fork_event, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&join_event, cudaEventDisableTiming));
    CHECK(cudaStreamBeginCapture(main_stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemsetAsync(a, 0, sizeof back, main_stream));
    CHECK(cudaEventRecord(fork_event, main_stream));
    CHECK(cudaStreamWaitEvent(side, fork_event, 0));
    CHECK(cudaMemsetAsync(b, 0, sizeof back, side));
    add<<<1, 32, 0, side>>>(b, 3);
    add<<<1, 32, 0, main_stream>>>(a, 1);
    CHECK(cudaEventRecord(join_event, side));
    CHECK(cudaStreamWaitEvent(main_stream, join_event, 0));
    join<<<1, 32, 0, main_stream>>>(a, b);
    cudaStreamCaptureStatus status;
    CHECK(cudaStreamIsCapturing(side, &status));
    EXPECT(status == cudaStreamCaptureStatusActive);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamEndCapture(main_stream, &graph));
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT(nodes == 5);
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, main_stream));
    CHECK(cudaStreamSynchronize(main_stream));
    midpoint();
    CHECK(cudaMemset(a, 0xff, sizeof back));
    CHECK(cudaGraphLaunch(exec, main_stream));
    CHECK(cudaGraphLaunch(exec, main_stream));
    CHECK(cudaStreamSynchronize(main_stream));
    CHECK(cudaMemcpy(back, a, sizeof back, cudaMemcpyDeviceToHost));
    EXPECT(back[0] == 0x301 && back[31] == 0x301);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return pass("graph_capture");
}
