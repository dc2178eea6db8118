// Trap: host callbacks run in the application, in stream order, on a normal-size stack.
#include "program.h"

__global__ void bump(unsigned* counter, const volatile unsigned* flag, unsigned wanted,
                     unsigned* wrong) {
    if (*flag != wanted) {
        ++*wrong;
    }
    ++*counter;
}

struct Call {
    volatile unsigned* flag;
    unsigned value;
};

static void CUDART_CB on_host(void* data) {
    volatile char locals[200 * 1024];
    locals[0] = 1;
    locals[sizeof locals - 1] = 2;
    Call* call = (Call*)data;
    *call->flag = call->value;
}

static unsigned callbacks_seen;

static void CUDART_CB on_stream(cudaStream_t, cudaError_t status, void* data) {
    if (status == cudaSuccess && data == (void*)0x1234) {
        ++callbacks_seen;
    }
}

int main() {
    const unsigned rounds = 500;
    unsigned *flag = nullptr, *words = nullptr;
    CHECK(cudaMallocHost((void**)&flag, 4096));
    CHECK(cudaMalloc((void**)&words, 8));
    CHECK(cudaMemset(words, 0, 8));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());
    Call* calls = (Call*)malloc(2 * rounds * sizeof(Call));
    for (unsigned i = 0; i < 2 * rounds; ++i) {
        calls[i].flag = flag;
        calls[i].value = i + 1;
        CHECK(cudaLaunchHostFunc(stream, on_host, &calls[i]));
        bump<<<1, 1, 0, stream>>>(words, flag, i + 1, words + 1);
        if (i == rounds) {
            CHECK(cudaStreamSynchronize(stream));
            midpoint();
        }
    }
    CHECK(cudaStreamAddCallback(stream, on_stream, (void*)0x1234, 0));
    CHECK(cudaStreamSynchronize(stream));
    unsigned back[2];
    CHECK(cudaMemcpy(back, words, 8, cudaMemcpyDeviceToHost));
    EXPECT(back[0] == 2 * rounds);
    EXPECT(back[1] == 0);
    EXPECT(callbacks_seen == 1);
    return pass("host_callbacks");
}
