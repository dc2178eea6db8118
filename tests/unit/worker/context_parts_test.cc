// What the worker itself makes in a context of the program's, which may end before the worker does.
#include <gtest/gtest.h>

#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/device/event_pool.h"
#include "host-daemon/execution/device/lane_streams.h"
#include "host-daemon/execution/memory/charged_bytes.h"
#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

constexpr std::uint32_t kSomeLane = 3;

/// A device, and a context as cuCtxCreate makes it for a program; it is current at first.
struct Contexts {
    Contexts() {
        device.bind_thread();
        own = make();
    }
    [[nodiscard]] CUcontext make() const {
        CUcontext made = nullptr;
        EXPECT_EQ(device.api().cuCtxCreate_v2(&made, 0, device.ordinal()), CUDA_SUCCESS);
        return made;
    }
    void enter(CUcontext context) const {
        EXPECT_EQ(device.api().cuCtxSetCurrent(context), CUDA_SUCCESS);
    }

    Host host;
    Device& device = *host.device;
    CUcontext own = nullptr;
};

TEST(EventPool, AnEventThatHasToldIsUsedAgainInItsContextOnly) {
    EXPECT_TRUE(in_child([] {
        Contexts contexts;
        EventPool events(contexts.device);
        const EventPool::Event of_own = events.record(nullptr);
        ASSERT_TRUE(of_own);
        EXPECT_EQ(of_own.context, contexts.own);
        EXPECT_EQ(contexts.device.api().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
        EXPECT_EQ(events.query(of_own), CUDA_SUCCESS);
        events.keep(of_own);
        contexts.enter(contexts.device.context());
        const EventPool::Event of_primary = events.record(nullptr);
        ASSERT_TRUE(of_primary);
        EXPECT_NE(of_primary.native, of_own.native);
        contexts.enter(contexts.own);
        EXPECT_EQ(events.record(nullptr).native, of_own.native);
    }));
}

TEST(EventPool, OfAContextThatHasEndedNoEventIsTouched) {
    EXPECT_TRUE(in_child([] {
        Contexts contexts;
        EventPool events(contexts.device);
        const EventPool::Event free = events.record(nullptr);
        const EventPool::Event in_use = events.record(nullptr);
        ASSERT_TRUE(free && in_use);
        EXPECT_EQ(contexts.device.api().cuCtxSynchronize(), CUDA_SUCCESS);
        events.keep(free);
        events.context_ends(contexts.own);
        for (const EventPool::Event& event : {free, in_use}) {  // As NVIDIA's driver does.
            EXPECT_EQ(contexts.device.api().cuEventDestroy_v2(event.native), CUDA_SUCCESS);
        }
        EXPECT_EQ(contexts.device.api().cuCtxDestroy_v2(contexts.own), CUDA_SUCCESS);
        EXPECT_NE(contexts.device.api().cuEventQuery(in_use.native), CUDA_SUCCESS);
        EXPECT_EQ(events.query(in_use), CUDA_SUCCESS) << "its work was waited for";
        events.keep(in_use);
        // Also where another context has got the address of the one that is gone.
        contexts.enter(contexts.make());
        for (int i = 0; i < 2; ++i) {
            const EventPool::Event event = events.record(nullptr);
            ASSERT_TRUE(event);
            EXPECT_NE(event.life, in_use.life);
            EXPECT_EQ(contexts.device.api().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
            EXPECT_EQ(contexts.device.api().cuEventQuery(event.native), CUDA_SUCCESS);
        }
    }));
}

TEST(LaneStreams, ALaneHasOneInEachContextThatGoesWithIt) {
    EXPECT_TRUE(in_child([] {
        Contexts contexts;
        LaneStreams streams(contexts.device);
        EXPECT_TRUE(streams.is_empty());
        CUstream of_own = nullptr;
        CUstream again = nullptr;
        CUstream of_primary = nullptr;
        EXPECT_EQ(streams.open(contexts.own, kSomeLane, &of_own), CUDA_SUCCESS);
        EXPECT_EQ(streams.open(contexts.own, kSomeLane, &again), CUDA_SUCCESS);
        EXPECT_EQ(of_own, again);
        contexts.enter(contexts.device.context());
        EXPECT_EQ(streams.find(contexts.device.context(), kSomeLane), nullptr);
        EXPECT_EQ(streams.open(contexts.device.context(), kSomeLane, &of_primary), CUDA_SUCCESS);
        EXPECT_NE(of_primary, of_own);
        EXPECT_EQ(streams.all().size(), 2u);
        EXPECT_EQ(streams.context_ends(contexts.own), std::vector<std::uint32_t>{kSomeLane});
        EXPECT_EQ(streams.find(contexts.own, kSomeLane), nullptr);
        EXPECT_EQ(streams.of_lane(kSomeLane), std::vector<CUstream>{of_primary});
        streams.clear();
        EXPECT_TRUE(streams.all().empty());
    }));
}

TEST(ChargedBytes, OfLevelsThatNoDriverMakesAreNone) {
    CUDA_ARRAY3D_DESCRIPTOR_v2 array{};
    array.Width = 4;
    array.Height = 4;
    array.Format = CU_AD_FORMAT_UNSIGNED_INT8;
    array.NumChannels = 1;
    EXPECT_EQ(mipmapped_array_bytes(array, 1), 16u);
    EXPECT_EQ(mipmapped_array_bytes(array, 3), 16u + 4 + 1);
    EXPECT_EQ(mipmapped_array_bytes(array, 30), 16u + 4 + 1);
}

// What a line says may come from a guest.
TEST(Log, ALongLineIsCutAndEndsAsOne) {
    EXPECT_TRUE(in_child([] {
        int ends[2];
        ASSERT_EQ(::pipe(ends), 0);
        set_log_descriptor(ends[1]);
        const std::string text(5000, 'x');
        log_line("%s", text.c_str());
        log_line("next");
        char read_back[8192];
        const ssize_t bytes = ::read(ends[0], read_back, sizeof(read_back));
        ASSERT_GT(bytes, 0);
        const std::string_view all(read_back, static_cast<std::size_t>(bytes));
        const std::size_t end = all.find('\n');
        EXPECT_EQ(end, 1022u) << "a byte is kept for the end of the line";
        EXPECT_EQ(all.find('\0'), std::string_view::npos);
        EXPECT_TRUE(all.substr(end + 1).ends_with("next\n"));
    }));
}

}  // namespace
}  // namespace gantry::worker
