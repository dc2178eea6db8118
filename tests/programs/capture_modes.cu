// Trap: while a stream is captured, some calls are forbidden to some threads, by the mode of the
// capture and of the thread. Such a call says so itself and the capture is lost; any other call
// works and the capture goes on. The answers are those of driver 580 on an H200;
// `capture_modes --print` shows this machine's.
#include "driver_entry.h"

#include <pthread.h>

__global__ void nothing() {}

// What calls need; made anew for each.
static struct {
    CUstream captured;   // Blocking or not, as the setting says.
    CUstream other;      // Another stream, which is not captured.
    CUevent event;       // Recorded before the capture began.
    CUevent inside;      // Recorded inside it.
    CUevent spare;       // Never recorded.
    CUdeviceptr memory;  // 4 KiB, one of two.
    CUdeviceptr more;
    void* pinned;  // 4 KiB, one of two.
    void* more_pinned;
    void* pages;  // Not page-locked.
    CUgraphExec graph;
    CUmemoryPool pool;
} it;

// clang-format off
#define CALLS(X)                                                                          \
    X(cuMemAlloc, 12000) X(cuMemFree, 12000) X(cuMemAllocPitch, 12000)                    \
    X(cuMemHostAlloc, 12000) X(cuMemFreeHost, 12000) X(cuMemHostRegister, 12000)          \
    X(cuMemHostUnregister, 12000) X(cuMemGetInfo, 12000) X(cuMemAllocAsync, 12000)        \
    X(cuMemFreeAsync, 12000) X(cuMemPoolCreate, 12000) X(cuMemPoolDestroy, 12000)         \
    X(cuMemPoolTrimTo, 12000) X(cuMemcpyHtoD, 12000) X(cuMemcpyDtoH, 12000)               \
    X(cuMemcpyDtoD, 12000) X(cuMemcpyHtoDAsync, 12000) X(cuMemcpyDtoHAsync, 12000)        \
    X(cuMemsetD8, 12000) X(cuMemsetD8Async, 12000) X(cuCtxSynchronize, 12000)             \
    X(cuStreamSynchronize, 12000) X(cuStreamQuery, 12000) X(cuStreamCreate, 12000)        \
    X(cuStreamDestroy, 12000) X(cuStreamWaitEvent, 12000) X(cuEventCreate, 12000)         \
    X(cuEventDestroy, 12000) X(cuEventQuery, 12000) X(cuEventSynchronize, 12000)          \
    X(cuEventRecord, 12000) X(cuEventElapsedTime, 12000) X(cuGraphLaunch, 12000)          \
    X(cuGraphInstantiateWithFlags, 12000) X(cuGraphCreate, 12000) X(cuGraphDestroy, 12000) \
    X(cuGraphExecDestroy, 12000) X(cuStreamBeginCapture, 12000)                           \
    X(cuStreamEndCapture, 12000) X(cuStreamIsCapturing, 12000)                            \
    X(cuThreadExchangeStreamCaptureMode, 12000) X(cuCtxGetLimit, 12000)                   \
    X(cuCtxSetLimit, 12000) X(cuPointerGetAttribute, 12000) X(cuCtxGetCurrent, 12000)     \
    X(cuCtxSetCurrent, 12000) X(cuStreamGetFlags, 12000) X(cuStreamGetId, 12000)          \
    X(cuStreamGetDevice, 12080) X(cuStreamGetPriority, 12000) X(cuStreamGetCtx, 12000)    \
    X(cuLaunchHostFunc, 12000)
// clang-format on
#define DECLARE(name, version) static decltype(&name) name##_;
CALLS(DECLARE)

/// What is known of a call; else it is a number: its error always, and the capture is lost.
enum {
    kAsk = -1,     ///< Nothing: printed only.
    kSafe = 0,     ///< It works and the capture goes on.
    kUnsafe = -2,  ///< Forbidden where the modes say so.
    kLegacy = -3,  ///< Forbidden while a blocking stream is captured.
    kBoth = -4,    ///< Either.
    kKept = -5,    ///< CUDA_ERROR_CAPTURED_EVENT, and the capture goes on.
};

struct Case {
    const char* what;
    int (*call)();
    int known;
};

static CUdeviceptr got, attribute;
static CUstream got_stream;
static CUevent got_event;
static unsigned got_flags;
static unsigned long long got_id;
static CUdevice got_device;
static int got_priority;
static CUgraph got_graph;
static CUmemoryPool got_pool;
static void* got_host;
static size_t got_size, got_total;
static float got_ms;

static void CUDA_CB called(void*) {}

static int new_pool() {
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return cuMemPoolCreate_(&got_pool, &props);
}

static int instantiate() {
    CUgraph graph;
    CUgraphExec exec;
    const int made = cuGraphCreate_(&graph, 0);
    if (made != 0) {
        return made;
    }
    const int result = cuGraphInstantiateWithFlags_(&exec, graph, 0);
    if (result == 0) {
        cuGraphExecDestroy_(exec);
    }
    cuGraphDestroy_(graph);
    return result;
}

static int launch_legacy() {
    nothing<<<1, 1>>>();
    return (int)cudaGetLastError();
}

/// Calls that take one of the things away: it is not used again.
template <typename Thing>
static int taken(Thing& thing, CUresult result) {
    if (result == CUDA_SUCCESS) {
        thing = {};
    }
    return (int)result;
}

static CUcontext got_context;
#define C(known, what, expression)                             \
    {                                                          \
        what, []() -> int { return (int)(expression); }, known \
    }
static const Case kCases[] = {
    C(kUnsafe, "cuMemAlloc", cuMemAlloc_(&got, 4096)),
    C(kUnsafe, "cuMemAllocPitch", cuMemAllocPitch_(&got, &got_size, 64, 64, 4)),
    C(kUnsafe, "cuMemFree", taken(it.more, cuMemFree_(it.more))),
    C(kUnsafe, "cuMemHostAlloc", cuMemHostAlloc_(&got_host, 4096, 0)),
    C(kUnsafe, "cuMemFreeHost", taken(it.more_pinned, cuMemFreeHost_(it.more_pinned))),
    C(kUnsafe, "cuMemHostRegister", cuMemHostRegister_(it.pages, 4096, 0)),
    C(kSafe, "cuMemGetInfo", cuMemGetInfo_(&got_size, &got_total)),
    C(kSafe, "cuPointerGetAttribute",
      cuPointerGetAttribute_(&attribute, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, it.memory)),
    C(kAsk, "cuMemAllocAsync, other stream", cuMemAllocAsync_(&got, 4096, it.other)),
    C(kUnsafe, "cuMemPoolCreate", new_pool()),
    C(kUnsafe, "cuMemPoolTrimTo", cuMemPoolTrimTo_(it.pool, 0)),
    C(kLegacy, "cuMemcpyHtoD, pageable", cuMemcpyHtoD_(it.memory, it.pages, 4096)),
    C(kLegacy, "cuMemcpyHtoD, page-locked", cuMemcpyHtoD_(it.memory, it.pinned, 4096)),
    C(kLegacy, "cuMemcpyDtoH, pageable", cuMemcpyDtoH_(it.pages, it.memory, 4096)),
    C(kLegacy, "cuMemcpyDtoD", cuMemcpyDtoD_(it.memory, it.more, 4096)),
    C(kSafe, "cuMemcpyHtoDAsync, other, pageable",
      cuMemcpyHtoDAsync_(it.memory, it.pages, 4096, it.other)),
    C(kSafe, "cuMemcpyHtoDAsync, other, page-locked",
      cuMemcpyHtoDAsync_(it.memory, it.pinned, 4096, it.other)),
    C(kSafe, "cuMemcpyHtoDAsync, captured, pageable",
      cuMemcpyHtoDAsync_(it.memory, it.pages, 4096, it.captured)),
    C(kSafe, "cuMemcpyDtoHAsync, captured, pageable",
      cuMemcpyDtoHAsync_(it.pages, it.memory, 4096, it.captured)),
    C(kSafe, "cuMemcpyHtoDAsync, captured, page-locked",
      cuMemcpyHtoDAsync_(it.memory, it.pinned, 4096, it.captured)),
    C(kLegacy, "cuMemsetD8", cuMemsetD8_(it.memory, 1, 4096)),
    C(kSafe, "cuMemsetD8Async, other", cuMemsetD8Async_(it.memory, 1, 4096, it.other)),
    C(kLegacy, "cuMemsetD8Async, legacy stream", cuMemsetD8Async_(it.memory, 1, 4096, 0)),
    C(kLegacy, "a launch, legacy stream", launch_legacy()),
    C(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuCtxSynchronize", cuCtxSynchronize_()),
    C(kBoth, "cuStreamSynchronize, legacy stream", cuStreamSynchronize_(0)),
    C(kUnsafe, "cuStreamSynchronize, other", cuStreamSynchronize_(it.other)),
    C(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuStreamSynchronize, captured",
      cuStreamSynchronize_(it.captured)),
    C(kBoth, "cuStreamQuery, legacy stream", cuStreamQuery_(0)),
    C(kUnsafe, "cuStreamQuery, other", cuStreamQuery_(it.other)),
    C(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuStreamQuery, captured",
      cuStreamQuery_(it.captured)),
    C(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuStreamGetFlags, captured",
      cuStreamGetFlags_(it.captured, &got_flags)),
    C(kSafe, "cuStreamGetFlags, other", cuStreamGetFlags_(it.other, &got_flags)),
    C(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuStreamGetId, captured",
      cuStreamGetId_(it.captured, &got_id)),
    C(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuStreamGetDevice, captured",
      cuStreamGetDevice_(it.captured, &got_device)),
    C(kSafe, "cuStreamGetPriority, captured", cuStreamGetPriority_(it.captured, &got_priority)),
    C(kSafe, "cuStreamGetCtx, captured", cuStreamGetCtx_(it.captured, &got_context)),
    C(kSafe, "cuLaunchHostFunc, captured", cuLaunchHostFunc_(it.captured, called, nullptr)),
    C(kSafe, "cuStreamCreate", cuStreamCreate_(&got_stream, CU_STREAM_NON_BLOCKING)),
    C(kSafe, "cuStreamWaitEvent, other, event of before",
      cuStreamWaitEvent_(it.other, it.event, 0)),
    C(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "cuStreamWaitEvent, captured, event of before",
      cuStreamWaitEvent_(it.captured, it.event, 0)),
    C(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "cuStreamWaitEvent, legacy, event of inside",
      cuStreamWaitEvent_(0, it.inside, 0)),
    C(kSafe, "cuEventCreate", cuEventCreate_(&got_event, 0)),
    C(kSafe, "cuEventDestroy", taken(it.spare, cuEventDestroy_(it.spare))),
    C(kUnsafe, "cuEventQuery, of before", cuEventQuery_(it.event)),
    C(kUnsafe, "cuEventQuery, never recorded", cuEventQuery_(it.spare)),
    C(CUDA_ERROR_CAPTURED_EVENT, "cuEventQuery, of inside", cuEventQuery_(it.inside)),
    C(kUnsafe, "cuEventSynchronize, of before", cuEventSynchronize_(it.event)),
    C(CUDA_ERROR_CAPTURED_EVENT, "cuEventSynchronize, of inside", cuEventSynchronize_(it.inside)),
    C(kSafe, "cuEventElapsedTime, of before", cuEventElapsedTime_(&got_ms, it.event, it.event)),
    C(kKept, "cuEventElapsedTime, of inside", cuEventElapsedTime_(&got_ms, it.event, it.inside)),
    C(kSafe, "cuEventRecord, other", cuEventRecord_(it.spare, it.other)),
    C(kLegacy, "cuEventRecord, legacy stream", cuEventRecord_(it.spare, 0)),
    C(kSafe, "cuGraphLaunch, other", cuGraphLaunch_(it.graph, it.other)),
    C(kLegacy, "cuGraphLaunch, legacy stream", cuGraphLaunch_(it.graph, 0)),
    C(kUnsafe, "cuGraphInstantiate", instantiate()),
    C(kSafe, "cuCtxGetLimit", cuCtxGetLimit_(&got_size, CU_LIMIT_STACK_SIZE)),
    C(kUnsafe, "cuCtxSetLimit", cuCtxSetLimit_(CU_LIMIT_PRINTF_FIFO_SIZE, 2 << 20)),
    C(kSafe, "cuCtxGetCurrent", cuCtxGetCurrent_(&got_context)),
};

struct Setting {
    const char* what;
    CUstreamCaptureMode capture;
    bool other_thread;           // Who calls.
    CUstreamCaptureMode thread;  // The mode of that thread.
    bool blocking;               // The captured stream waits for the legacy one.
    bool forbids;                // Calls that are potentially unsafe.
};
static const CUstreamCaptureMode kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
static const CUstreamCaptureMode kLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
static const CUstreamCaptureMode kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
static const Setting kSettings[] = {
    {"own,glob", kGlobal, false, kGlobal, false, true},
    {"own,local", kLocal, false, kGlobal, false, true},
    {"own,relax", kRelaxed, false, kGlobal, false, false},
    {"own,g,t=r", kGlobal, false, kRelaxed, false, false},
    {"own,g,t=l", kGlobal, false, kLocal, false, true},
    {"thr,glob", kGlobal, true, kGlobal, false, true},
    {"thr,local", kLocal, true, kGlobal, false, false},
    {"thr,g,t=l", kGlobal, true, kLocal, false, false},
    {"own,r,blk", kRelaxed, false, kGlobal, true, false},
    {"thr,r,blk", kRelaxed, true, kGlobal, true, false},
};

struct Answer {
    int call, status, end;
    int late;  // What waiting for the device gave afterwards.
};

struct Job {
    const Case* each;
    CUstreamCaptureMode mode;
    CUcontext context;
    int result;
};

static void in_mode(Job* job) {
    CUstreamCaptureMode mode = job->mode;
    OK(cuThreadExchangeStreamCaptureMode_(&mode));
    job->result = job->each->call();
    OK(cuThreadExchangeStreamCaptureMode_(&mode));
}

static void* in_thread(void* argument) {
    Job* job = (Job*)argument;
    OK(cuCtxSetCurrent_(job->context));
    in_mode(job);
    return nullptr;
}

static Answer ask(const Case& each, const Setting& setting, CUcontext context) {
    OK(cuStreamCreate_(&it.captured, setting.blocking ? 0 : CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate_(&it.event, 0));
    OK(cuEventCreate_(&it.inside, 0));
    OK(cuEventCreate_(&it.spare, 0));
    OK(cuMemAlloc_(&it.more, 4096));
    OK(cuMemHostAlloc_(&it.more_pinned, 4096, 0));
    OK(cuEventRecord_(it.event, it.other));
    OK(cuCtxSynchronize_());
    got = 0, got_stream = nullptr, got_event = nullptr, got_pool = nullptr, got_host = nullptr;

    OK(cuStreamBeginCapture_(it.captured, setting.capture));
    OK(cuMemsetD8Async_(it.memory, 2, 4096, it.captured));
    OK(cuEventRecord_(it.inside, it.captured));
    Job job = {&each, setting.thread, context, -1};
    if (setting.other_thread) {
        pthread_t thread;
        EXPECT(pthread_create(&thread, nullptr, in_thread, &job) == 0);
        EXPECT(pthread_join(thread, nullptr) == 0);
    } else {
        in_mode(&job);
    }
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    OK(cuStreamIsCapturing_(it.captured, &status));
    got_graph = nullptr;
    Answer answer = {job.result, (int)status, 0, 0};
    answer.end = (int)cuStreamEndCapture_(it.captured, &got_graph);
    if (got_graph != nullptr) {
        OK(cuGraphDestroy_(got_graph));
    }

    cudaGetLastError();
    answer.late = (int)cuCtxSynchronize_();
    cuMemHostUnregister_(it.pages);  // Where a case has registered them.
    if (got != 0) {
        cuMemFree_(got);
    }
    if (got_stream != nullptr) {
        OK(cuStreamDestroy_(got_stream));
    }
    if (got_event != nullptr) {
        OK(cuEventDestroy_(got_event));
    }
    if (got_pool != nullptr) {
        OK(cuMemPoolDestroy_(got_pool));
    }
    if (got_host != nullptr) {
        OK(cuMemFreeHost_(got_host));
    }
    if (it.more != 0) {
        OK(cuMemFree_(it.more));
    }
    if (it.more_pinned != nullptr) {
        OK(cuMemFreeHost_(it.more_pinned));
    }
    if (it.spare != nullptr) {
        OK(cuEventDestroy_(it.spare));
    }
    OK(cuEventDestroy_(it.inside));
    OK(cuEventDestroy_(it.event));
    OK(cuStreamDestroy_(it.captured));
    return answer;
}

static int check(const Case& each, const Setting& setting, const Answer& answer) {
    if (each.known == kAsk) {
        return 0;
    }
    int wanted_call = each.known > 0 ? each.known : CUDA_SUCCESS;
    if ((each.known == kUnsafe || each.known == kBoth) && setting.forbids) {
        wanted_call = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if ((each.known == kLegacy || each.known == kBoth) && setting.blocking) {
        wanted_call = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    } else if (each.known == kKept) {
        wanted_call = CUDA_ERROR_CAPTURED_EVENT;
    }
    const bool lost = wanted_call != CUDA_SUCCESS && each.known != kKept;
    const Answer wanted = {
        wanted_call, lost ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE,
        lost ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS, 0};
    if (answer.call == wanted.call && answer.status == wanted.status && answer.end == wanted.end &&
        answer.late == wanted.late) {
        return 0;
    }
    fprintf(stderr, "%s, %s: %d, capture %d, its end %d, late %d; expected %d, %d, %d, 0\n",
            each.what, setting.what, answer.call, answer.status, answer.end, answer.late,
            wanted.call, wanted.status, wanted.end);
    return 1;
}

static void* end_elsewhere(void* context) {
    OK(cuCtxSetCurrent_((CUcontext)context));
    CUgraph graph = nullptr;
    EXPECT_STATUS(cuStreamEndCapture_(it.other, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    EXPECT(graph == nullptr);
    return nullptr;
}

/// Only the thread that began a capture may end it, unless it is relaxed.
static void end_in_another_thread(CUcontext context) {
    OK(cuStreamBeginCapture_(it.other, kLocal));
    pthread_t thread;
    EXPECT(pthread_create(&thread, nullptr, end_elsewhere, context) == 0);
    EXPECT(pthread_join(thread, nullptr) == 0);
    CUgraph graph = nullptr;
    (void)cuStreamEndCapture_(it.other, &graph);  // What it is worth then differs natively.
    if (graph != nullptr) {
        OK(cuGraphDestroy_(graph));
    }
}

int main(int argc, char** argv) {
    const bool print = argc > 1 && strcmp(argv[1], "--print") == 0;
    CHECK(cudaFree(nullptr));
#define FETCH(name, version) name##_ = entry<decltype(&name)>(#name, version);
    CALLS(FETCH)
    CUcontext context;
    OK(cuCtxGetCurrent_(&context));
    OK(cuStreamCreate_(&it.other, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_(&it.memory, 4096));
    OK(cuMemHostAlloc_(&it.pinned, 4096, 0));
    EXPECT(posix_memalign(&it.pages, 4096, 4096) == 0);
    memset(it.pages, 0, 4096);
    OK(cuGraphCreate_(&got_graph, 0));
    OK(cuGraphInstantiateWithFlags_(&it.graph, got_graph, 0));
    OK(cuGraphDestroy_(got_graph));
    OK(new_pool());
    it.pool = got_pool;
    nothing<<<1, 1>>>();
    CHECK(cudaDeviceSynchronize());
    if (print) {
        printf(
            "call's result / capture's status after it (1 active, 2 invalidated) / its end "
            "(! what came late)\n");
        printf(
            "own, thr: called by the capturing thread, another; then the capture's mode; "
            "t=: the thread's mode; blk: a blocking stream is captured\n%-45s",
            "");
        for (const Setting& setting : kSettings) {
            printf("%-12s", setting.what);
        }
        printf("\n");
    }
    int wrong = 0;
    for (int half = 0; half < 2; ++half) {
        for (const Case& each : kCases) {
            if (print) {
                printf("%-45s", each.what);
            }
            for (const Setting& setting : kSettings) {
                const Answer answer = ask(each, setting, context);
                wrong += check(each, setting, answer);
                if (print) {
                    char text[32];
                    snprintf(text, sizeof text, answer.late != 0 ? "%d/%d/%d!%d" : "%d/%d/%d",
                             answer.call, answer.status, answer.end, answer.late);
                    printf("%-12s", text);
                }
            }
            if (print) {
                printf("\n");
                fflush(stdout);
            }
        }
        if (print) {
            return 0;
        }
        end_in_another_thread(context);
        if (half == 0) {
            midpoint();
        }
    }
    EXPECT(wrong == 0);
    return pass("capture_modes");
}
