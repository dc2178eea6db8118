// Trap: device function pointers and virtual tables stored in device memory.
#include <new>

#include "program.h"

typedef unsigned (*Operation)(unsigned, unsigned);

__device__ __noinline__ unsigned add(unsigned a, unsigned b) { return a + b; }
__device__ __noinline__ unsigned multiply(unsigned a, unsigned b) { return a * b; }
__device__ __noinline__ unsigned mix(unsigned a, unsigned b) { return (a << 1) ^ b; }

__device__ Operation operations[3];

struct Shape {
    __device__ virtual unsigned area() const = 0;
};
struct Square : Shape {
    unsigned side;
    __device__ explicit Square(unsigned s) : side(s) {}
    __device__ unsigned area() const override { return side * side; }
};
struct Strip : Shape {
    unsigned length;
    __device__ explicit Strip(unsigned l) : length(l) {}
    __device__ unsigned area() const override { return length * 2; }
};

__global__ void prepare(Shape** shapes, char* room) {
    operations[0] = add;
    operations[1] = multiply;
    operations[2] = mix;
    shapes[0] = new (room) Square(5);
    shapes[1] = new (room + 64) Strip(7);
}

__global__ void run(Shape** shapes, unsigned* out) {
    unsigned i = threadIdx.x;
    out[i] = operations[i % 3](i, 10) + shapes[i % 2]->area();
}

int main() {
    Shape** shapes = nullptr;
    char* room = nullptr;
    unsigned* out = nullptr;
    unsigned back[64];
    CHECK(cudaMalloc((void**)&shapes, 16));
    CHECK(cudaMalloc((void**)&room, 128));
    CHECK(cudaMalloc((void**)&out, sizeof back));
    prepare<<<1, 1>>>(shapes, room);
    CHECK(cudaDeviceSynchronize());
    midpoint();
    run<<<1, 64>>>(shapes, out);
    CHECK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < 64; ++i) {
        unsigned wanted = i % 3 == 0 ? i + 10 : i % 3 == 1 ? i * 10 : (i << 1) ^ 10;
        EXPECT(back[i] == wanted + (i % 2 == 0 ? 25u : 14u));
    }
    return pass("function_pointers");
}
