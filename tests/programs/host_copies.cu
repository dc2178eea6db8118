// Trap: a copy from host memory to host memory has ended when the call returns, whatever its name
// says of streams and devices: what the stream wrote before has come, and what the program writes
// next stays. Page-locked ends are no exception.
#include "driver_entry.h"

static const size_t kWidth = 1 << 12;
static const size_t kBytes = 1 << 18;
static const unsigned kTurns = 2000;
static const int kRounds = 6;

/// Writes `value` to all bytes, after a while.
__global__ void write_late(volatile unsigned char* bytes, size_t count, unsigned char value,
                           unsigned turns) {
    unsigned wasted = 1;
    for (unsigned i = 0; i < turns; ++i) {
        wasted = wasted * 1664525u + 1013904223u;
    }
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) {
        bytes[i] = (unsigned char)wasted;
        bytes[i] = value;
    }
}

static size_t others(const unsigned char* bytes, unsigned char value) {
    size_t found = 0;
    for (size_t i = 0; i < kBytes; ++i) {
        found += bytes[i] != value;
    }
    return found;
}

static const int kWays = 7;

static void copy(int way, unsigned char* to, unsigned char* from, unsigned char* to_on_device,
                 unsigned char* from_on_device, cudaStream_t stream) {
    const size_t rows = kBytes / kWidth;
    cudaMemcpy3DParms box = {};
    box.dstPtr = make_cudaPitchedPtr(to, kWidth, kWidth, rows);
    box.srcPtr = make_cudaPitchedPtr(from, kWidth, kWidth, rows);
    box.extent = make_cudaExtent(kWidth, rows, 1);
    box.kind = cudaMemcpyHostToHost;
    switch (way) {
        case 0: CHECK(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyHostToHost, stream)); return;
        case 1: CHECK(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault, stream)); return;
        case 2:
            CHECK(cudaMemcpy2DAsync(to, kWidth, from, kWidth, kWidth, rows, cudaMemcpyHostToHost,
                                    stream));
            return;
        case 3: CHECK(cudaMemcpy3DAsync(&box, stream)); return;
        case 6:
            CHECK(cudaMemcpy2DAsync(to_on_device, kWidth, from_on_device, kWidth, kWidth, rows,
                                    cudaMemcpyDeviceToDevice, stream));
            return;
        case 4:
            CHECK(cudaMemcpyAsync(to_on_device, from_on_device, kBytes, cudaMemcpyDeviceToDevice,
                                  stream));
            return;
        default: CHECK(cudaMemcpyPeerAsync(to_on_device, 0, from_on_device, 0, kBytes, stream));
    }
}

int main() {
    unsigned char* memory[4];
    unsigned char* on_device[4];
    CHECK(cudaMallocHost((void**)&memory[0], kBytes));
    CHECK(cudaMallocHost((void**)&memory[1], kBytes));
    memory[2] = (unsigned char*)aligned_alloc(4096, kBytes);
    CHECK(cudaHostRegister(memory[2], kBytes, cudaHostRegisterDefault));
    memory[3] = (unsigned char*)aligned_alloc(4096, kBytes);
    CHECK(cudaHostRegister(memory[3], kBytes, cudaHostRegisterDefault));
    for (int i = 0; i < 4; ++i) {
        CHECK(cudaHostGetDevicePointer((void**)&on_device[i], memory[i], 0));
    }
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned char value = 0;
    for (int round = 0; round < kRounds; ++round) {
        for (int way = 0; way < kWays; ++way) {
            const int from = (round + way) % 4;
            const int to = (from + 1 + round % 3) % 4;
            value = value % 200 + 2;
            memset(memory[to], 1, kBytes);
            write_late<<<1, 64, 0, stream>>>(on_device[from], kBytes, value, kTurns);
            CHECK(cudaGetLastError());
            copy(way, memory[to], memory[from], on_device[to], on_device[from], stream);
            EXPECT(others(memory[to], value) == 0);
            memset(memory[to], value + 1, kBytes);
            CHECK(cudaStreamSynchronize(stream));
            EXPECT(others(memory[to], (unsigned char)(value + 1)) == 0);
        }
        if (round == kRounds / 2) {
            midpoint();
        }
    }

    // Of a capture it is a part, and nothing has happened yet.
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    memset(memory[0], 3, kBytes);
    memset(memory[1], 4, kBytes);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemcpyAsync(memory[1], memory[0], kBytes, cudaMemcpyDefault, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    EXPECT(others(memory[1], 4) == 0);
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(others(memory[1], 3) == 0);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));

    CHECK(cudaStreamDestroy(stream));
    for (int i = 0; i < 4; ++i) {
        if (i < 2) {
            CHECK(cudaFreeHost(memory[i]));
        } else {
            CHECK(cudaHostUnregister(memory[i]));
            free(memory[i]);
        }
    }
    return pass("host_copies");
}
