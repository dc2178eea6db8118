// Launches that go to the driver as graphs: together, or by themselves where they come often.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

const std::uint64_t kScale = cuda::make_handle(HandleKind::kFunction, 2ull << 24);
const std::uint64_t kMix = cuda::make_handle(HandleKind::kFunction, 3ull << 24);
const std::uint64_t kAside = cuda::make_handle(HandleKind::kStream, 2ull << 24);
constexpr std::size_t kBatch = LaunchBatcher::kBatch;
constexpr std::uint64_t kStageBytes = 4096;

/// Each kernel's result depends on what the one before it left: scale: x = x * factor + value;
/// mix: x = (x ^ value) * 3 + `odd`.
std::string ptx_with(std::uint32_t odd) {
    return R"(.version 8.0
.target sm_75
.address_size 64
.visible .entry scale(.param .u64 data, .param .u32 factor, .param .u32 value)
{
    .reg .b32 %r<5>;
    .reg .b64 %d;
    ld.param.u64 %d, [data];
    ld.param.u32 %r1, [factor];
    ld.param.u32 %r2, [value];
    ld.global.u32 %r3, [%d];
    mad.lo.u32 %r3, %r3, %r1, %r2;
    st.global.u32 [%d], %r3;
    ret;
}
.visible .entry mix(.param .u64 data, .param .u32 value)
{
    .reg .b32 %r<5>;
    .reg .b64 %d;
    ld.param.u64 %d, [data];
    ld.param.u32 %r2, [value];
    ld.global.u32 %r3, [%d];
    xor.b32 %r3, %r3, %r2;
    mad.lo.u32 %r3, %r3, 3, )" +
           std::to_string(odd) + R"(;
    st.global.u32 [%d], %r3;
    ret;
}
)";
}

/// A guest, and what its kernels must have made of their word.
struct Repeating : Serving {
    explicit Repeating(std::uint32_t first_odd = 1) : Serving() {
        guest.retain();
        guest.call(Op::cuStreamCreate, payload::cuStreamCreate_call{kStream, 1, 0});
        load(first_odd);
        data = guest.allocate(kStageBytes);
        guest.write(data, std::as_bytes(std::span(&want, 1)));
    }
    void load(std::uint32_t odd_in) {
        odd = odd_in;
        const std::string text = ptx_with(odd);
        ++image;
        guest.stage_piece(image, 0, text.size() + 1, std::span(text.c_str(), text.size() + 1));
        ASSERT_EQ(guest.load(kModule, image, text.size() + 1), 0u);
        for (const auto& [handle, name] :
             {std::pair{kScale, std::string("scale")}, std::pair{kMix, std::string("mix")}}) {
            ASSERT_EQ(guest
                          .call(Op::cuModuleGetFunction, hand::NameCall{kModule, handle},
                                std::as_bytes(std::span(name)))
                          .status,
                      0u);
        }
    }
    /// A launch that leaves the word alone.
    void scale_elsewhere(std::uint64_t stream, std::uint32_t blocks) {
        hand::LaunchCall launch = one_thread(kScale, stream);
        launch.grid[0] = blocks;
        const struct {
            std::uint64_t elsewhere;
            std::uint32_t factor, value;
        } arguments{data + 64, 0, 0};
        launch.param_bytes = sizeof arguments;
        guest.send(Op::cuLaunchKernel, launch, std::as_bytes(std::span(&arguments, 1)));
    }
    /// The stream has something to do for some time. One that has not is spared what takes long.
    void keep_busy() { scale_elsewhere(kStream, 20'000); }
    /// Launches sent from now on wait in the ring until run().
    void hold() {
        ASSERT_TRUE(host.execution->loop().hold(std::chrono::steady_clock::now() + 10s));
    }
    void run() {
        host.execution->loop().resume();
        guest.synchronise(kStream);
    }
    std::uint64_t scale(std::uint32_t factor, std::uint32_t value, std::uint64_t stream = kStream,
                        std::uint32_t threads = 1) {
        want = want * factor + value;
        const struct {
            std::uint64_t data;
            std::uint32_t factor, value;
        } arguments{data, factor, value};
        return send(kScale, stream, threads, std::as_bytes(std::span(&arguments, 1)));
    }
    void mix(std::uint32_t value, std::uint64_t stream = kStream) {
        want = (want ^ value) * 3 + odd;
        std::byte arguments[12];
        std::memcpy(arguments, &data, 8);
        std::memcpy(arguments + 8, &value, 4);
        send(kMix, stream, 1, arguments);
    }
    std::uint64_t send(std::uint64_t kernel, std::uint64_t stream, std::uint32_t threads,
                       std::span<const std::byte> arguments) {
        hand::LaunchCall launch = one_thread(kernel, stream);
        launch.block[0] = threads;
        launch.shared_bytes = shared_bytes;
        launch.param_bytes = static_cast<std::uint32_t>(arguments.size());
        return guest.send(Op::cuLaunchKernel, launch, arguments);
    }
    void configure_mix() {
        payload::cuFuncSetAttribute_call set{};
        set.hfunc = kMix;
        set.attrib = CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        set.value = 50;
        EXPECT_EQ(guest.call(Op::cuFuncSetAttribute, set).status, 0u);
    }
    /// So many launches of a pattern of three, with arguments that change.
    void pattern(std::size_t launches) {
        for (std::size_t i = 0; i < launches; ++i) {
            const auto value = static_cast<std::uint32_t>(i * 7919 + 13);
            i % 3 == 2 ? mix(value) : (void)scale(static_cast<std::uint32_t>(i % 5 + 2), value);
        }
    }
    /// So many launches that waited in the ring, and a look at what they made.
    void run_pattern(std::size_t launches) {
        hold();
        pattern(launches);
        run();
        EXPECT_EQ(got(), want);
    }
    [[nodiscard]] std::uint32_t got() { return guest.read(data, 1).front(); }
    [[nodiscard]] std::uint64_t together() const {
        return host.process->launches.counters.batched_launches.load();
    }
    [[nodiscard]] std::uint64_t prepared() const {
        return host.process->launches.counters.prepared_launches.load();
    }
    /// Launches of a pattern of three that never wait in the ring together.
    void run_apart(std::size_t launches, std::uint64_t stream = kStream) {
        for (std::size_t i = 0; i < launches; ++i) {
            const auto value = static_cast<std::uint32_t>(i * 7919 + 13);
            shared_bytes = i % 3 == 1 ? 64 : 0;
            i % 3 == 2 ? mix(value, stream) : (void)scale(2, value, stream);
            EXPECT_EQ(guest.synchronise(stream), 0u);
        }
    }
    [[nodiscard]] std::uint64_t launched() const {
        return host.process->launches.counters.launches.load();
    }

    std::uint32_t shared_bytes = 0;  ///< Of the launches from now on.
    std::uint32_t want = 1;
    std::uint32_t odd = 0;
    std::uint64_t image = 0;
    std::uint64_t data = 0;
};

TEST(LaunchAccount, TheFirstSampleCountsForItself) {
    LaunchAccount::Kernel kernel;
    kernel.launches = 101;
    EXPECT_EQ(kernel.gpu_us(), 0);
    kernel.add_sample(5000);  // It loads the kernel's code.
    EXPECT_EQ(kernel.gpu_us(), 5000 * 101);
    kernel.add_sample(10);
    kernel.add_sample(30);
    EXPECT_EQ(kernel.gpu_us(), 5000 + 20 * 100);
}

TEST(LaunchBatcher, RepeatedLaunchesGoTogetherInTheirOrder) {
    EXPECT_TRUE(in_child([] {
        Repeating repeating;
        constexpr std::size_t kLaunches = 60 * kBatch;
        repeating.run_pattern(kLaunches);
        EXPECT_EQ(repeating.launched(), kLaunches);
        // Three shapes, as 16 and 3 have no common divisor, each seen three times first; and no
        // more than the device may lag behind.
        EXPECT_GE(repeating.together(), 30 * kBatch);
    }));
}

TEST(LaunchBatcher, ArgumentsThatAreTheSameStayAsTheyAre) {
    EXPECT_TRUE(in_child([] {
        Repeating repeating;
        repeating.hold();
        for (std::size_t i = 0; i < 20 * kBatch; ++i) {
            repeating.scale(3, i % 64 == 63 ? 5 : 4);
        }
        repeating.run();
        EXPECT_EQ(repeating.got(), repeating.want);
        EXPECT_GE(repeating.together(), 10 * kBatch);
    }));
}

TEST(LaunchBatcher, WhatDoesNotRepeatGoesTogetherAsWell) {
    EXPECT_TRUE(in_child([] {
        Repeating repeating;
        repeating.keep_busy();
        repeating.hold();
        std::uint32_t odd_step = 1;
        for (std::size_t i = 0; i < 20 * kBatch; ++i) {
            odd_step = odd_step * 1664525 + 1013904223;
            (odd_step >> 16) % 2 == 0 ? repeating.mix(odd_step)
                                      : (void)repeating.scale(3, odd_step);
        }
        repeating.run();
        EXPECT_EQ(repeating.got(), repeating.want);
        EXPECT_EQ(repeating.launched(), 1 + 20 * kBatch);
        EXPECT_GE(repeating.together(), 10 * kBatch);
    }));
}

TEST(LaunchBatcher, OtherCommandsAndStreamsBetweenKeepTheirPlace) {
    EXPECT_TRUE(in_child([] {
        Repeating repeating;
        repeating.guest.call(Op::cuStreamCreate, payload::cuStreamCreate_call{kAside, 1, 0});
        repeating.guest.call(Op::cuEventCreate, payload::cuEventCreate_call{kEvent, 0, 0});
        repeating.hold();
        for (std::size_t i = 0; i < 40; ++i) {
            repeating.pattern(2 * kBatch + 5);
            // In stream order behind them, or its 1 is lost.
            const auto fill = static_cast<std::uint32_t>(i);
            payload::cuMemsetD32Async_call set{};
            set.dstDevice = repeating.data;
            set.ui = fill;
            set.N = 1;
            set.hStream = kStream;
            repeating.guest.send(Op::cuMemsetD32Async, set);
            repeating.want = fill;
            repeating.scale_elsewhere(kAside, 1);
            repeating.scale(2, 1);
        }
        // A graph that one stream used serves the other, in either's own order.
        for (std::size_t i = 0; i < 20 * kBatch; ++i) {
            const bool is_first = i / kBatch % 2 == 0;
            repeating.scale(3, static_cast<std::uint32_t>(i), is_first ? kStream : kAside);
            if (i % kBatch == kBatch - 1) {
                repeating.guest.send(Op::cuEventRecord, payload::cuEventRecord_call{
                                                            kEvent, is_first ? kStream : kAside});
                repeating.guest.send(
                    Op::cuStreamWaitEvent,
                    payload::cuStreamWaitEvent_call{is_first ? kAside : kStream, kEvent, 0, 0});
            }
        }
        repeating.run();
        EXPECT_EQ(repeating.got(), repeating.want);
        EXPECT_GT(repeating.together(), 0u);
    }));
}

TEST(LaunchBatcher, AnEndedModulesKernelsAreForgotten) {
    EXPECT_TRUE(in_child([] {
        Repeating repeating(1);
        for (const std::uint32_t odd : {5u, 11u, 17u}) {
            repeating.run_pattern(30 * kBatch);
            // The same handles, and most likely the driver's as well; other code.
            repeating.guest.send(Op::cuModuleUnload, payload::cuModuleUnload_call{kModule});
            repeating.load(odd);
        }
        const std::uint64_t before = repeating.together();
        repeating.run_pattern(30 * kBatch);
        EXPECT_GT(repeating.together(), before);
    }));
}

TEST(LaunchBatcher, ConfiguredFunctionsAreLeftOut) {
    EXPECT_TRUE(in_child([] {
        Repeating repeating;
        repeating.run_pattern(30 * kBatch);
        const std::uint64_t before = repeating.together();
        EXPECT_GT(before, 0u);
        repeating.configure_mix();
        repeating.run_pattern(30 * kBatch);
        EXPECT_EQ(repeating.together(), before);
    }));
}

TEST(LaunchBatcher, ALaunchThatFailsIsToldOfAndTheOthersRun) {
    EXPECT_TRUE(in_child([] {
        Repeating repeating;
        for (int round = 0; round < 8; ++round) {
            repeating.hold();
            for (std::size_t i = 0; i < 2 * kBatch; ++i) {
                if (i % kBatch == 7) {
                    const std::uint32_t kept = repeating.want;
                    repeating.scale(3, 1, kStream, 4096);  // No device has blocks of 4,096.
                    repeating.want = kept;
                } else {
                    repeating.scale(3, static_cast<std::uint32_t>(i));
                }
            }
            repeating.host.execution->loop().resume();
            EXPECT_EQ(repeating.guest.synchronise(kStream),
                      static_cast<std::uint32_t>(CUDA_ERROR_INVALID_VALUE));
            EXPECT_EQ(repeating.got(), repeating.want);
        }
        EXPECT_EQ(repeating.together(), 0u);
    }));
}

TEST(LaunchBatcher, StreamsThatDifferAreLeftOut) {
    EXPECT_TRUE(in_child([] {
        Repeating repeating;
        payload::cuStreamCreateWithPriority_call create{};
        create.phStream = kAside;
        create.flags = 1;
        create.priority = -1;
        EXPECT_EQ(repeating.guest.call(Op::cuStreamCreateWithPriority, create).status, 0u);
        repeating.hold();
        for (std::size_t i = 0; i < 20 * kBatch; ++i) {
            repeating.scale(3, 1, kAside);
        }
        repeating.host.execution->loop().resume();
        repeating.guest.synchronise(kAside);
        EXPECT_EQ(repeating.got(), repeating.want);
        EXPECT_EQ(repeating.together(), 0u);
    }));
}

TEST(LaunchBatcher, AShapeThatComesOftenHasAGraphForSingleLaunches) {
    EXPECT_TRUE(in_child([] {
        Repeating repeating;
        constexpr std::size_t kLaunches = 300;
        repeating.run_apart(kLaunches);
        EXPECT_EQ(repeating.got(), repeating.want);
        EXPECT_EQ(repeating.launched(), kLaunches);
        EXPECT_EQ(repeating.together(), 0u);
        EXPECT_GE(repeating.prepared(), kLaunches - 3 * 3);  // Each is seen three times first.
    }));
}

TEST(LaunchBatcher, SingleGraphsFollowTheirKernelsAndStreams) {
    EXPECT_TRUE(in_child([] {
        Repeating repeating(1);
        repeating.guest.call(Op::cuStreamCreate, payload::cuStreamCreate_call{kAside, 1, 0});
        for (const std::uint32_t odd : {5u, 11u, 17u}) {
            repeating.run_apart(30);
            repeating.run_apart(30, kAside);
            repeating.guest.send(Op::cuModuleUnload, payload::cuModuleUnload_call{kModule});
            repeating.load(odd);  // The same handles, other code.
        }
        const std::uint64_t before = repeating.prepared();
        EXPECT_GT(before, 0u);
        repeating.configure_mix();
        repeating.run_apart(60);
        EXPECT_EQ(repeating.prepared() - before, 60u - 20u - 2 * 2u);  // All but those of `mix`.
        EXPECT_EQ(repeating.got(), repeating.want);
    }));
}

TEST(LaunchBatcher, MoreShapesThanGraphsAreLaunchedAllTheSame) {
    EXPECT_TRUE(in_child([] {
        Repeating repeating;
        constexpr std::uint32_t kShapes = 3 * LaunchGraphs::kSingle;
        for (std::uint32_t i = 0; i < 12 * kShapes; ++i) {
            repeating.shared_bytes = i % kShapes * 16;
            repeating.scale(1, i);
            EXPECT_EQ(repeating.guest.synchronise(kStream), 0u);
        }
        EXPECT_EQ(repeating.got(), repeating.want);
        EXPECT_GT(repeating.prepared(), 0u);
        EXPECT_LT(repeating.prepared(), repeating.launched());
    }));
}

}  // namespace
}  // namespace gantry::worker
