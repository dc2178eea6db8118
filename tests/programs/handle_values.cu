// Trap: programs take handles for addresses of the driver's, and some keep marks of their own in
// the lowest bits: those of everything that a program makes are clear, and a handle is the same
// number for as long as its object lives.
#include "driver_entry.h"

enum { kEach = 5, kMarks = 0x7 };

__global__ void nothing() {}

static int g_wrong;

static void look(const char* what, const void* handle) {
    if (handle == nullptr || ((uintptr_t)handle & kMarks) != 0) {
        fprintf(stderr, "handle_values: a %s is called %p\n", what, handle);
        ++g_wrong;
    }
}

int main() {
    ENTRY(cuCtxGetCurrent, 12000);
    ENTRY(cuMemPoolCreate, 12000);
    ENTRY(cuDeviceGetDefaultMemPool, 12000);
    ENTRY(cuCtxCreate, 13000);
    ENTRY(cuCtxPopCurrent, 12000);
    cudaStream_t streams[kEach], prioritised;
    cudaEvent_t events[kEach];
    cudaGraph_t graph, captured;
    cudaGraphNode_t nodes[kEach], listed[2 * kEach];
    cudaGraphExec_t execs[kEach];
    cudaArray_t array;
    CUcontext context = nullptr, other = nullptr;
    CUmemoryPool pool = nullptr;
    cudaFunction_t function;
    CHECK(cudaFree(nullptr));
    for (int i = 0; i < kEach; ++i) {
        CHECK(cudaStreamCreate(&streams[i]));
        look("stream", streams[i]);
        CHECK(cudaEventCreate(&events[i]));
        look("event", events[i]);
    }
    CHECK(cudaStreamCreateWithPriority(&prioritised, cudaStreamNonBlocking, -1));
    look("stream with a priority", prioritised);
    OK(cuCtxGetCurrent_(&context));
    look("primary context", context);
    OK(cuCtxCreate_(&other, nullptr, 0, 0));
    look("context", other);
    OK(cuCtxPopCurrent_(&other));
    OK(cuDeviceGetDefaultMemPool_(&pool, 0));
    look("default pool", pool);
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    for (int i = 0; i < kEach; ++i) {
        OK(cuMemPoolCreate_(&pool, &props));
        look("pool", pool);
    }
    CHECK(cudaGetFuncBySymbol(&function, (const void*)nothing));
    look("function", function);
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    CHECK(cudaMallocArray(&array, &format, 16, 16));
    look("array", array);
    CHECK(cudaGraphCreate(&graph, 0));
    look("graph", graph);
    for (int i = 0; i < kEach; ++i) {
        CHECK(cudaGraphAddEmptyNode(&nodes[i], graph, nullptr, 0));
        look("node", nodes[i]);
        CHECK(cudaGraphInstantiate(&execs[i], graph, 0));
        look("executable graph", execs[i]);
    }
    // Nodes that a capture made are named when they are listed, all at once.
    CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < 2 * kEach; ++i) {
        nothing<<<1, 1, 0, streams[0]>>>();
    }
    CHECK(cudaStreamEndCapture(streams[0], &captured));
    look("captured graph", captured);
    size_t count = 2 * kEach;
    CHECK(cudaGraphGetNodes(captured, listed, &count));
    EXPECT(count == 2 * kEach);
    for (size_t i = 0; i < count; ++i) {
        look("captured node", listed[i]);
        for (size_t j = 0; j < i; ++j) {
            EXPECT(listed[i] != listed[j]);
        }
    }

    midpoint();

    cudaStream_t more;
    for (int i = 0; i < kEach; ++i) {
        CHECK(cudaEventRecord(events[i], streams[i]));
        CHECK(cudaGraphLaunch(execs[i], streams[i]));
        CHECK(cudaStreamSynchronize(streams[i]));
        CHECK(cudaEventSynchronize(events[i]));
    }
    cudaGraphNode_t again[2 * kEach];
    CHECK(cudaGraphGetNodes(captured, again, &count));
    EXPECT(memcmp(again, listed, sizeof again) == 0);
    CHECK(cudaStreamCreate(&more));
    look("later stream", more);
    EXPECT(g_wrong == 0);
    return pass("handle_values");
}
