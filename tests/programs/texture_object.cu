// Trap: a texture object's handle is a value that programs keep in device memory.
#include "program.h"

struct Scene {
    cudaTextureObject_t linear;
    cudaTextureObject_t image;
    cudaSurfaceObject_t surface;
};

__device__ Scene scene;

__global__ void sample(float* out, unsigned count) {
    unsigned i = threadIdx.x;
    if (i < count) {
        out[i] = tex1Dfetch<float>(scene.linear, (int)i) +
                 tex2D<float>(scene.image, (float)(i % 8) + 0.5f, (float)(i / 8) + 0.5f);
    }
}

__global__ void paint() {
    unsigned x = threadIdx.x, y = threadIdx.y;
    float value = 0;
    surf2Dread(&value, scene.surface, (int)(x * sizeof(float)), (int)y);
    surf2Dwrite(value + 1.0f, scene.surface, (int)(x * sizeof(float)), (int)y);
}

int main() {
    float host[64];
    for (int i = 0; i < 64; ++i) {
        host[i] = (float)i;
    }
    float *buffer = nullptr, *out = nullptr;
    CHECK(cudaMalloc((void**)&buffer, sizeof host));
    CHECK(cudaMalloc((void**)&out, sizeof host));
    CHECK(cudaMemcpy(buffer, host, sizeof host, cudaMemcpyHostToDevice));
    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    CHECK(cudaMallocArray(&array, &format, 8, 8, cudaArraySurfaceLoadStore));
    CHECK(cudaMemcpy2DToArray(array, 0, 0, host, 32, 32, 8, cudaMemcpyHostToDevice));

    Scene local;
    cudaResourceDesc resource;
    cudaTextureDesc texture;
    memset(&resource, 0, sizeof resource);
    memset(&texture, 0, sizeof texture);
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = buffer;
    resource.res.linear.desc = format;
    resource.res.linear.sizeInBytes = sizeof host;
    CHECK(cudaCreateTextureObject(&local.linear, &resource, &texture, nullptr));
    memset(&resource, 0, sizeof resource);
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    texture.addressMode[0] = texture.addressMode[1] = cudaAddressModeClamp;
    texture.filterMode = cudaFilterModePoint;
    CHECK(cudaCreateTextureObject(&local.image, &resource, &texture, nullptr));
    CHECK(cudaCreateSurfaceObject(&local.surface, &resource));
    CHECK(cudaMemcpyToSymbol(scene, &local, sizeof local));

    float back[64];
    for (int half = 0; half < 2; ++half) {
        sample<<<1, 64>>>(out, 64);
        CHECK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 64; ++i) {
            EXPECT(back[i] == 2 * host[i] + (float)half);
        }
        paint<<<1, dim3(8, 8)>>>();
        CHECK(cudaDeviceSynchronize());
        if (half == 0) {
            midpoint();
        }
    }
    CHECK(cudaMemcpy2DFromArray(back, 32, array, 0, 0, 32, 8, cudaMemcpyDeviceToHost));
    EXPECT(back[63] == 65.0f);
    CHECK(cudaDestroyTextureObject(local.image));
    CHECK(cudaDestroySurfaceObject(local.surface));
    CHECK(cudaFreeArray(array));
    return pass("texture_object");
}
