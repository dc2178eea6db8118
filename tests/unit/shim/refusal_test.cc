// What a tenant reads when a session cannot start: each text says what, where and what to do. A
// session is one per process, so each start happens in a child of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "guest-shim/session/session.h"
#include "tests/unit/shim/fake_worker.h"

namespace gantry::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Refusal {
    int cuda_error = -1;
    std::string text;  ///< All that came out on stderr.
};

/// Starts a session in a child after `prepare`.
Refusal start_after(const std::function<void(FakeWorker&)>& prepare) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        dup2(ends[1], STDERR_FILENO);
        int result = 0;
        {
            FakeWorker worker;
            prepare(worker);
            result = static_cast<int>(session::start());
            worker.die(false);
        }
        const ssize_t written = write(ends[1], &result, sizeof(result));
        _exit(written == sizeof(result) ? 0 : 1);
    }
    close(ends[1]);
    std::string all;
    char piece[512];
    for (ssize_t got = 0; (got = read(ends[0], piece, sizeof(piece))) > 0;) {
        all.append(piece, static_cast<std::size_t>(got));
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << all;
    Refusal refusal;
    if (all.size() >= sizeof(int)) {
        std::memcpy(&refusal.cuda_error, all.data() + all.size() - sizeof(int), sizeof(int));
        refusal.text = all.substr(0, all.size() - sizeof(int));
    }
    return refusal;
}

TEST(Refusal, UnknownSettingIsNamedWithTheNearestKnown) {
    const Refusal refusal =
        start_after([](FakeWorker&) { setenv("GANTRY_TRANSPROT", "unix:/x", 1); });
    EXPECT_EQ(refusal.cuda_error, CUDA_ERROR_INVALID_VALUE);
    EXPECT_THAT(refusal.text, AllOf(StartsWith("gantry: unknown setting GANTRY_TRANSPROT"),
                                    HasSubstr("the nearest that is known is GANTRY_TRANSPORT:")));
    const Refusal soft = start_after([](FakeWorker&) { setenv("GANTRY_SOFT_THREAD", "2", 1); });
    EXPECT_EQ(soft.cuda_error, CUDA_ERROR_INVALID_VALUE);
    EXPECT_THAT(soft.text, HasSubstr("the nearest that is known is GANTRY_SOFT_THREADS:"));
}

TEST(Refusal, SettingsOfOthersAreLeftAlone) {
    const Refusal none = start_after([](FakeWorker& worker) {
        worker.start();
        setenv("GANTRY_SERVICE_HOST", "10.0.0.1", 1);
        setenv("GANTRY_PORT", "tcp://10.0.0.1:7700", 1);
        setenv("GANTRY_PORT_7700_TCP_ADDR", "10.0.0.1", 1);
        setenv("GANTRY_VERSION", "3.1.0", 1);
    });
    EXPECT_EQ(none.cuda_error, CUDA_SUCCESS);
    EXPECT_EQ(none.text, "");
}

TEST(Refusal, UnknownTransportIsNamedWithTheKnownOnes) {
    const Refusal refusal =
        start_after([](FakeWorker&) { setenv("GANTRY_TRANSPORT", "carrier-pigeon:home", 1); });
    EXPECT_EQ(refusal.cuda_error, CUDA_ERROR_INVALID_VALUE);
    EXPECT_THAT(refusal.text,
                AllOf(HasSubstr("GANTRY_TRANSPORT=carrier-pigeon:home: unknown transport"),
                      HasSubstr("use unix:PATH, ivshmem:[PATH] or file:PATH")));
}

TEST(Refusal, ValueOutOfRangeSaysTheRange) {
    const Refusal flag = start_after([](FakeWorker&) { setenv("GANTRY_SYNC", "yes", 1); });
    EXPECT_EQ(flag.cuda_error, CUDA_ERROR_INVALID_VALUE);
    EXPECT_THAT(flag.text, HasSubstr("GANTRY_SYNC=yes in the environment: the value must be 0 or "
                                     "1"));
    for (const char* wrong : {"0", "5s", "", "99999999"}) {
        const Refusal time =
            start_after([wrong](FakeWorker&) { setenv("GANTRY_CONNECT_TIMEOUT_MS", wrong, 1); });
        EXPECT_EQ(time.cuda_error, CUDA_ERROR_INVALID_VALUE);
        EXPECT_THAT(time.text, AllOf(HasSubstr("GANTRY_CONNECT_TIMEOUT_MS="),
                                     HasSubstr("must be 1 to 3600000 milliseconds")));
    }
}

TEST(Refusal, NobodyListeningAsksForGantryd) {
    const Refusal refusal =
        start_after([](FakeWorker&) { setenv("GANTRY_TRANSPORT", "unix:/nonexistent/gantry", 1); });
    EXPECT_EQ(refusal.cuda_error, CUDA_ERROR_NO_DEVICE);
    EXPECT_THAT(refusal.text, AllOf(HasSubstr("unix:/nonexistent/gantry: No such file"),
                                    HasSubstr("is gantryd running")));
}

TEST(Refusal, WorkerOfAnotherBuildSaysBothVersions) {
    const Refusal refusal = start_after([](FakeWorker& worker) {
        worker.hello_hash = 0x9999;
        worker.start();
    });
    EXPECT_EQ(refusal.cuda_error, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    EXPECT_THAT(refusal.text,
                AllOf(HasSubstr("call table 0000000000009999"), HasSubstr("and 0000000000001234"),
                      HasSubstr("install the same Gantry version on both sides")));
}

TEST(Refusal, DaemonOfAnotherWireVersionSaysBothVersions) {
    const Refusal refusal = start_after([](FakeWorker& worker) {
        worker.attach_wire_version = wire::kWireVersion + 7;
        worker.start();
    });
    EXPECT_EQ(refusal.cuda_error, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    EXPECT_THAT(refusal.text,
                AllOf(HasSubstr("speaks wire version " + std::to_string(wire::kWireVersion + 7)),
                      HasSubstr("install the same Gantry version on both sides")));
}

TEST(Refusal, GantrydsOwnWordsReachTheTenant) {
    const Refusal refusal = start_after([](FakeWorker& worker) {
        worker.accept = 0;
        worker.start();
    });
    EXPECT_THAT(refusal.text, AllOf(HasSubstr("refuses this process"),
                                    HasSubstr("the quota of this user is used up")));
}

// A machine where nobody configured Gantry has no device, and programs that probe see no text.
TEST(Refusal, UnconfiguredMachineIsSilent) {
    const Refusal refusal = start_after([](FakeWorker&) { unsetenv("GANTRY_TRANSPORT"); });
    EXPECT_EQ(refusal.cuda_error, CUDA_ERROR_NO_DEVICE);
    EXPECT_EQ(refusal.text, "");
}

}  // namespace
}  // namespace gantry::test
