// Trap: an event of one process that another one opens, records and waits for. Two processes change
// the same bytes in turns, and only their streams wait for each other's events: the host waits for
// nothing between the turns. Each turn reads first and writes some milliseconds later, so that two
// turns at once lose one. The other process is this program again, started with its ends of two
// pipes. With PROGRAM_WITHOUT_WAITS=1 the streams do not wait, and the bytes must come out wrong.
#include <sys/wait.h>

#include "program.h"

enum { kWords = 4096, kThreads = 256, kTurns = 12 };

struct Message {
    cudaIpcMemHandle_t data;
    cudaIpcEventHandle_t down;  // Recorded by the giver, and by the taker once.
    cudaIpcEventHandle_t brief;
    cudaIpcEventHandle_t plain;  // Its event is gone when it is tried.
    unsigned seed;
};

__host__ __device__ static unsigned mixed(unsigned value, unsigned turn) {
    return (value ^ turn) * 1664525u + 1013904223u;
}

/// Reads, waits and writes.
__global__ void take_turn(unsigned* data, unsigned turn) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned value = *(volatile unsigned*)&data[i];
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < 4000000ull);
    data[i] = mixed(value, turn);
}

__global__ void hold_until(volatile unsigned* flag) {
    while (*flag == 0) {
    }
}

static bool g_waits = true;

static void write_all(int fd, const void* bytes, size_t count) {
    EXPECT(write(fd, bytes, count) == (ssize_t)count);
}

static void read_all(int fd, void* bytes, size_t count) {
    char* at = (char*)bytes;
    while (count != 0) {
        ssize_t got = read(fd, at, count);
        EXPECT(got > 0);
        at += got;
        count -= (size_t)got;
    }
}

static void say(int fd) { write_all(fd, "d", 1); }

static void hear(int fd) {
    char word;
    read_all(fd, &word, 1);
}

static cudaEvent_t shared_event() {
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    return event;
}

static void turn_on(cudaStream_t stream, unsigned* data, unsigned turn, cudaEvent_t behind,
                    cudaEvent_t done) {
    if (g_waits) {
        CHECK(cudaStreamWaitEvent(stream, behind, 0));
    }
    take_turn<<<kWords / kThreads, kThreads, 0, stream>>>(data, turn);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(done, stream));
}

/// What is wrong with a handle or an event natively, is here.
static void expect_errors(cudaEvent_t opened, cudaIpcEventHandle_t gone) {
    cudaEvent_t event, timed;
    cudaIpcEventHandle_t handle;
    float elapsed;
    EXPECT_STATUS(cudaEventElapsedTime(&elapsed, opened, opened), cudaErrorInvalidResourceHandle);
    EXPECT_STATUS(cudaEventCreateWithFlags(&event, cudaEventInterprocess), cudaErrorInvalidValue);
    CHECK(cudaEventCreateWithFlags(&timed, cudaEventDefault));
    EXPECT_STATUS(cudaIpcGetEventHandle(&handle, timed), cudaErrorInvalidResourceHandle);
    CHECK(cudaEventDestroy(timed));
    event = shared_event();
    CHECK(cudaIpcGetEventHandle(&handle, event));
    EXPECT_STATUS(cudaIpcOpenEventHandle(&timed, handle), cudaErrorDeviceUninitialized);
    CHECK(cudaEventDestroy(event));
    memset(&handle, 0x5a, sizeof handle);
    EXPECT(cudaIpcOpenEventHandle(&event, handle) != cudaSuccess);
    if (getenv("GANTRY_TRANSPORT") != nullptr) {  // Natively nothing is promised then.
        EXPECT(cudaIpcOpenEventHandle(&event, gone) != cudaSuccess);
    }
    cudaGetLastError();
}

static int take(int in, int out) {
    Message message;
    read_all(in, &message, sizeof message);
    unsigned* data;
    cudaStream_t stream;
    cudaEvent_t down, brief, up = shared_event();
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaIpcOpenMemHandle((void**)&data, message.data, cudaIpcMemLazyEnablePeerAccess));
    CHECK(cudaIpcOpenEventHandle(&down, message.down));
    CHECK(cudaIpcOpenEventHandle(&brief, message.brief));
    cudaIpcEventHandle_t handle;
    CHECK(cudaIpcGetEventHandle(&handle, up));
    write_all(out, &handle, sizeof handle);

    // Pending until the giver lets it end; and the stream goes on waiting when its event is gone.
    hear(in);
    EXPECT_STATUS(cudaEventQuery(down), cudaErrorNotReady);
    EXPECT_STATUS(cudaEventQuery(brief), cudaErrorNotReady);
    CHECK(cudaStreamWaitEvent(stream, brief, 0));
    CHECK(cudaEventDestroy(brief));
    EXPECT_STATUS(cudaStreamQuery(stream), cudaErrorNotReady);
    say(out);
    CHECK(cudaEventSynchronize(down));
    EXPECT_STATUS(cudaEventQuery(down), cudaSuccess);
    CHECK(cudaStreamSynchronize(stream));
    say(out);

    for (unsigned turn = 0; turn < kTurns; ++turn) {
        hear(in);
        turn_on(stream, data, message.seed + 2 * turn + 1, down, up);
        say(out);
    }
    // Either process may record it.
    hear(in);
    take_turn<<<kWords / kThreads, kThreads, 0, stream>>>(data, message.seed + 1000);
    CHECK(cudaEventRecord(down, stream));
    say(out);
    hear(in);  // The giver has waited for that, and has destroyed the plain one.
    expect_errors(down, message.plain);
    CHECK(cudaEventDestroy(down));
    CHECK(cudaEventDestroy(up));
    CHECK(cudaIpcCloseMemHandle(data));
    say(out);
    return 0;
}

/// The program again, with `in` and `out` for what take() reads and writes.
static pid_t start_taker(int* to, int* from) {
    int down[2], up[2];
    EXPECT(pipe(down) == 0 && pipe(up) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(down[1]);
        close(up[0]);
        char in[16], out[16];
        snprintf(in, sizeof in, "%d", down[0]);
        snprintf(out, sizeof out, "%d", up[1]);
        execl("/proc/self/exe", "ipc_events", in, out, (char*)nullptr);
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    *to = down[1];
    *from = up[0];
    return child;
}

static void expect_turns(const unsigned* data, unsigned seed) {
    static unsigned back[kWords];
    CHECK(cudaMemcpy(back, data, sizeof back, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < kWords; ++i) {
        unsigned value = i;
        for (unsigned turn = 0; turn < 2 * kTurns; ++turn) {
            value = mixed(value, seed + turn);
        }
        EXPECT(back[i] == mixed(value, seed + 1000));
    }
}

static void share_once(cudaEvent_t down, unsigned* data, unsigned seed, pid_t child, int to,
                       int from) {
    static unsigned first[kWords];
    for (unsigned i = 0; i < kWords; ++i) {
        first[i] = i;
    }
    CHECK(cudaMemcpy(data, first, sizeof first, cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaEvent_t up, brief = shared_event(), plain = shared_event();
    Message message;
    cudaIpcEventHandle_t again;
    CHECK(cudaIpcGetMemHandle(&message.data, data));
    CHECK(cudaIpcGetEventHandle(&message.down, down));
    CHECK(cudaIpcGetEventHandle(&message.brief, brief));
    CHECK(cudaIpcGetEventHandle(&message.plain, plain));
    CHECK(cudaIpcGetEventHandle(&again, down));
    EXPECT(memcmp(&again, &message.down, sizeof again) == 0);
    message.seed = seed;
    write_all(to, &message, sizeof message);
    read_all(from, &again, sizeof again);
    CHECK(cudaIpcOpenEventHandle(&up, again));
    EXPECT_STATUS(cudaEventQuery(up), cudaSuccess);  // Never recorded.

    volatile unsigned* flag;
    CHECK(cudaHostAlloc((void**)&flag, sizeof *flag, cudaHostAllocMapped));
    *flag = 0;
    hold_until<<<1, 1, 0, stream>>>(flag);
    CHECK(cudaEventRecord(down, stream));
    CHECK(cudaEventRecord(brief, stream));
    say(to);
    hear(from);
    EXPECT_STATUS(cudaEventQuery(down), cudaErrorNotReady);
    *flag = 1;
    CHECK(cudaEventSynchronize(brief));
    hear(from);
    if (getenv("PROGRAM_HOLDS") != nullptr) {
        midpoint();  // With the events open: nothing can be moved now.
    }

    for (unsigned turn = 0; turn < kTurns; ++turn) {
        turn_on(stream, data, seed + 2 * turn, up, down);
        say(to);
        hear(from);
    }
    CHECK(cudaEventSynchronize(up));
    CHECK(cudaStreamSynchronize(stream));
    say(to);
    hear(from);
    CHECK(cudaStreamWaitEvent(stream, down, 0));
    CHECK(cudaStreamSynchronize(stream));
    expect_turns(data, seed);
    CHECK(cudaEventDestroy(plain));
    say(to);
    hear(from);
    CHECK(cudaEventDestroy(up));
    CHECK(cudaEventDestroy(brief));
    CHECK(cudaFreeHost((void*)flag));
    CHECK(cudaStreamDestroy(stream));
    close(to);
    close(from);
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char** argv) {
    g_waits = getenv("PROGRAM_WITHOUT_WAITS") == nullptr;
    if (argc == 3) {
        return take(atoi(argv[1]), atoi(argv[2]));
    }
    int to, from;
    pid_t child = start_taker(&to, &from);
    unsigned* data;
    CHECK(cudaMalloc((void**)&data, kWords * sizeof(unsigned)));
    cudaEvent_t down = shared_event();
    share_once(down, data, 3, child, to, from);

    if (getenv("PROGRAM_HOLDS") == nullptr) {
        midpoint();  // They were shared; nobody has them open now.
    }

    expect_turns(data, 3);
    CHECK(cudaEventRecord(down, 0));
    CHECK(cudaEventSynchronize(down));
    EXPECT_STATUS(cudaEventQuery(down), cudaSuccess);
    // A process that comes now talks to the host that this one began on.
    if (getenv("PROGRAM_MOVES") == nullptr) {
        child = start_taker(&to, &from);
        share_once(down, data, 5, child, to, from);
    }
    CHECK(cudaEventDestroy(down));
    CHECK(cudaFree(data));
    return pass("ipc_events");
}
