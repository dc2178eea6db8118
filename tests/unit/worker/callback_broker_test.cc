// Host callbacks that were with the guest when its process moved.
#include "host-daemon/execution/ring/callback_broker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

namespace gantry::worker {
namespace {

using namespace std::chrono_literals;

struct Callbacks {
    std::vector<std::uint64_t> offered;
    std::atomic<int> helped{0};
    CallbackBroker broker{[this](const CallbackBroker::Parked&, const wire::CallbackReply& reply) {
                              offered.push_back(reply.callback_id);
                          },
                          [this] { ++helped; }};

    /// As a driver's thread does when a stream reaches the callback of that command.
    std::future<void> reach(std::uint64_t position) {
        CallbackBroker::Callback* const callback = broker.add({}, position);
        return std::async(std::launch::async, [callback] { CallbackBroker::run(callback, 0); });
    }
};

TEST(CallbackBroker, AMovedCallbackIsOpenUntilTheGuestSaysThatItEnded) {
    Callbacks callbacks;
    callbacks.broker.load_open({70, 5});
    std::future<void> stream = callbacks.reach(70);
    // So long that help was called for several times: nothing but the guest's word ends it.
    while (callbacks.helped < 5 && stream.wait_for(1ms) == std::future_status::timeout) {
    }
    ASSERT_EQ(stream.wait_for(0s), std::future_status::timeout);
    EXPECT_EQ(callbacks.broker.outstanding(), 1U);
    EXPECT_TRUE(callbacks.broker.done(5));
    stream.get();
    EXPECT_EQ(callbacks.broker.outstanding(), 0U);
    EXPECT_TRUE(callbacks.offered.empty()) << "the guest has it already";
}

TEST(CallbackBroker, OneThatEndedBeforeItsStreamCameHereIsNotRunAgain) {
    Callbacks callbacks;
    callbacks.broker.load_open({70, 5});
    EXPECT_TRUE(callbacks.broker.done(5));
    callbacks.reach(70).get();
    EXPECT_TRUE(callbacks.offered.empty());
}

TEST(CallbackBroker, TheNextOneIsOfferedOnceTheMovedOneHasEnded) {
    Callbacks callbacks;
    callbacks.broker.load_open({70, 5});
    std::future<void> moved = callbacks.reach(70);
    while (callbacks.helped < 1 && moved.wait_for(1ms) == std::future_status::timeout) {
    }
    callbacks.broker.wait({80, 0});
    std::future<void> next = callbacks.reach(75);
    while (!callbacks.broker.has_reached({75})) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(callbacks.offered.empty()) << "one callback is with the guest at a time";
    EXPECT_TRUE(callbacks.broker.done(5));
    ASSERT_EQ(callbacks.offered, std::vector<std::uint64_t>{6});
    EXPECT_FALSE(callbacks.broker.done(5)) << "ended already";
    EXPECT_TRUE(callbacks.broker.done(6));
    moved.get();
    next.get();
}

TEST(CallbackBroker, ALooseOneHoldsNothingUpAndGoesAlongUntilTheGuestHasIt) {
    Callbacks callbacks;
    callbacks.broker.run_loose({});
    callbacks.broker.run_loose({});
    EXPECT_EQ(callbacks.broker.outstanding(), 0U);
    EXPECT_EQ(callbacks.broker.loose().size(), 2U);
    callbacks.broker.wait({80, 0});
    ASSERT_EQ(callbacks.offered, std::vector<std::uint64_t>{1});
    EXPECT_EQ(callbacks.broker.loose().size(), 1U) << "the guest has one";
    const auto open = callbacks.broker.open();
    ASSERT_TRUE(open.has_value());
    EXPECT_EQ(open->position, 0U);

    Callbacks moved;
    moved.broker.load_open(*open);
    moved.broker.run_loose({});
    std::future<void> stream = moved.reach(75);
    EXPECT_TRUE(moved.broker.done(1));
    moved.broker.wait({90, 0});
    EXPECT_EQ(moved.offered, std::vector<std::uint64_t>{2});
    EXPECT_TRUE(moved.broker.done(2));
    moved.broker.wait({95, 0});
    while (moved.offered.size() < 2) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(moved.broker.done(3));
    stream.get();
}

}  // namespace
}  // namespace gantry::worker
