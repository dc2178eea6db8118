// A program that frees, allocates and fills buffers all the time and looks whether the others still
// hold what it put there. In every step it ends a library, an array, a texture, a stream and an
// event, too, and makes new ones, until it is told to end (told_to_end.h). Argument: buffers.
// Prints "step N" now and then, with a digest of what it did, which does not depend on where the
// buffers lay, and "PASS" at the end.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/programs/told_to_end.h"

__host__ __device__ unsigned mixed(unsigned i) {
    i = (i ^ (i >> 16)) * 0x7feb352du;
    i = (i ^ (i >> 15)) * 0x846ca68bu;
    return i ^ (i >> 16);
}

__global__ void fill(unsigned* words, unsigned count, unsigned seed) {
    const unsigned stride = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        words[i] = mixed(i + seed);
    }
}

__global__ void check(const unsigned* words, unsigned count, unsigned seed, unsigned* wrong) {
    const unsigned stride = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        if (words[i] != mixed(i + seed)) {
            atomicAdd(wrong, 1);
        }
    }
}

// Counts into a variable of its own: what it counted before must be there when it counts on.
const char kCounterPtx[] = R"(
.version 8.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counted;
.visible .entry count(.param .u64 out)
{
    .reg .u32 %r<3>;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u64 %rd3, counted;
    ld.global.u32 %r1, [%rd3];
    add.u32 %r2, %r1, 1;
    st.global.u32 [%rd3], %r2;
    st.global.u32 [%rd2], %r2;
    ret;
}
)";

__global__ void check_textures(cudaTextureObject_t of_memory, cudaTextureObject_t of_array,
                               unsigned count, unsigned seed, unsigned* wrong) {
    const unsigned i = threadIdx.x;
    if (i < count && (tex1Dfetch<unsigned>(of_memory, i) != mixed(i + seed) ||
                      tex2D<unsigned>(of_array, i + 0.5f, 0.5f) != mixed(i + seed))) {
        atomicAdd(wrong, 1);
    }
}

__global__ void check_count(const unsigned* counted, unsigned wanted, unsigned* wrong) {
    if (*counted != wanted) {
        atomicAdd(wrong, 1);
    }
}

struct Counter {
    cudaLibrary_t library = nullptr;
    unsigned counted = 0;
};

struct Buffer {
    unsigned* words = nullptr;
    unsigned count = 0;
    unsigned seed = 0;
};

#define MUST(call)                                                        \
    do {                                                                  \
        if (const cudaError_t error = (call); error != cudaSuccess) {     \
            printf("error: %s (%s)\n", cudaGetErrorString(error), #call); \
            return 2;                                                     \
        }                                                                 \
    } while (0)

/// One of the counters is unloaded and loaded again, another one counts on.
int count_on(std::vector<Counter>& counters, unsigned state, unsigned* out, unsigned* wrong) {
    Counter& fresh = counters[state % counters.size()];
    if (fresh.library != nullptr) {
        MUST(cudaLibraryUnload(fresh.library));
    }
    MUST(
        cudaLibraryLoadData(&fresh.library, kCounterPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    fresh.counted = 0;
    Counter& other = counters[state / 5 % counters.size()];
    if (other.library == nullptr) {
        return 0;
    }
    cudaKernel_t kernel = nullptr;
    MUST(cudaLibraryGetKernel(&kernel, other.library, "count"));
    void* arguments[] = {&out};
    MUST(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(1), dim3(1), arguments, 0,
                          nullptr));
    ++other.counted;
    check_count<<<1, 1>>>(out, other.counted, wrong);
    return 0;
}

struct Reader {
    cudaStream_t stream = nullptr;
    cudaArray_t array = nullptr;
    cudaTextureObject_t of_memory = 0;
    cudaTextureObject_t of_array = 0;
};

/// Reads the buffer's first words through textures of it and of an array, in a stream of its own
/// behind an event.
int read_through_textures(const Buffer& buffer, Reader& reader, unsigned* wrong) {
    constexpr unsigned kWords = 256;
    if (reader.stream != nullptr) {
        MUST(cudaStreamSynchronize(reader.stream));
        MUST(cudaDestroyTextureObject(reader.of_memory));
        MUST(cudaDestroyTextureObject(reader.of_array));
        MUST(cudaFreeArray(reader.array));
        MUST(cudaStreamDestroy(reader.stream));
    }
    MUST(cudaStreamCreateWithFlags(&reader.stream, cudaStreamNonBlocking));
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned>();
    MUST(cudaMallocArray(&reader.array, &format, kWords, 1));
    MUST(cudaMemcpy2DToArray(reader.array, 0, 0, buffer.words, kWords * sizeof(unsigned),
                             kWords * sizeof(unsigned), 1, cudaMemcpyDeviceToDevice));
    cudaResourceDesc resource{};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = buffer.words;
    resource.res.linear.desc = format;
    resource.res.linear.sizeInBytes = kWords * sizeof(unsigned);
    cudaTextureDesc how{};
    how.readMode = cudaReadModeElementType;
    MUST(cudaCreateTextureObject(&reader.of_memory, &resource, &how, nullptr));
    cudaResourceDesc array{};
    array.resType = cudaResourceTypeArray;
    array.res.array.array = reader.array;
    MUST(cudaCreateTextureObject(&reader.of_array, &array, &how, nullptr));
    cudaEvent_t filled = nullptr;
    MUST(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));
    MUST(cudaEventRecord(filled, nullptr));
    MUST(cudaStreamWaitEvent(reader.stream, filled, 0));
    check_textures<<<1, kWords, 0, reader.stream>>>(reader.of_memory, reader.of_array, buffer.count,
                                                    buffer.seed, wrong);
    MUST(cudaEventDestroy(filled));
    return 0;
}

int main(int argc, char** argv) {
    std::vector<Buffer> buffers(argc > 1 ? atoi(argv[1]) : 8);
    std::vector<Counter> counters(4);
    Reader reader;
    unsigned* counted = nullptr;
    unsigned* wrong = nullptr;
    MUST(cudaMalloc(&counted, sizeof(*counted)));
    MUST(cudaMalloc(&wrong, sizeof(*wrong)));
    MUST(cudaMemset(wrong, 0, sizeof(*wrong)));
    unsigned state = 1;
    unsigned digest = 0;
    for (unsigned step = 0; !told_to_end(); ++step) {
        state = mixed(state + step);
        Buffer& fresh = buffers[state % buffers.size()];
        if (fresh.words != nullptr) {
            MUST(cudaFree(fresh.words));
        }
        // From a small one in a shared granule to 6 MiB. The same seed comes again: the bytes of
        // another buffer than before, or of this one, may be what they were.
        fresh.count = state % 5 == 0 ? 1000 + state % 5000 : 262144 + state % (5 * 262144);
        fresh.seed = state / 64 % 3;
        MUST(cudaMalloc(&fresh.words, fresh.count * sizeof(unsigned)));
        fill<<<16, 128>>>(fresh.words, fresh.count, fresh.seed);
        const Buffer& other = buffers[state / 7 % buffers.size()];
        if (other.words != nullptr) {
            check<<<16, 128>>>(other.words, other.count, other.seed, wrong);
        }
        if (read_through_textures(fresh, reader, wrong) != 0 ||
            count_on(counters, state, counted, wrong) != 0) {
            return 2;
        }
        digest = mixed(digest ^ state);
        if (step % 10 == 0) {
            MUST(cudaDeviceSynchronize());
            printf("step %u %08x\n", step, digest);
            fflush(stdout);
        }
    }
    for (const Buffer& each : buffers) {
        if (each.words != nullptr) {
            check<<<16, 128>>>(each.words, each.count, each.seed, wrong);
        }
    }
    unsigned found = 0;
    MUST(cudaMemcpy(&found, wrong, sizeof(found), cudaMemcpyDeviceToHost));
    printf(found == 0 ? "PASS churn\n" : "%u words are wrong\n", found);
    return found == 0 ? 0 : 1;
}
