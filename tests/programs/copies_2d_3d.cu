// Trap: pitched and three-dimensional copies with offsets, and the memsets.
#include "program.h"

int main() {
    const size_t width = 100, height = 37, depth = 5;
    size_t pitch = 0;
    unsigned char* image = nullptr;
    CHECK(cudaMallocPitch((void**)&image, &pitch, width, height));
    EXPECT(pitch >= width && pitch % 32 == 0);
    static unsigned char host[100 * 37], back[100 * 37];
    for (size_t i = 0; i < sizeof host; ++i) {
        host[i] = (unsigned char)(i * 11);
    }
    CHECK(cudaMemset2D(image, pitch, 0x5a, width, height));
    CHECK(cudaMemcpy2D(image + pitch * 2 + 10, pitch, host + 10, width, 50, 20,
                       cudaMemcpyHostToDevice));
    midpoint();
    CHECK(cudaMemcpy2D(back, width, image, pitch, width, height, cudaMemcpyDeviceToHost));
    for (size_t y = 0; y < height; ++y) {
        for (size_t x = 0; x < width; ++x) {
            bool inside = y >= 2 && y < 22 && x >= 10 && x < 60;
            EXPECT(back[y * width + x] == (inside ? host[(y - 2) * width + x] : 0x5a));
        }
    }
    cudaPitchedPtr volume;
    CHECK(cudaMalloc3D(&volume, make_cudaExtent(width, height, depth)));
    static unsigned char block[100 * 37 * 5], block_back[100 * 37 * 5];
    for (size_t i = 0; i < sizeof block; ++i) {
        block[i] = (unsigned char)(i >> 2);
    }
    cudaMemcpy3DParms copy;
    memset(&copy, 0, sizeof copy);
    copy.srcPtr = make_cudaPitchedPtr(block, width, width, height);
    copy.dstPtr = volume;
    copy.extent = make_cudaExtent(width, height, depth);
    copy.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&copy));
    copy.srcPtr = volume;
    copy.dstPtr = make_cudaPitchedPtr(block_back, width, width, height);
    copy.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3D(&copy));
    EXPECT(memcmp(block, block_back, sizeof block) == 0);
    unsigned* words = nullptr;
    unsigned words_back[8];
    CHECK(cudaMalloc((void**)&words, 32));
    CHECK(cudaMemsetAsync(words, 0x7f, 32, nullptr));
    CHECK(cudaMemset((char*)words + 5, 1, 3));
    CHECK(cudaMemcpy(words_back, words, 32, cudaMemcpyDeviceToHost));
    EXPECT(words_back[0] == 0x7f7f7f7f && words_back[1] == 0x0101017f);
    return pass("copies_2d_3d");
}
