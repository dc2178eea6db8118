// How a session starts and ends against a fake worker, and what it finds in a region. A session is
// one per process, so each test's body runs in a child process of its own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "guest-shim/session/connection.h"
#include "guest-shim/session/programs.h"
#include "guest-shim/session/session.h"
#include "tests/unit/shim/in_child.h"

namespace gantry::test {
namespace {

TEST(Session, StartsAndReadsFacts) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        CHECK_OR_EXIT(session::gate() == CUDA_ERROR_NOT_INITIALIZED);
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        CHECK_OR_EXIT(session::device_count() == 1);
        CHECK_OR_EXIT(std::strcmp(session::device_facts(0)->name, "Fake GPU") == 0);
        CHECK_OR_EXIT(session::device_facts(1) == nullptr);
        CHECK_OR_EXIT(session::device_facts(-1) == nullptr);
        CHECK_OR_EXIT(session::driver_version() == 13000);
    }));
}

TEST(Session, RefusesAnotherTable) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.hello_hash = 0x9999;
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_ERROR_NOT_INITIALIZED);
    }));
}

TEST(Session, TellsWhyGantrydRefuses) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.accept = 0;
        worker.start();
        session::Attachment attachment;
        session::AttachProblem problem;
        CHECK_OR_EXIT(!session::attach(getenv("GANTRY_TRANSPORT"), 0, 5000, &attachment, &problem));
        CHECK_OR_EXIT(std::strstr(problem.text, "quota of this user is used up") != nullptr);
    }));
}

TEST(Session, HalfAnAnswerOfGantrydIsNone) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.attach_reply_bytes = 8;
        worker.start();
        session::Attachment attachment;
        session::AttachProblem problem;
        CHECK_OR_EXIT(!session::attach(getenv("GANTRY_TRANSPORT"), 0, 5000, &attachment, &problem));
        CHECK_OR_EXIT(std::strstr(problem.text, "no answer from gantryd") != nullptr);
        CHECK_OR_EXIT(attachment.link_fd == -1);
    }));
}

TEST(Session, AnEndBeforeTheStartEndsNothing) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        session::end();
        CHECK_OR_EXIT(session::gate() == CUDA_ERROR_NOT_INITIALIZED);
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
        session::end();
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_ERROR_DEINITIALIZED);
    }));
}

// A VM's region is its programs' together: as many channels as it has room for, and one at least.
TEST(Session, ARegionHasAChannelForEach64MiB) {
    const auto has_channels = [](std::uint64_t bytes, std::uint32_t channels) {
        return in_child([&](FakeWorker& worker) {
            worker.by_file = true;
            worker.region_bytes = bytes;
            worker.start();
            CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
            CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
            CHECK_OR_EXIT(session::g_connection.guest_directory->channel_count == channels);
            worker.host().device_bytes = 12345;
            session::Program found[2] = {};
            CHECK_OR_EXIT(session::programs(found, 2) == 1);
            CHECK_OR_EXIT(found[0].pid == static_cast<std::uint32_t>(getpid()));
            CHECK_OR_EXIT(found[0].device_bytes == session::Program::kNotKnown);  // A mirror.
            worker.host().shares_bulk = 1;
            CHECK_OR_EXIT(session::programs(found, 2) == 1 && found[0].device_bytes == 12345);
        });
    };
    EXPECT_TRUE(has_channels(16ull << 20, 1));
    EXPECT_TRUE(has_channels(150ull << 20, 2));
    EXPECT_TRUE(has_channels(2ull << 30, 16));
}

// A region's generations begin anew one day. What the ring has of the first time would pass for
// records of the second.
TEST(Session, AGenerationThatBeginsAnewFindsAnEmptyRing) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.on_attach = [&] {
            auto* directory = reinterpret_cast<wire::GuestDirectory*>(worker.region());
            directory->claims[0].generation = wire::kMaxGeneration;
            std::memset(worker.region() + worker.layout().ring, 0xff, worker.layout().ring_bytes);
        };
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        CHECK_OR_EXIT(session::g_connection.generation == 1);
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
        const std::byte* ring = worker.region() + worker.layout().ring;
        const std::uint64_t half = worker.layout().ring_bytes / 2;
        CHECK_OR_EXIT(std::count(ring + half, ring + 2 * half, std::byte{0}) ==
                      static_cast<std::ptrdiff_t>(half));
    }));
}

TEST(Session, TheTraceHasALineForEachCommand) {
    const std::string path = testing::TempDir() + "/trace-" + std::to_string(getpid());
    EXPECT_TRUE(in_child([&](FakeWorker& worker) {
        setenv("GANTRY_TRACE", path.c_str(), 1);
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        for (int i = 0; i < 3; ++i) {
            CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
            CHECK_OR_EXIT(session::post(kOpB, nullptr, 0, nullptr, 0) == CUDA_SUCCESS);
        }
    }));
    std::ifstream trace(path);
    std::string ops;
    for (std::string line; std::getline(trace, line);) {
        const std::size_t at = line.find("command 10");
        ops += at == std::string::npos ? "" : line.substr(at + 8, 4);
    }
    EXPECT_EQ(ops, "100 101 100 101 100 101 ");
    unlink(path.c_str());
}

TEST(Session, RefusesUnknownSettings) {
    EXPECT_TRUE(in_child([](FakeWorker&) {
        setenv("GANTRY_TRANSPROT", "unix:/x", 1);
        CHECK_OR_EXIT(session::start() == CUDA_ERROR_INVALID_VALUE);
    }));
    EXPECT_TRUE(in_child([](FakeWorker&) {
        setenv("GANTRY_TRANSPORT", "carrier-pigeon:home", 1);
        CHECK_OR_EXIT(session::start() == CUDA_ERROR_INVALID_VALUE);
    }));
}

}  // namespace
}  // namespace gantry::test
