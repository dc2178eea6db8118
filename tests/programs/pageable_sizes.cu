// Trap: pageable copies of all sizes and offsets, from several threads at once, keep their order
// with the kernels of their streams, and a source may change as soon as the call has returned.
#include <thread>
#include <vector>

#include "program.h"

// So many bytes from one that the kernel changes to the next: no cache line, and so no piece that
// anybody copies by itself, is left out, and an emulated GPU has not a hundred million to change.
const size_t kStride = 61;

__global__ void add_one(unsigned char* data, size_t bytes) {
    size_t at = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * kStride;
    for (; at < bytes; at += (size_t)gridDim.x * blockDim.x * kStride) {
        data[at] += 1;
    }
}

static void fill(std::vector<unsigned char>& bytes, unsigned seed) {
    unsigned value = seed * 2654435761u + 1;
    for (unsigned char& byte : bytes) {
        value = value * 1664525u + 1013904223u;
        byte = (unsigned char)(value >> 24);
    }
}

// There, a kernel, and back; the source is overwritten meanwhile.
static bool goes_round(size_t bytes, size_t host_offset, size_t device_offset, cudaStream_t stream,
                       bool blocking, unsigned seed) {
    std::vector<unsigned char> source(bytes + host_offset), wanted, back(bytes + host_offset, 0x5a);
    fill(source, seed);
    wanted = source;
    memset(wanted.data(), 0x5a, host_offset);
    for (size_t at = host_offset; at < wanted.size(); at += kStride) {
        wanted[at] += 1;
    }
    unsigned char* device = nullptr;
    CHECK(cudaMalloc((void**)&device, bytes + device_offset + 1));
    unsigned char* to = device + device_offset;
    if (blocking) {
        CHECK(cudaMemcpy(to, source.data() + host_offset, bytes, cudaMemcpyHostToDevice));
    } else {
        CHECK(cudaMemcpyAsync(to, source.data() + host_offset, bytes, cudaMemcpyHostToDevice,
                              stream));
    }
    memset(source.data(), 0xee, source.size());
    add_one<<<16, 128, 0, stream>>>(to, bytes);
    if (blocking) {
        CHECK(cudaMemcpy(back.data() + host_offset, to, bytes, cudaMemcpyDeviceToHost));
    } else {
        CHECK(
            cudaMemcpyAsync(back.data() + host_offset, to, bytes, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
    }
    CHECK(cudaFree(device));
    return back == wanted;
}

static void one_thread(unsigned thread, bool* good) {
    const size_t sizes[] = {1,       4096,    16383,          16384,     65536,        65537,
                            200'001, 1 << 20, (1 << 20) + 17, 5'000'003, (9 << 20) + 1};
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    unsigned seed = thread;
    for (size_t bytes : sizes) {
        const size_t host_offset = (bytes * 7 + thread) % 61, device_offset = bytes % 5;
        *good = *good && goes_round(bytes, host_offset, device_offset, stream, false, ++seed) &&
                goes_round(bytes, host_offset, device_offset, 0, true, ++seed);
    }
    CHECK(cudaStreamDestroy(stream));
}

// Many copies wait behind a long kernel: none of them may be lost, nor wait for it. Natively a call
// waits for what is ahead once 4 MiB wait there (driver 580 on an H100: 69 copies of 60,000 bytes
// or 986 of 4096 go through), and at once when its bytes are more than 64 KiB.
__global__ void spin(volatile unsigned* go, unsigned* seen) {
    while (*go == 0) {
    }
    *seen = *go;
}

static void many_behind_a_kernel() {
    const size_t count = 60, bytes = 60000;
    unsigned *go = nullptr, *seen = nullptr;
    unsigned char* device = nullptr;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMallocHost((void**)&go, 4096));
    CHECK(cudaMalloc((void**)&seen, 4));
    CHECK(cudaMalloc((void**)&device, count * bytes));
    *go = 0;
    spin<<<1, 1, 0, stream>>>(go, seen);
    std::vector<unsigned char> source(bytes), back(bytes);
    for (size_t i = 0; i < count; ++i) {
        fill(source, (unsigned)i);
        CHECK(cudaMemcpyAsync(device + i * bytes, source.data(), bytes, cudaMemcpyHostToDevice,
                              stream));
    }
    memset(source.data(), 0, bytes);
    *(volatile unsigned*)go = 1;
    for (size_t i = 0; i < count; ++i) {
        CHECK(cudaMemcpyAsync(back.data(), device + i * bytes, bytes, cudaMemcpyDeviceToHost,
                              stream));
        CHECK(cudaStreamSynchronize(stream));
        fill(source, (unsigned)i);
        EXPECT(back == source);
    }
    CHECK(cudaFree(device));
    CHECK(cudaFree(seen));
    CHECK(cudaFreeHost(go));
    CHECK(cudaStreamDestroy(stream));
}

int main() {
    for (int half = 0; half < 2; ++half) {
        bool good[4] = {true, true, true, true};
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < 4; ++i) {
            threads.emplace_back(one_thread, i * 100 + (unsigned)half, &good[i]);
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        for (bool one : good) {
            EXPECT(one);
        }
        many_behind_a_kernel();
        if (half == 0) {
            midpoint();
        }
    }
    return pass("pageable_sizes");
}
