// The guest's legacy stream, while a stream of the worker's own stands for it and when it does not:
// the order of work is the same. On the soft GPU's driver.
#include <random>

#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

const std::uint64_t kFree = kStream;          // Blocks for nobody.
const std::uint64_t kBlocking = kStream + 1;  // Of the guest's own making, as the next.
const std::uint64_t kReleasing = kStream + 2;
constexpr std::size_t kRun = 40;  // More launches than it takes.
constexpr std::size_t kWords = 64;

struct Launches {
    static inline driver::DriverApi real;
    static inline std::atomic<bool> was_own{false};  ///< The last launch.

    static void begin(Host& host) {
        auto& api = const_cast<driver::DriverApi&>(host.library->api());
        real = api;
        api.cuLaunchKernel = [](CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                                unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                CUstream stream, void** params, void** extra) {
            was_own = stream != nullptr;
            return real.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params,
                                       extra);
        };
    }
};

struct Served {
    Served() {
        guest.retain();
        guest.load_module();
        create(kFree, CU_STREAM_NON_BLOCKING);
        create(kReleasing, CU_STREAM_NON_BLOCKING);
        guest.send(Op::cuEventCreate, payload::cuEventCreate_call{kEvent, 0, 0});
        guest.send(Op::cuEventCreate, payload::cuEventCreate_call{kEvent + 1, 0, 0});
        data = guest.allocate(kWords * 4);
        gate = guest.allocate(4);
        guest.write(data, std::vector<std::byte>(kWords * 4));
        guest.write(gate, std::vector<std::byte>(4));
        EXPECT_EQ(synchronise_all(), 0u);
        Launches::begin(host);
    }
    ChannelMemory& serve() {
        host.process->serve(map_region(region->get()), 1);
        return *host.process->channel();
    }
    void create(std::uint64_t stream, std::uint32_t flags) {
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{stream, flags, 0});
    }
    std::uint32_t synchronise_all() {
        return guest.call(Op::cuCtxSynchronize, payload::cuCtxSynchronize_call{}).status;
    }
    void launch(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            guest.add(data, 1, 0);
        }
    }
    /// After a command with an answer: all before it have gone to the driver.
    bool is_own() {
        guest.call(Op::cuMemGetInfo_v2, payload::cuMemGetInfo_v2_call{});
        return Launches::was_own;
    }
    void record(std::uint64_t event, std::uint64_t stream) {
        guest.send(Op::cuEventRecord, payload::cuEventRecord_call{event, stream});
    }
    void wait_for(std::uint64_t event, std::uint64_t stream) {
        guest.send(Op::cuStreamWaitEvent, payload::cuStreamWaitEvent_call{stream, event, 0, 0});
    }
    void fill(std::uint64_t stream, std::uint32_t value) {
        guest.send(Op::cuMemsetD32Async,
                   payload::cuMemsetD32Async_call{data, value, 0, kWords, stream});
    }
    /// The same by a command that no stream of the worker's stands in for.
    void fill_plane(std::uint32_t value) {
        guest.send(Op::cuMemsetD2D32Async,
                   payload::cuMemsetD2D32Async_call{data, kWords * 4, value, 0, kWords, 1, 0});
    }
    /// The legacy stream stands still from here on, until open_gate().
    void close_gate() {
        guest.send(Op::cuStreamWaitValue32_v2,
                   payload::cuStreamWaitValue32_v2_call{kFree, gate, ++gate_value,
                                                        CU_STREAM_WAIT_VALUE_GEQ});
        record(kEvent, kFree);
        wait_for(kEvent, 0);
    }
    void open_gate() {
        guest.send(Op::cuStreamWriteValue32_v2,
                   payload::cuStreamWriteValue32_v2_call{kReleasing, gate, gate_value, 0});
    }
    std::vector<std::uint32_t> words() { return guest.read(data, kWords); }

    const Result<control::UniqueFd> region = ChannelMemory::create_region(kRegionBytes);
    Host host;
    Guest guest{serve(), 1ull << wire::kGenerationShift};
    std::uint64_t data = 0;
    std::uint64_t gate = 0;
    std::uint32_t gate_value = 0;
};

TEST(LegacyStream, RunsOfLaunchesGoToAStreamThatBlocksForNobody) {
    EXPECT_TRUE(in_child([] {
        Served served;
        served.launch(1);
        EXPECT_FALSE(served.is_own());
        served.launch(kRun);
        EXPECT_TRUE(served.is_own());
        EXPECT_EQ(served.words(), std::vector<std::uint32_t>(kWords, 1 + kRun));
        // Not beside a stream that the legacy one waits for.
        served.create(kBlocking, CU_STREAM_DEFAULT);
        served.launch(10 * kRun);
        EXPECT_FALSE(served.is_own());
        served.guest.send(Op::cuStreamDestroy_v2, payload::cuStreamDestroy_v2_call{kBlocking});
        served.launch(100 * kRun);
        EXPECT_TRUE(served.is_own());
        // Nor while anything is captured.
        served.guest.send(Op::cuStreamBeginCapture_v2,
                          payload::cuStreamBeginCapture_v2_call{
                              kFree, CU_STREAM_CAPTURE_MODE_RELAXED, 0});
        served.launch(1);
        EXPECT_FALSE(served.is_own());
    }));
}

TEST(LegacyStream, WhatWaitsForTheLegacyStreamWaitsForTheOneThatStandsForIt) {
    EXPECT_TRUE(in_child([] {
        Served served;
        Guest& guest = served.guest;
        const payload::cuStreamSynchronize_call legacy{0};
        for (const Op op : {Op::cuStreamSynchronize, Op::cuCtxSynchronize}) {
            served.launch(kRun);
            EXPECT_TRUE(served.is_own());
            served.close_gate();
            served.launch(1);
            EXPECT_TRUE(served.is_own());
            EXPECT_EQ(guest.call(Op::cuStreamQuery, payload::cuStreamQuery_call{0}).status,
                      static_cast<std::uint32_t>(CUDA_ERROR_NOT_READY));
            const std::uint64_t wait = guest.post(
                static_cast<std::uint16_t>(op),
                std::as_bytes(std::span(&legacy, op == Op::cuStreamSynchronize ? 1 : 0)), {}, true);
            std::this_thread::sleep_for(30ms);
            EXPECT_NE(served.host.process->channel()->reply(kLane).seq.load(), wait + 1);
            served.open_gate();
            EXPECT_EQ(guest.wait(wait).status, 0u);
            EXPECT_EQ(guest.call(Op::cuStreamQuery, payload::cuStreamQuery_call{0}).status, 0u);
        }
        EXPECT_EQ(served.words(), std::vector<std::uint32_t>(kWords, 2 * (kRun + 1)));
    }));
}

TEST(LegacyStream, ALanesOwnStreamComesBehindIt) {
    EXPECT_TRUE(in_child([] {
        constexpr std::uint64_t kLanesOwn = 2;
        Served served;
        served.launch(kRun);
        EXPECT_TRUE(served.is_own());
        served.close_gate();
        served.fill(0, 7);
        served.fill(kLanesOwn, 9);
        served.open_gate();
        EXPECT_EQ(served.synchronise_all(), 0u);
        EXPECT_EQ(served.words(), std::vector<std::uint32_t>(kWords, 9));
        served.launch(10 * kRun);
        EXPECT_FALSE(served.is_own());
    }));
}

/// Any order of what goes to a stream of the worker's, what does not, and what waits for either.
void do_random_work(Served& served, std::mt19937& random) {
    Guest& guest = served.guest;
    std::uint32_t expected = 0;
    bool is_closed = false;
    bool has_blocking = false;
    served.fill(0, 0);
    for (int step = 0; step < 40; ++step) {
        const auto value = static_cast<std::uint32_t>(random() % 1000);
        switch (random() % 9) {
            case 0:
            case 1:
                served.launch(kRun);
                expected += kRun;
                break;
            case 2:
                served.fill(0, value);
                expected = value;
                break;
            case 3:
                served.fill_plane(value);
                expected = value;
                break;
            case 4:
                if (!has_blocking) {
                    served.create(kBlocking, CU_STREAM_DEFAULT);
                    has_blocking = true;
                }
                guest.add(served.data, value, kBlocking);
                expected += value;
                break;
            case 5:
                if (has_blocking) {
                    guest.send(Op::cuStreamDestroy_v2,
                               payload::cuStreamDestroy_v2_call{kBlocking});
                    has_blocking = false;
                }
                break;
            case 6:
                served.record(kEvent + 1, 0);
                served.wait_for(kEvent + 1, kFree);
                served.fill(kFree, value);
                served.record(kEvent + 1, kFree);
                served.wait_for(kEvent + 1, 0);
                expected = value;
                break;
            case 7:
                if (!is_closed) {
                    served.close_gate();
                    is_closed = true;
                }
                break;
            default:
                if (is_closed) {
                    served.open_gate();
                    is_closed = false;
                }
                break;
        }
    }
    if (is_closed) {
        served.open_gate();
    }
    if (has_blocking) {
        guest.send(Op::cuStreamDestroy_v2, payload::cuStreamDestroy_v2_call{kBlocking});
    }
    ASSERT_EQ(served.words(), std::vector<std::uint32_t>(kWords, expected));
}

TEST(LegacyStream, TheOrderOfWorkIsThatOfTheCommands) {
    EXPECT_TRUE(in_child([] {
        Served served;
        std::mt19937 random(20);
        int own = 0;
        for (int round = 0; round < 60 && !testing::Test::HasFailure(); ++round) {
            do_random_work(served, random);
            own += Launches::was_own ? 1 : 0;
        }
        EXPECT_GT(own, 0);
    }));
}

}  // namespace
}  // namespace gantry::worker
