// The book of what waits behind host callbacks, where callbacks return at any moment.
#include "host-daemon/execution/process/held_work.h"

#include <gtest/gtest.h>

#include <array>
#include <span>

#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

/// Commands of one stream, the legacy one.
class Book {
public:
    Book() : held(*host_.device) {}

    /// The driver has it; it has yet to be noted.
    void queue_callback(std::uint64_t position) {
        callback_.header.op = static_cast<std::uint16_t>(cuda::Op::cuLaunchHostFunc);
        callback_.header.position = position;
        EXPECT_TRUE(held.begin_touches(callback_, false));
        held.touch(0, nullptr);
    }
    void note(bool succeeded = true) { held.note(callback_, succeeded); }
    /// As the guest's stream `key` is destroyed; note() comes behind it.
    void destroy_stream(std::uint64_t position, std::uint64_t key, CUstream stream) {
        callback_.header.op = static_cast<std::uint16_t>(cuda::Op::cuStreamDestroy_v2);
        callback_.header.position = position;
        EXPECT_TRUE(held.begin_touches(callback_, false));
        held.touch(key, stream);
        EXPECT_EQ(api().cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    }
    /// A test may put its own functions in front of the driver's.
    driver::DriverApi& api() { return const_cast<driver::DriverApi&>(host_.device->api()); }
    bool a_wait_is_held(std::uint64_t position) {
        const std::array<std::uint64_t, 1> legacy{};
        Command wait;
        wait.header.op = static_cast<std::uint16_t>(cuda::Op::cuStreamSynchronize);
        wait.header.position = position;
        wait.args = std::as_bytes(std::span(legacy));
        return held.waits(wait);
    }

private:
    Host host_;
    Command callback_;

public:
    HeldWork held;
};

TEST(HeldWork, AWaitIsHeldUntilTheCallbackBeforeItHasReturned) {
    EXPECT_TRUE(in_child([] {
        Book book;
        book.queue_callback(64);
        book.note();
        EXPECT_TRUE(book.held.active());
        EXPECT_TRUE(book.a_wait_is_held(128));
        EXPECT_FALSE(book.a_wait_is_held(32)) << "before it";
        book.held.close(64);
        EXPECT_FALSE(book.held.active());
        EXPECT_FALSE(book.a_wait_is_held(128));
    }));
}

TEST(HeldWork, ManyCallbacksOfAStreamCloseOneAfterTheOther) {
    EXPECT_TRUE(in_child([] {
        constexpr std::uint64_t kCallbacks = 20'000;  // Not in time if each knew of all before it.
        Book book;
        for (std::uint64_t i = 1; i <= kCallbacks; ++i) {
            book.queue_callback(64 * i);
            book.note();
        }
        EXPECT_EQ(book.held.root_count(), kCallbacks);
        for (std::uint64_t i = 1; i <= kCallbacks; ++i) {
            EXPECT_TRUE(book.a_wait_is_held(64 * kCallbacks + 64));
            EXPECT_EQ(book.held.first_position(), 64 * i);
            if (i % 1000 == 1) {
                EXPECT_EQ(book.held.first_roots(), HeldWork::Roots{64 * i});
            }
            book.held.close(64 * i);
        }
        EXPECT_FALSE(book.held.active());
        EXPECT_FALSE(book.a_wait_is_held(64 * kCallbacks + 64));
    }));
}

// The guest's answer can be helped past a consumer that stands still behind the driver's call.
TEST(HeldWork, ACallbackThatReturnsBeforeItIsNotedIsNotOpen) {
    EXPECT_TRUE(in_child([] {
        Book book;
        book.queue_callback(64);
        book.held.close(64);
        book.note();
        EXPECT_FALSE(book.held.active());
        EXPECT_FALSE(book.a_wait_is_held(128));
        book.queue_callback(192);
        book.note();
        EXPECT_TRUE(book.a_wait_is_held(256)) << "the next one is";
        book.queue_callback(320);
        book.held.close(192);
        book.note();
        EXPECT_TRUE(book.a_wait_is_held(384)) << "the one before it returned, and was noted";
        book.held.close(320);
        EXPECT_FALSE(book.held.active());
    }));
}

decltype(driver::DriverApi::cuStreamGetFlags) g_get_flags;
decltype(driver::DriverApi::cuStreamDestroy_v2) g_destroy;
CUstream g_destroyed = nullptr;
int g_asked = 0;           // About streams.
int g_asked_too_late = 0;  // ... that were destroyed.

// On NVIDIA's driver that ends the worker now and then: the stream is memory that is gone.
TEST(HeldWork, ADestroyedStreamIsNotAskedAbout) {
    EXPECT_TRUE(in_child([] {
        Book book;
        g_get_flags = book.api().cuStreamGetFlags;
        g_destroy = book.api().cuStreamDestroy_v2;
        book.api().cuStreamGetFlags = [](CUstream stream, unsigned int* flags) {
            ++g_asked;
            g_asked_too_late += stream != nullptr && stream == g_destroyed ? 1 : 0;
            return g_get_flags(stream, flags);
        };
        book.api().cuStreamDestroy_v2 = [](CUstream stream) {
            g_destroyed = stream;
            return g_destroy(stream);
        };
        CUstream stream = nullptr;
        EXPECT_EQ(book.api().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        book.queue_callback(64);
        book.note();
        book.destroy_stream(128, kStream, stream);
        book.note();
        EXPECT_GT(g_asked, 0);
        EXPECT_EQ(g_asked_too_late, 0);
        EXPECT_FALSE(book.held.is_regular()) << "another worker could not destroy it again";
        book.held.close(64);
        EXPECT_FALSE(book.held.active());
    }));
}

TEST(HeldWork, WhatTheDriverRefusedIsNotOpen) {
    EXPECT_TRUE(in_child([] {
        Book book;
        book.queue_callback(64);
        book.note(false);
        EXPECT_FALSE(book.held.active());
    }));
}

}  // namespace
}  // namespace gantry::worker
