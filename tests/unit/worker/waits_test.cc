// How a worker waits for the device on behalf of its guest: what it asks the driver, and when it
// may answer without asking again. On the soft GPU's driver, with some calls counted.
#include <atomic>

#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

const std::uint64_t kSecond = kStream + 1;

constexpr char kPrintingPtx[] = R"(.version 8.0
.target sm_75
.address_size 64
.extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[4] = {104, 105, 10, 0};
.visible .entry print()
{
    .reg .b32 %r<2>;
    .reg .b64 %d<3>;
    mov.u64 %d1, text;
    cvta.global.u64 %d2, %d1;
    {
        .param .b64 format;
        .param .b64 arguments;
        .param .b32 result;
        st.param.b64 [format], %d2;
        st.param.b64 [arguments], 0;
        call.uni (result), vprintf, (format, arguments);
        ld.param.b32 %r1, [result];
    }
    ret;
}
)";

/// The condition comes true: the deadline is that of a hang.
template <typename Condition>
bool comes_true(Condition condition, std::chrono::milliseconds at_most = 60s) {
    const auto until = std::chrono::steady_clock::now() + at_most;
    while (!condition() && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(100us);
    }
    return condition();
}

/// Calls that wait inside the driver, as the worker made them, and questions that do not wait.
struct Counted {
    static inline driver::DriverApi real;
    static inline std::atomic<int> queries{0};
    static inline std::atomic<int> streams{0};
    static inline std::atomic<int> events{0};
    static inline std::atomic<int> contexts{0};
    static inline std::atomic<int> words{0};  ///< Writes into memory that is not the guest's.

    static void begin(Host& host) {
        auto& api = const_cast<driver::DriverApi&>(host.library->api());
        real = api;
        api.cuStreamQuery = [](CUstream stream) {
            ++queries;
            return real.cuStreamQuery(stream);
        };
        api.cuStreamSynchronize = [](CUstream stream) {
            ++streams;
            return real.cuStreamSynchronize(stream);
        };
        api.cuEventSynchronize = [](CUevent event) {
            ++events;
            return real.cuEventSynchronize(event);
        };
        api.cuCtxSynchronize = [] {
            ++contexts;
            return real.cuCtxSynchronize();
        };
        api.cuStreamWriteValue32_v2 = [](CUstream stream, CUdeviceptr address, cuuint32_t value,
                                         unsigned int flags) {
            const bool is_guests =
                address >= wire::kArenaBase && address < wire::kArenaBase + wire::kArenaBytes;
            words += is_guests ? 0 : 1;
            return real.cuStreamWriteValue32_v2(stream, address, value, flags);
        };
        queries = streams = events = contexts = words = 0;
    }
    static int all() { return streams + events + contexts; }
};

/// A worker that serves, with a stream, an event and some memory of its guest's.
struct Served : Serving {
    /// `spin_us`: how long the worker's loop itself looks after a call that waits.
    explicit Served(std::uint32_t spin_us = kSpinUs,
                    Host::WaitHere wait_here = Host::WaitHere::kNever)
        : Serving(kQuotaBytes, spin_us, wait_here) {
        guest.retain();
        guest.load_module();
        create_stream(kStream);
        guest.send(Op::cuEventCreate, payload::cuEventCreate_call{kEvent, 0, 0});
        data = guest.allocate(256);
        guest.write(data, std::vector<std::byte>(256));
        EXPECT_EQ(synchronise_all(), 0u);
        Counted::begin(host);
    }
    void create_stream(std::uint64_t stream, std::uint32_t flags = CU_STREAM_NON_BLOCKING) {
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{stream, flags, 0});
    }
    std::uint32_t synchronise_all() {
        return guest.call(Op::cuCtxSynchronize, payload::cuCtxSynchronize_call{}).status;
    }
    std::uint32_t synchronise_event() {
        return guest.call(Op::cuEventSynchronize, payload::cuEventSynchronize_call{kEvent}).status;
    }
    /// Or a later one: on a busy machine the device may look after the next has been written.
    void wait_for_value(std::uint64_t stream, std::uint32_t value) {
        guest.send(Op::cuStreamWaitValue32_v2, payload::cuStreamWaitValue32_v2_call{
                                                   stream, data, value, CU_STREAM_WAIT_VALUE_GEQ});
    }
    void write_value(std::uint64_t stream, std::uint32_t value) {
        guest.send(Op::cuStreamWriteValue32_v2,
                   payload::cuStreamWriteValue32_v2_call{stream, data, value, 0});
    }
    /// The device's own work ends a wait: the guest's commands are not executed meanwhile.
    void write_as_the_device(std::uint32_t value) {
        host.device->bind_thread();
        EXPECT_EQ(host.library->api().cuStreamWriteValue32_v2(nullptr, data, value, 0),
                  CUDA_SUCCESS);
    }
    /// Posts a call that waits, and returns its position when the count (one of Counted's) says
    /// that the worker waits for it: there is no answer yet.
    std::uint64_t begin_waiting(Op op, std::uint64_t handle, const std::atomic<int>& count,
                                int wanted) {
        const auto words = std::as_bytes(std::span(&handle, op == Op::cuCtxSynchronize ? 0 : 1));
        const std::uint64_t position = guest.post(static_cast<std::uint16_t>(op), words, {}, true);
        EXPECT_TRUE(comes_true([&] { return count >= wanted; }));
        EXPECT_FALSE(is_answered(position));
        return position;
    }
    /// The same where nothing but the worker's questions says so.
    std::uint64_t begin_asking(Op op, std::uint64_t handle) {
        return begin_waiting(op, handle, Counted::queries, Counted::queries + kQuestions);
    }
    /// The worker has looked often enough to have seen what happened before.
    static bool has_looked() {
        return comes_true(
            [wanted = Counted::queries + kQuestions] { return Counted::queries >= wanted; });
    }
    bool is_answered(std::uint64_t position) {
        return channel.reply(kLane).seq.load() == position + 1;
    }
    /// The device, as far as the driver knows without being waited for.
    void wait_until_idle() {
        const driver::DriverApi& api = host.library->api();
        host.device->bind_thread();
        while (api.cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY ||
               host.process->streams.query_all(GuestStreams::Which::kAllButLegacy).result ==
                   CUDA_ERROR_NOT_READY) {
            std::this_thread::sleep_for(100us);
        }
    }

    static constexpr int kQuestions =
        200;  ///< Far more than in the one look that may be under way.
    std::uint64_t data = 0;
};

TEST(Waits, WhatHasEndedIsAnsweredWithoutAskingTwice) {
    EXPECT_TRUE(in_child([] {
        Served served;
        Guest& guest = served.guest;
        guest.add(served.data, 1, kStream);
        guest.send(Op::cuEventRecord, payload::cuEventRecord_call{kEvent, kStream});
        guest.add(guest.allocate(256), 1, 0);  // Nothing orders the two streams.
        guest.call(Op::cuMemGetInfo_v2, payload::cuMemGetInfo_v2_call{});  // All was queued.
        served.wait_until_idle();
        EXPECT_EQ(guest.synchronise(kStream), 0u);
        EXPECT_EQ(guest.synchronise(0), 0u);
        EXPECT_EQ(served.synchronise_event(), 0u);
        EXPECT_EQ(served.synchronise_all(), 0u);
        EXPECT_EQ(Counted::all(), 0);
        // What does not exist is refused all the same.
        EXPECT_EQ(guest.synchronise(kSecond),
                  static_cast<std::uint32_t>(CUDA_ERROR_INVALID_HANDLE));
    }));
}

TEST(Waits, ADriverThatMayHaveTextToGiveOutIsAskedAsTheGuestAsks) {
    EXPECT_TRUE(in_child([] {
        Served served;
        Guest& guest = served.guest;
        guest.stage_piece(2, 0, sizeof(kPrintingPtx), kPrintingPtx);
        EXPECT_EQ(guest.load(kModule + 1, 2, sizeof(kPrintingPtx)), 0u);
        const std::uint64_t kernel = kKernel + 1;
        const std::string name = "print";
        EXPECT_EQ(guest
                      .call(Op::cuModuleGetFunction, hand::NameCall{kModule + 1, kernel},
                            std::as_bytes(std::span(name)))
                      .status,
                  0u);
        const auto printed_by = [&](auto&& wait, std::atomic<int>& calls) {
            const int before = calls;
            guest.send(Op::cuLaunchKernel, one_thread(kernel, kStream));
            guest.send(Op::cuEventRecord, payload::cuEventRecord_call{kEvent, kStream});
            guest.call(Op::cuMemGetInfo_v2, payload::cuMemGetInfo_v2_call{});
            served.wait_until_idle();
            EXPECT_EQ(wait(), 0u);
            EXPECT_EQ(calls, before + 1);
            std::byte text[64];
            const std::size_t bytes = served.host.output.take(text);
            return std::string(reinterpret_cast<const char*>(text), bytes);
        };
        const std::string line("\1\0\0\0\3\0\0\0hi\n", 11);
        EXPECT_EQ(printed_by([&] { return guest.synchronise(kStream); }, Counted::streams), line);
        EXPECT_EQ(printed_by([&] { return served.synchronise_event(); }, Counted::events), line);
        EXPECT_EQ(printed_by([&] { return served.synchronise_all(); }, Counted::contexts), line);
    }));
}

TEST(Waits, TheContextWaitsForStreamsThatWereDestroyedAtWork) {
    EXPECT_TRUE(in_child([] {
        Served served;
        Guest& guest = served.guest;
        served.create_stream(kSecond);
        served.wait_for_value(kSecond, 7);
        guest.send(Op::cuStreamDestroy_v2, payload::cuStreamDestroy_v2_call{kSecond});
        const std::uint64_t wait =
            served.begin_waiting(Op::cuCtxSynchronize, 0, Counted::contexts, 1);
        served.write_value(kStream, 7);
        EXPECT_EQ(guest.wait(wait).status, 0u);
        EXPECT_EQ(Counted::contexts, 1);
        served.wait_until_idle();  // The write came after the wait: that need not include it.
        EXPECT_EQ(served.synchronise_all(), 0u);
        EXPECT_EQ(Counted::contexts, 1) << "once is enough";
    }));
}

constexpr std::uint32_t kLongSpinUs = 30'000'000;  // No call goes to a thread of its own.

TEST(Waits, AWordTellsOfTheEndOfAStream) {
    EXPECT_TRUE(in_child([] {
        Served served(kLongSpinUs);
        Guest& guest = served.guest;
        served.create_stream(kSecond);
        std::uint32_t value = 0;
        for (const Op op : {Op::cuStreamSynchronize, Op::cuCtxSynchronize}) {
            for (const std::uint64_t stream : {kStream, std::uint64_t{0}}) {
                served.wait_for_value(stream, ++value);
                const std::uint64_t wait =
                    served.begin_waiting(op, stream, Counted::words, static_cast<int>(value));
                served.write_value(kSecond, value);
                EXPECT_EQ(guest.wait(wait).status, 0u);
                EXPECT_EQ(Counted::words, static_cast<int>(value)) << "one for each wait";
                // The guest knows of the end: so does whoever asks for it next.
                EXPECT_EQ(guest.call(Op::cuStreamQuery, payload::cuStreamQuery_call{stream}).status,
                          0u);
            }
        }
        EXPECT_EQ(Counted::all(), 0);
        for (int i = 0; i < 1000; ++i) {  // Far more often than there are words.
            guest.add(served.data, 1, kStream);
            EXPECT_EQ(guest.synchronise(kStream), 0u);
        }
        EXPECT_EQ(guest.read(served.data, 64)[1], 1000u);
        EXPECT_EQ(Counted::all(), 0);
    }));
}

TEST(Waits, AContextWithTwoStreamsAtWorkWaitsForBoth) {
    EXPECT_TRUE(in_child([] {
        Served served(kLongSpinUs);
        Guest& guest = served.guest;
        served.create_stream(kSecond);
        served.create_stream(kSecond + 1);
        for (const std::uint64_t last : {kStream, kSecond}) {
            served.write_value(kSecond + 1, 0);
            EXPECT_EQ(guest.synchronise(kSecond + 1), 0u);
            const int words = Counted::words;
            served.wait_for_value(last == kStream ? kSecond : kStream, 1);
            served.wait_for_value(last, 2);
            const std::uint64_t wait = served.begin_asking(Op::cuCtxSynchronize, 0);
            served.write_value(kSecond + 1, 1);
            guest.use_lane(kLane + 1);
            const payload::cuStreamQuery_call written{kSecond + 1};
            EXPECT_TRUE(
                comes_true([&] { return guest.call(Op::cuStreamQuery, written).status == 0; }));
            guest.use_lane(kLane);
            EXPECT_TRUE(served.has_looked());
            EXPECT_FALSE(served.is_answered(wait));
            served.write_value(kSecond + 1, 2);
            EXPECT_EQ(guest.wait(wait).status, 0u);
            EXPECT_EQ(Counted::words, words);
        }
    }));
}

TEST(Waits, ABlockingStreamBesideTheLegacyOneIsLeftToTheDriver) {
    EXPECT_TRUE(in_child([] {
        Served served(kLongSpinUs);
        Guest& guest = served.guest;
        served.create_stream(kSecond, CU_STREAM_DEFAULT);
        served.wait_for_value(kSecond, 1);
        guest.add(served.data + 128, 1, 0);
        const std::uint64_t wait = served.begin_asking(Op::cuStreamSynchronize, 0);
        served.write_value(kStream, 1);
        EXPECT_EQ(guest.wait(wait).status, 0u);
        EXPECT_EQ(Counted::words, 0);
    }));
}

TEST(Waits, AnErrorIsToldByTheCallThatWaitsForIt) {
    EXPECT_TRUE(in_child([] {
        Served served(kLongSpinUs);
        Guest& guest = served.guest;
        served.create_stream(kSecond);
        served.wait_for_value(kStream, 1);
        guest.add(64, 1, kStream);  // No such memory.
        const std::uint64_t wait =
            served.begin_waiting(Op::cuStreamSynchronize, kStream, Counted::words, 1);
        served.write_value(kSecond, 1);
        EXPECT_EQ(guest.wait(wait).status, static_cast<std::uint32_t>(CUDA_ERROR_ILLEGAL_ADDRESS));
        EXPECT_EQ(Counted::words, 1);
    }));
}

TEST(Waits, ACaptureIsNotDisturbed) {
    EXPECT_TRUE(in_child([] {
        Served served(kLongSpinUs);
        Guest& guest = served.guest;
        served.create_stream(kSecond);
        served.wait_for_value(kStream, 1);
        guest.send(Op::cuStreamBeginCapture_v2, payload::cuStreamBeginCapture_v2_call{
                                                    kSecond, CU_STREAM_CAPTURE_MODE_RELAXED, 0});
        const std::uint64_t wait = served.begin_asking(Op::cuStreamSynchronize, kStream);
        EXPECT_EQ(Counted::words, 0);
        const std::uint64_t graph = cuda::make_handle(HandleKind::kGraph, 1ull << 24);
        guest.send(Op::cuStreamEndCapture, payload::cuStreamEndCapture_call{kSecond, graph, 0, 0});
        served.write_value(kSecond, 1);
        EXPECT_EQ(guest.wait(wait).status, 0u);
    }));
}

/// A worker whose loop waits on its own thread, and a guest that has used one lane for a while.
struct Alone : Served {
    Alone() : Served(kSpinUs, Host::WaitHere::kAlways) {
        for (int i = 0; i < 32; ++i) {
            guest.call(Op::cuMemGetInfo_v2, payload::cuMemGetInfo_v2_call{});
        }
        Counted::streams = Counted::events = Counted::contexts = Counted::words = 0;
    }
};

TEST(Waits, AGuestOfOneThreadWaitsInTheDriverAsNatively) {
    EXPECT_TRUE(in_child([] {
        Alone alone;
        Guest& guest = alone.guest;
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{kSecond, 1, 0});
        for (int i = 1; i <= 300; ++i) {
            guest.add(alone.data, 1, kStream);
            // Else a word may be awaited (the next test).
            guest.send(Op::cuEventRecord, payload::cuEventRecord_call{kEvent, kStream});
            EXPECT_EQ(guest.synchronise(kStream), 0u);
        }
        for (int i = 1; i <= 30; ++i) {
            guest.send(Op::cuEventRecord, payload::cuEventRecord_call{kEvent, kStream});
            EXPECT_EQ(alone.synchronise_event(), 0u);
            EXPECT_EQ(alone.synchronise_all(), 0u);
        }
        EXPECT_EQ(guest.read(alone.data, 64)[1], 300u);
        // Now and then the next call comes before the last one's thread has said that it is back:
        // on a busy machine, whose processor it had lost meanwhile. Then the driver is asked.
        EXPECT_LE(Counted::streams, 300);
        EXPECT_GE(Counted::streams, 270);
        EXPECT_LE(Counted::events, 30);
        EXPECT_GE(Counted::events, 15);
        EXPECT_LE(Counted::contexts, 30);
        EXPECT_GE(Counted::contexts, 15);
        EXPECT_LE(Counted::words, 30);
        EXPECT_EQ(guest.synchronise(kSecond + 7),
                  static_cast<std::uint32_t>(CUDA_ERROR_INVALID_HANDLE));
    }));
}

TEST(Waits, BehindWorkThatWasQueuedRightBeforeItAWordIsAwaited) {
    EXPECT_TRUE(in_child([] {
        Alone alone;
        Guest& guest = alone.guest;
        CommandLoop& loop = alone.host.execution->loop();
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{kSecond, 1, 0});
        const auto add_and_wait = [&](std::uint64_t address, std::uint64_t stream) {
            EXPECT_TRUE(loop.hold(std::chrono::steady_clock::now() + 10s));
            guest.add(address, 1, stream);
            const std::uint64_t position =
                guest.post(static_cast<std::uint16_t>(Op::cuStreamSynchronize),
                           std::as_bytes(std::span(&kStream, 1)), {}, true);
            loop.resume();
            return guest.wait(position).status;
        };
        for (int i = 1; i <= 100; ++i) {
            EXPECT_EQ(add_and_wait(alone.data, kStream), 0u);
            EXPECT_EQ(guest.read(alone.data, 64)[1], static_cast<std::uint32_t>(i));
        }
        EXPECT_GE(Counted::words, 50);  // The rest: see above.
        EXPECT_LE(Counted::streams, 50);
        // Another stream has got the work: nothing is known of this one.
        const int words = Counted::words;
        const int streams = Counted::streams;
        for (int i = 1; i <= 20; ++i) {
            EXPECT_EQ(add_and_wait(alone.data, kSecond), 0u);
        }
        EXPECT_LE(Counted::words, words + 5);
        EXPECT_GE(Counted::streams, streams + 5);
        // An error is told by the driver: no word lands behind it.
        EXPECT_EQ(add_and_wait(64, kStream),  // No such memory.
                  static_cast<std::uint32_t>(CUDA_ERROR_ILLEGAL_ADDRESS));
    }));
}

TEST(Waits, BehindACopyThatIsAwaitedTheWordIsQueuedAtOnce) {
    EXPECT_TRUE(in_child([] {
        Alone alone;
        Guest& guest = alone.guest;
        const auto copy = [&](std::uint64_t stream, std::uint32_t flags) {
            guest.next_flags = flags;
            guest.send(Op::cuMemcpyAsync,
                       payload::cuMemcpyAsync_call{alone.data + 128, alone.data, 64, stream});
        };
        for (int i = 0; i < 32; ++i) {
            copy(kStream, 0);  // From then on the guest counts as one of one thread.
        }
        EXPECT_EQ(guest.synchronise(kStream), 0u);
        // Before anybody has asked; but for when the thread that answered the last wait has not
        // left yet, and the guest does not look alone.
        int at_once = 0;
        for (int i = 0; i < 50; ++i) {
            const int words = Counted::words;
            copy(kStream, wire::kCommandIsAwaited);
            at_once += comes_true([&] { return Counted::words == words + 1; }, 500ms) ? 1 : 0;
            EXPECT_EQ(guest.synchronise(kStream), 0u);
        }
        EXPECT_GE(at_once, 45);
        // A hint that is wrong costs a word, and what is waited for has ended all the same.
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{kSecond, 1, 0});
        for (int i = 1; i <= 50; ++i) {
            guest.next_flags = wire::kCommandIsAwaited;
            guest.add(alone.data, 1, kSecond);
            EXPECT_EQ(guest.synchronise(kStream), 0u);
            EXPECT_EQ(guest.synchronise(kSecond), 0u);
            EXPECT_EQ(guest.read(alone.data, 64)[1], static_cast<std::uint32_t>(i));
        }
    }));
}

TEST(Waits, WhatIsReadIntoTheBulkAreaIsSeenByAWordAndItsErrorAllTheSame) {
    EXPECT_TRUE(in_child([] {
        Served served;
        Guest& guest = served.guest;
        wire::HostWords& words = served.channel.host_words();
        const auto read = [&](std::uint32_t word) {
            return guest.send(wire::ControlOp::kReadToBulk,
                              wire::BulkCopyCall{served.data, 64, kStream, 1 << 20, word, 0});
        };
        for (int i = 1; i <= 100; ++i) {
            guest.add(served.data, 1, kStream);
            const std::uint64_t position = read(100);
            EXPECT_TRUE(reaches(words.bulk_done[100], position + 1));
            std::uint32_t values[2] = {};
            std::memcpy(values, served.channel.bulk(1 << 20, sizeof(values)).data(),
                        sizeof(values));
            EXPECT_EQ(values[1], static_cast<std::uint32_t>(i));
        }
        EXPECT_EQ(Counted::words, 100);
        EXPECT_EQ(Counted::all(), 0);
        // No word lands behind an error, which nobody asks for here.
        served.wait_for_value(kStream, 7);
        guest.add(64, 1, kStream);  // No such memory.
        read(101);
        EXPECT_EQ(guest.call(Op::cuMemGetInfo_v2, payload::cuMemGetInfo_v2_call{}).status, 0u);
        // Here the driver may tell of the error that this sets off; to the worker it does not.
        served.host.device->bind_thread();
        served.host.library->api().cuStreamWriteValue32_v2(nullptr, served.data, 7, 0);
        EXPECT_TRUE(
            reaches(words.sticky_error, static_cast<std::uint32_t>(CUDA_ERROR_ILLEGAL_ADDRESS)));
        EXPECT_EQ(words.bulk_done[101].load(), 0u);
    }));
}

TEST(Waits, AWaitInTheDriverHoldsUpNobodyElse) {
    EXPECT_TRUE(in_child([] {
        Alone alone;
        Guest& guest = alone.guest;
        for (std::uint32_t round = 1; round <= 5; ++round) {
            alone.wait_for_value(kStream, round);
            const std::uint64_t wait = alone.begin_waiting(
                Op::cuCtxSynchronize, 0, Counted::contexts, static_cast<int>(round));
            guest.use_lane(kLane + 1);  // What ends the wait comes from another thread.
            const auto info = guest.call(Op::cuMemGetInfo_v2, payload::cuMemGetInfo_v2_call{});
            EXPECT_EQ(info.status, 0u);
            alone.write_value(0, round);
            guest.use_lane(kLane);
            EXPECT_EQ(guest.wait(wait).status, 0u);
            EXPECT_EQ(Counted::contexts, static_cast<int>(round));
            for (int i = 0; i < 20; ++i) {  // Alone again.
                guest.add(alone.data + 128, 1, kStream);
            }
        }
        EXPECT_EQ(alone.synchronise_all(), 0u);
        EXPECT_EQ(guest.read(alone.data + 128, 1)[0], 100u);
    }));
}

TEST(Waits, TwoWaitsAtOnceHoldUpNobodyElseEither) {
    EXPECT_TRUE(in_child([] {
        Alone alone;
        Guest& guest = alone.guest;
        alone.create_stream(kSecond);
        alone.wait_for_value(kStream, 1);
        alone.wait_for_value(kSecond, 1);
        const std::uint64_t first =
            alone.begin_waiting(Op::cuStreamSynchronize, kStream, Counted::streams, 1);
        guest.use_lane(kLane + 1);
        for (int i = 0; i < 32; ++i) {  // As if this one were alone now.
            guest.call(Op::cuMemGetInfo_v2, payload::cuMemGetInfo_v2_call{});
        }
        const std::uint64_t second =
            alone.begin_waiting(Op::cuStreamSynchronize, kSecond, Counted::streams, 2);
        guest.use_lane(kLane + 2);
        const auto info = guest.call(Op::cuMemGetInfo_v2, payload::cuMemGetInfo_v2_call{});
        EXPECT_EQ(info.status, 0u) << "nobody was left to take commands from the ring";
        const auto refused = alone.host.execution->freeze(50ms);
        ASSERT_FALSE(refused.ok());
        EXPECT_NE(refused.error().text.find("did not run dry"), std::string::npos)
            << "the loop came to no boundary: " << refused.error().text;
        alone.write_as_the_device(1);
        guest.use_lane(kLane + 1);
        EXPECT_EQ(guest.wait(second).status, 0u);
        guest.use_lane(kLane);
        EXPECT_EQ(guest.wait(first).status, 0u);
    }));
}

TEST(Waits, AnErrorAndTextComeWithTheCallThatWaitedInTheDriver) {
    EXPECT_TRUE(in_child([] {
        Alone alone;
        Guest& guest = alone.guest;
        guest.stage_piece(2, 0, sizeof(kPrintingPtx), kPrintingPtx);
        EXPECT_EQ(guest.load(kModule + 1, 2, sizeof(kPrintingPtx)), 0u);
        const std::string name = "print";
        guest.call(Op::cuModuleGetFunction, hand::NameCall{kModule + 1, kKernel + 1},
                   std::as_bytes(std::span(name)));
        hand::LaunchCall launch{};
        launch.kernel = kKernel + 1;
        launch.stream = kStream;
        for (int i = 0; i < 3; ++i) {
            launch.grid[i] = launch.block[i] = 1;
        }
        guest.send(Op::cuLaunchKernel, launch);
        EXPECT_EQ(guest.synchronise(kStream), 0u);
        EXPECT_TRUE(alone.host.output.pending());
        EXPECT_EQ(Counted::streams, 1);
        guest.add(64, 1, kStream);  // No such memory.
        EXPECT_EQ(guest.synchronise(kStream),
                  static_cast<std::uint32_t>(CUDA_ERROR_ILLEGAL_ADDRESS));
    }));
}

TEST(Waits, AFreezeWaitsForACallInTheDriver) {
    EXPECT_TRUE(in_child([] {
        Alone alone;
        Guest& guest = alone.guest;
        Execution& execution = *alone.host.execution;
        alone.wait_for_value(kStream, 1);
        const std::uint64_t wait =
            alone.begin_waiting(Op::cuStreamSynchronize, kStream, Counted::streams, 1);
        const auto refused = execution.freeze(50ms);
        EXPECT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().reason, "drain.deadline");
        std::thread freezer([&] {
            EXPECT_TRUE(execution.freeze(20s).ok());
            EXPECT_TRUE(alone.is_answered(wait));
            execution.thaw();
        });
        std::this_thread::sleep_for(30ms);
        alone.write_as_the_device(1);
        freezer.join();
        EXPECT_EQ(guest.wait(wait).status, 0u);
        EXPECT_EQ(Counted::streams, 1);
        EXPECT_EQ(alone.synchronise_all(), 0u);
    }));
}

}  // namespace
}  // namespace gantry::worker
