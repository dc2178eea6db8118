#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "driver_fixture.h"

namespace gantry::softgpu::test {
namespace {

class StreamTest : public DriverTest {
protected:
    void SetUp() override {
        DriverTest::SetUp();
        module_ = load();
        spin_ = function(module_, "spin");
        poke_ = function(module_, "poke");
        ASSERT_CU(cuMemHostAlloc(&page_, 4096, 0));
        flag_ = static_cast<std::atomic<unsigned>*>(page_);
        flag_->store(0);
        ASSERT_CU(cuMemAlloc_v2(&memory_, 4096));
    }
    CUresult launch_spin(CUstream stream) {
        CUdeviceptr p = reinterpret_cast<CUdeviceptr>(page_);
        void* params[] = {&p};
        return cuLaunchKernel(spin_, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
    }
    unsigned read() {
        unsigned value = 0;
        EXPECT_CU(CUDA_SUCCESS, cuMemcpyDtoH_v2(&value, memory_, 4));
        return value;
    }
    CUstream make(unsigned flags) {
        CUstream stream = nullptr;
        EXPECT_CU(CUDA_SUCCESS, cuStreamCreate(&stream, flags));
        return stream;
    }

    CUmodule module_ = nullptr;
    CUfunction spin_ = nullptr;
    CUfunction poke_ = nullptr;
    void* page_ = nullptr;
    std::atomic<unsigned>* flag_ = nullptr;
    CUdeviceptr memory_ = 0;
};

TEST_F(StreamTest, LegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
    CUstream blocking = make(CU_STREAM_DEFAULT);
    CUstream free = make(CU_STREAM_NON_BLOCKING);
    ASSERT_CU(launch_spin(blocking));
    ASSERT_CU(launch_poke(poke_, memory_, 1, nullptr));
    EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
    ASSERT_CU(launch_poke(poke_, memory_ + 4, 2, free));
    ASSERT_CU(cuStreamSynchronize(free));
    EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
    CUstream later = make(CU_STREAM_DEFAULT);
    ASSERT_CU(launch_poke(poke_, memory_, 3, later));
    EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(later));
    flag_->store(1);
    ASSERT_CU(cuStreamSynchronize(later));
    EXPECT_EQ(read(), 3U);
}

TEST_F(StreamTest, EventsOrderStreamsAndTellTime) {
    CUstream first = make(CU_STREAM_NON_BLOCKING);
    CUstream second = make(CU_STREAM_NON_BLOCKING);
    CUevent start = nullptr;
    CUevent end = nullptr;
    ASSERT_CU(cuEventCreate(&start, 0));
    ASSERT_CU(cuEventCreate(&end, 0));
    float elapsed_ms = 0;
    EXPECT_CU(CUDA_SUCCESS, cuEventQuery(start));
    EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&elapsed_ms, start, end));
    ASSERT_CU(cuEventRecord(start, first));
    ASSERT_CU(launch_spin(first));
    ASSERT_CU(cuEventRecord(end, first));
    ASSERT_CU(cuStreamWaitEvent(second, end, 0));
    ASSERT_CU(launch_poke(poke_, memory_, 9, second));
    EXPECT_CU(CUDA_ERROR_NOT_READY, cuEventQuery(end));
    EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    flag_->store(1);
    ASSERT_CU(cuStreamSynchronize(second));
    EXPECT_EQ(read(), 9U);
    ASSERT_CU(cuEventElapsedTime(&elapsed_ms, start, end));
    EXPECT_GE(elapsed_ms, 19.0F);
    EXPECT_LT(elapsed_ms, 20000.0F);
}

struct Seen {
    std::atomic<int> order{0};
    std::vector<int> marks;
    CUresult inner = CUDA_SUCCESS;
    CUresult status = CUDA_ERROR_UNKNOWN;
};

TEST_F(StreamTest, HostFunctionsRunInOrderAndMayNotCallCuda) {
    Seen seen;
    CUstream stream = make(CU_STREAM_DEFAULT);
    ASSERT_CU(cuLaunchHostFunc(
        stream,
        [](void* user) {
            auto* s = static_cast<Seen*>(user);
            s->marks.push_back(1);
            s->inner = cuStreamQuery(nullptr);
        },
        &seen));
    ASSERT_CU(cuStreamAddCallback(
        stream,
        [](CUstream, CUresult status, void* user) {
            auto* s = static_cast<Seen*>(user);
            s->marks.push_back(2);
            s->status = status;
        },
        &seen, 0));
    ASSERT_CU(cuStreamSynchronize(stream));
    EXPECT_EQ(seen.marks, (std::vector<int>{1, 2}));
    EXPECT_CU(CUDA_ERROR_NOT_PERMITTED, seen.inner);
    EXPECT_CU(CUDA_SUCCESS, seen.status);
}

TEST_F(StreamTest, WaitAndWriteValuesPassMessages) {
    CUstream waiting = make(CU_STREAM_NON_BLOCKING);
    CUstream writing = make(CU_STREAM_NON_BLOCKING);
    ASSERT_CU(cuStreamWaitValue32_v2(waiting, memory_ + 8, 5, CU_STREAM_WAIT_VALUE_GEQ));
    ASSERT_CU(launch_poke(poke_, memory_, 11, waiting));
    EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
    ASSERT_CU(cuStreamWriteValue32_v2(writing, memory_ + 8, 6, 0));
    ASSERT_CU(cuStreamSynchronize(waiting));
    EXPECT_EQ(read(), 11U);
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32_v2(writing, 0x100, 6, 0));
}

TEST_F(StreamTest, PageableSourcesMayChangeAfterTheCall) {
    CUstream stream = make(CU_STREAM_DEFAULT);
    ASSERT_CU(launch_spin(stream));
    unsigned value = 21;
    ASSERT_CU(cuMemcpyHtoDAsync_v2(memory_, &value, 4, stream));
    value = 0;
    flag_->store(1);
    ASSERT_CU(cuStreamSynchronize(stream));
    EXPECT_EQ(read(), 21U);
}

TEST_F(StreamTest, ManyLaunchesFromManyThreadsAllRun) {
    CUfunction count = function(module_, "count");
    CUdeviceptr counter = 0;
    ASSERT_CU(cuModuleGetGlobal_v2(&counter, nullptr, module_, "counter"));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            cuCtxSetCurrent(context_);
            unsigned n = 1;
            void* params[] = {&n};
            for (int i = 0; i < 200; ++i) {
                EXPECT_CU(CUDA_SUCCESS, cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0,
                                                       CU_STREAM_PER_THREAD, params, nullptr));
            }
            EXPECT_CU(CUDA_SUCCESS, cuStreamSynchronize(CU_STREAM_PER_THREAD));
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    unsigned total = 0;
    ASSERT_CU(cuMemcpyDtoH_v2(&total, counter, 4));
    EXPECT_EQ(total, 5U + 800U);
}

}  // namespace
}  // namespace gantry::softgpu::test
