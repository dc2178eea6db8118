// Trap: parameter layouts with padding, structs, and more than 4 KiB in all.
#include "program.h"

struct Odd {
    char a;
    double b;
    short c[3];
};

struct Large {
    unsigned words[2000];
};

__global__ void pick(char first, Odd odd, short second, const __grid_constant__ Large large,
                     float third, double* out, unsigned index) {
    out[0] = first + odd.a + odd.b + odd.c[0] + odd.c[1] + odd.c[2] + second + third;
    out[1] = large.words[index] + large.words[1999];
}

int main() {
    double* out = nullptr;
    double back[2];
    CHECK(cudaMalloc((void**)&out, sizeof back));
    Odd odd = {1, 2.5, {3, 4, 5}};
    static Large large;
    for (unsigned i = 0; i < 2000; ++i) {
        large.words[i] = i * 3;
    }
    for (int half = 0; half < 2; ++half) {
        pick<<<1, 1>>>(7, odd, (short)-9, large, 0.25f, out, 1234);
        CHECK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
        EXPECT(back[0] == 7 + 1 + 2.5 + 12 - 9 + 0.25);
        EXPECT(back[1] == 1234 * 3 + 1999 * 3);
        if (half == 0) {
            midpoint();
        }
    }
    return pass("big_parameters");
}
