// Trap: after fork the child cannot use CUDA; the parent must not notice.
#include <sys/wait.h>

#include "program.h"

__global__ void fill(unsigned* data, unsigned value) { data[threadIdx.x] = value; }

int main() {
    unsigned* device = nullptr;
    unsigned back[32];
    CHECK(cudaMalloc((void**)&device, sizeof back));
    fill<<<1, 32>>>(device, 7);
    CHECK(cudaDeviceSynchronize());
    midpoint();
    pid_t child = fork();
    if (child == 0) {
        void* more = nullptr;
        cudaError_t status = cudaMalloc(&more, 4096);
        _exit(status == cudaErrorInitializationError ? 0 : 1);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    fill<<<1, 32>>>(device, 9);
    CHECK(cudaMemcpy(back, device, sizeof back, cudaMemcpyDeviceToHost));
    EXPECT(back[0] == 9 && back[31] == 9);
    return pass("fork_child");
}
