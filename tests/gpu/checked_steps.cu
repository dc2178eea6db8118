// A program whose every step checks the one before: it can be moved, and have bad neighbours, and
// says how long each step took. Ends after SECONDS, or when it is told to (told_to_end.h).
//   checked_steps RESIDENT_MIB CHANGING_MIB WORK SECONDS
// RESIDENT_MIB are filled once with what no codec can spare, and checked at the end. A step brings
// a number to the device, looks whether each word of CHANGING_MIB is what the last step's number
// says, writes what this one's says (WORK rounds of arithmetic a word, by several launches), and
// reads back how many words were looked at and how many were wrong. Prints `ready`, then a line
// `step N END_NS DURATION_US` each (CLOCK_MONOTONIC), and last `PASS N`.
#include <time.h>

#include "tests/programs/program.h"
#include "tests/programs/told_to_end.h"

enum { kSlices = 16, kBlocksMost = 1024, kThreads = 256 };

typedef unsigned long long Word;

struct Found {
    Word looked_at;
    Word wrong;
};

__device__ Word mixed(Word x, int rounds) {
    for (int i = 0; i < rounds; ++i) {
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        x ^= x >> 31;
    }
    return x;
}

__global__ void fill(Word* words, size_t count, Word salt, int rounds) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        words[i] = mixed(i + salt, rounds);
    }
}

/// `salts`: the last step's number and this one's. Null `next` only looks.
__global__ void look(const Word* words, Word* next, size_t first, size_t end, const Word* salts,
                     int rounds, Found* found) {
    Word looked_at = 0, wrong = 0;
    for (size_t i = first + blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < end;
         i += (size_t)gridDim.x * blockDim.x) {
        ++looked_at;
        wrong += words[i] != mixed(i + salts[0], rounds);
        if (next != nullptr) {
            next[i] = mixed(i + salts[1], rounds);
        }
    }
    atomicAdd(&found->looked_at, looked_at);
    atomicAdd(&found->wrong, wrong);
}

static Word now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (Word)now.tv_sec * 1000000000ull + (Word)now.tv_nsec;
}

static Word salt_of(Word step) { return step * 0x9e3779b97f4a7c15ull; }

struct Job {
    cudaStream_t stream;
    Word *changing, *salts, *host_salts;
    Found *found, *host_found;
    size_t count;
    int rounds;
    unsigned blocks;  // Of a slice.
};

/// Ends the program when a word of `words` is not what `salts` says.
static void read_back(const Job& job, size_t expected, const char* what, Word step) {
    CHECK(cudaMemcpyAsync(job.host_found, job.found, sizeof(Found), cudaMemcpyDeviceToHost,
                          job.stream));
    CHECK(cudaStreamSynchronize(job.stream));
    if (job.host_found->looked_at != expected || job.host_found->wrong != 0) {
        printf("WRONG %s at step %llu: %llu words looked at of %zu, %llu wrong\n", what, step,
               job.host_found->looked_at, expected, job.host_found->wrong);
        exit(3);
    }
}

static void do_step(const Job& job, Word step) {
    job.host_salts[0] = salt_of(step);
    job.host_salts[1] = salt_of(step + 1);
    CHECK(cudaMemcpyAsync(job.salts, job.host_salts, 2 * sizeof(Word), cudaMemcpyHostToDevice,
                          job.stream));
    CHECK(cudaMemsetAsync(job.found, 0, sizeof(Found), job.stream));
    for (int slice = 0; slice < kSlices; ++slice) {
        look<<<job.blocks, kThreads, 0, job.stream>>>(
            job.changing, job.changing, job.count * slice / kSlices,
            job.count * (slice + 1) / kSlices, job.salts, job.rounds, job.found);
    }
    CHECK(cudaGetLastError());
    read_back(job, job.count, "result", step);
}

int main(int argc, char** argv) {
    EXPECT(argc == 5);
    const size_t resident_count = strtoul(argv[1], nullptr, 10) * 131072;
    const double seconds = atof(argv[4]);
    Job job = {};
    job.count = strtoul(argv[2], nullptr, 10) * 131072;
    job.rounds = atoi(argv[3]);
    const size_t needed = job.count / kSlices / kThreads;
    job.blocks = (unsigned)(needed < 1 ? 1 : needed > kBlocksMost ? kBlocksMost : needed);
    Word* resident = nullptr;
    CHECK(cudaStreamCreateWithFlags(&job.stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc((void**)&job.changing, job.count * sizeof(Word)));
    CHECK(cudaMalloc((void**)&job.salts, 2 * sizeof(Word)));
    CHECK(cudaMalloc((void**)&job.found, sizeof(Found)));
    CHECK(cudaMallocHost((void**)&job.host_salts, 2 * sizeof(Word)));
    CHECK(cudaMallocHost((void**)&job.host_found, sizeof(Found)));
    fill<<<job.blocks, kThreads, 0, job.stream>>>(job.changing, job.count, salt_of(0), job.rounds);
    if (resident_count != 0) {
        CHECK(cudaMalloc((void**)&resident, resident_count * sizeof(Word)));
        fill<<<kBlocksMost, kThreads, 0, job.stream>>>(resident, resident_count, 1, 1);
    }
    CHECK(cudaStreamSynchronize(job.stream));
    printf("ready\n");
    fflush(stdout);
    const Word begin = now_ns();
    Word step = 0;
    for (Word last = begin; !told_to_end() && (double)(last - begin) < seconds * 1e9; ++step) {
        do_step(job, step);
        const Word end = now_ns();
        printf("step %llu %llu %.1f\n", step, end, (double)(end - last) / 1000);
        fflush(stdout);
        last = end;
    }
    if (resident_count != 0) {
        const Word salts[2] = {1, 0};
        CHECK(cudaMemcpy(job.salts, salts, sizeof(salts), cudaMemcpyHostToDevice));
        CHECK(cudaMemset(job.found, 0, sizeof(Found)));
        CHECK(cudaDeviceSynchronize());
        look<<<kBlocksMost, kThreads, 0, job.stream>>>(resident, nullptr, 0, resident_count,
                                                       job.salts, 1, job.found);
        read_back(job, resident_count, "resident memory", step);
    }
    printf("PASS %llu\n", step);
    return 0;
}
