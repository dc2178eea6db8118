// Programs that attach: who waits for whom, and what one user can take from the others.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>

#include "host-daemon/supervisor/base/token_bucket.h"
#include "host-daemon/supervisor/config/task_limit.h"
#include "host-daemon/supervisor/registry/ending_sessions.h"
#include "host-daemon/supervisor/sessions/attach_queue.h"
#include "host-daemon/supervisor/sessions/guest_listener.h"

namespace gantry::supervisor {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kServedSoon{20};

std::string temporary_folder() {
    char pattern[] = "/tmp/guests_test.XXXXXX";
    return ::mkdtemp(pattern);
}

TEST(TokenBucket, GivesSoManyAtOnceAndThenSoManyASecond) {
    const TokenBucket::Clock::time_point begin{seconds{100}};
    TokenBucket bucket(10, 1);
    int taken = 0;
    for (int i = 0; i < 100; ++i) {
        taken += bucket.take(begin) ? 1 : 0;
    }
    EXPECT_EQ(taken, 10);
    EXPECT_EQ(bucket.take_refused(), 90U);
    EXPECT_EQ(bucket.take_refused(), 0U);
    for (int ms = 10; ms <= 5000; ms += 10) {
        taken += bucket.take(begin + milliseconds{ms}) ? 1 : 0;
    }
    EXPECT_EQ(taken, 15);
    for (int i = 0; i < 100; ++i) {
        taken += bucket.take(begin + seconds{1000}) ? 1 : 0;
    }
    EXPECT_EQ(taken, 25) << "what was not used is kept up to the bound";
}

TEST(AttachQueue, AUserWhoseProgramsWaitHoldsUpNobodyElse) {
    auto queue = AttachQueue::start();
    ASSERT_TRUE(queue.ok()) << queue.error().to_string();
    std::promise<void> end;
    std::shared_future<void> ended = end.get_future().share();
    std::atomic<unsigned> begun{0};
    for (unsigned i = 0; i < 4 * AttachQueue::kThreads; ++i) {
        std::function<void()> waits = [&, ended] {
            ++begun;
            ended.wait();
        };
        ASSERT_TRUE((*queue)->post(1000, waits));
    }
    std::promise<void> served;
    std::function<void()> other = [&] { served.set_value(); };
    ASSERT_TRUE((*queue)->post(1001, other));
    EXPECT_EQ(served.get_future().wait_for(kServedSoon), std::future_status::ready);
    EXPECT_LE(begun.load(), AttachQueue::kThreadsOfAUser);
    end.set_value();
    (*queue)->stop();
}

TEST(AttachQueue, TakesSoManyOfOneUserAndGoesOn) {
    auto queue = AttachQueue::start();
    ASSERT_TRUE(queue.ok());
    std::promise<void> end;
    std::shared_future<void> ended = end.get_future().share();
    std::atomic<std::size_t> run{0};
    std::size_t posted = 0;
    const auto post = [&] {
        std::function<void()> job = [&, ended] {
            ended.wait();
            ++run;
        };
        return (*queue)->post(1000, job);
    };
    while (posted < 10 * AttachQueue::kQueuedOfAUser && post()) {
        ++posted;
    }
    EXPECT_LE(posted, AttachQueue::kQueuedOfAUser + AttachQueue::kThreadsOfAUser);
    EXPECT_GE(posted, AttachQueue::kQueuedOfAUser);
    std::function<void()> other = [&] { ++run; };
    EXPECT_TRUE((*queue)->post(1001, other));
    end.set_value();
    const auto until = std::chrono::steady_clock::now() + kServedSoon;
    while (run < posted + 1 && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(milliseconds{1});
    }
    EXPECT_EQ(run.load(), posted + 1) << "none is lost";
}

TEST(EndingSessions, AUserHasNoMoreSessionsThanAreAllowedThoseThatEndIncluded) {
    EndingSessions sessions;
    const EndingSessions::GuestLimits limits{2, 3};
    EXPECT_TRUE(sessions.add_guest("a", 1000, limits).ok());
    EXPECT_TRUE(sessions.add_guest("b", 1000, limits).ok());
    sessions.begin("b");
    const auto third = sessions.add_guest("c", 1000, limits);
    ASSERT_FALSE(third.ok());
    EXPECT_EQ(third.error().reason, "guest.sessions");
    EXPECT_NE(third.error().text.find("guest.sessions_of_user"), std::string::npos);
    EXPECT_TRUE(sessions.add_guest("d", 1001, limits).ok());
    const auto fourth = sessions.add_guest("e", 1002, limits);
    ASSERT_FALSE(fourth.ok());
    EXPECT_NE(fourth.error().text.find("guest.sessions_max"), std::string::npos);
    (void)sessions.end("b");
    EXPECT_TRUE(sessions.add_guest("c", 1000, limits).ok());
}

TEST(TaskLimit, IsTheLeastOfTheCgroupsAndOfTheProcesses) {
    const std::string folder = temporary_folder();
    std::filesystem::create_directories(folder + "/system.slice/gantryd.service");
    std::filesystem::create_directories(folder + "/pids/docker");
    std::ofstream(folder + "/system.slice/gantryd.service/pids.max") << "max\n";
    std::ofstream(folder + "/system.slice/pids.max") << "4915\n";
    std::ofstream(folder + "/pids/docker/pids.max") << "700\n";
    std::ofstream(folder + "/own") << "0::/system.slice/gantryd.service\n";
    std::ofstream(folder + "/old") << "9:cpu:/\n8:pids:/docker\n";
    TaskLimitSources sources{folder + "/own", folder, RLIM_INFINITY};
    auto limit = find_task_limit(sources);
    ASSERT_TRUE(limit.has_value());
    EXPECT_EQ(limit->tasks, 4915U);
    EXPECT_EQ(limit->from, "pids.max of /system.slice");
    sources.own_cgroups = folder + "/old";
    EXPECT_EQ(find_task_limit(sources)->tasks, 700U);
    sources.processes_max = 90;
    EXPECT_EQ(find_task_limit(sources)->from, "RLIMIT_NPROC");
    EXPECT_FALSE(find_task_limit({"/nowhere", folder, RLIM_INFINITY}).has_value());

    Config config;
    config.guest.sessions_max = 10;
    EXPECT_TRUE(check_tasks(config, TaskLimit{700, "pids.max"}).ok());
    EXPECT_TRUE(check_tasks(config, std::nullopt).ok());
    const auto refused = check_tasks(config, TaskLimit{90, "pids.max"});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().reason, "guest.tasks");
    config.guest.socket.clear();
    EXPECT_TRUE(check_tasks(config, TaskLimit{90, "pids.max"}).ok()) << "there are none";
    std::filesystem::remove_all(folder);
}

class GuestListenerTest : public testing::Test {
protected:
    GuestListenerTest() { config_.socket = folder_ + "/guest.sock"; }
    ~GuestListenerTest() override {
        listener_.reset();
        std::filesystem::remove_all(folder_);
    }

    void start() {
        auto started =
            GuestListener::start(config_,
                                 [this](GuestRequest request, const GuestLink&) -> Result<void> {
                                     return open_(request);
                                 },
                                 {[this](const MirrorName& name) { return resume_(name); },
                                  [](const wire::VmAttachRequest&) -> Result<RelayedGuest> {
                                      return Error{Code::kPermissionDenied, "guest.vm", "none"};
                                  }});
        ASSERT_TRUE(started.ok()) << started.error().to_string();
        listener_ = std::move(*started);
    }
    control::PacketSocket connect() {
        auto socket = control::PacketSocket::connect(config_.socket);
        EXPECT_TRUE(socket.ok()) << socket.error().to_string();
        return std::move(*socket);
    }
    static wire::AttachReply attach(control::PacketSocket& socket) {
        const wire::AttachRequest request;
        EXPECT_TRUE(socket.send(std::as_bytes(std::span(&request, 1)), {}).ok());
        return reply(socket);
    }
    static wire::AttachReply reply(control::PacketSocket& socket) {
        wire::AttachReply out;
        const auto packet = socket.receive(kServedSoon);
        EXPECT_TRUE(packet.ok()) << packet.error().to_string();
        if (packet.ok() && packet->bytes.size() == sizeof out) {
            std::memcpy(&out, packet->bytes.data(), sizeof out);
        }
        return out;
    }
    [[nodiscard]] mode_t mode() const {
        struct stat status {};
        EXPECT_EQ(::stat(config_.socket.c_str(), &status), 0);
        return status.st_mode & 0777;
    }

    std::string folder_ = temporary_folder();
    GuestConfig config_;
    std::function<Result<void>(const GuestRequest&)> open_ = [](const GuestRequest&) {
        return Result<void>{};
    };
    std::function<Result<RelayedGuest>(const MirrorName&)> resume_ =
        [](const MirrorName&) -> Result<RelayedGuest> {
        return Error{Code::kNotFound, "guest.unknown", "none"};
    };
    std::unique_ptr<GuestListener> listener_;
};

TEST_F(GuestListenerTest, WhoSaysNothingTurnsNobodyAway) {
    start();
    std::vector<control::PacketSocket> silent;
    for (int i = 0; i < 300; ++i) {
        silent.push_back(connect());
    }
    auto socket = connect();
    EXPECT_EQ(attach(socket).accepted, 1U);
}

TEST_F(GuestListenerTest, WhoSaysNothingIsSentAwayAfterASecond) {
    start();
    const auto begin = std::chrono::steady_clock::now();
    auto silent = connect();
    const wire::AttachReply said = reply(silent);
    const auto took = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(said.accepted, 0U);
    EXPECT_NE(std::string(said.text).find("sent nothing"), std::string::npos) << said.text;
    EXPECT_GE(took, GuestListener::kRequestTimeout - milliseconds{50});
    EXPECT_LT(took, GuestListener::kRequestTimeout + seconds{3});
}

TEST_F(GuestListenerTest, ProgramsThatWaitForTheirWorkerDoNotHoldUpWhoConnects) {
    std::promise<void> end;
    std::shared_future<void> ended = end.get_future().share();
    std::atomic<unsigned> waiting{0};
    open_ = [&, ended](const GuestRequest&) -> Result<void> {
        ++waiting;
        ended.wait();
        return {};
    };
    start();
    std::vector<control::PacketSocket> sockets;
    for (unsigned i = 0; i < 2 * AttachQueue::kThreadsOfAUser; ++i) {
        sockets.push_back(connect());
        const wire::AttachRequest request;
        ASSERT_TRUE(sockets.back().send(std::as_bytes(std::span(&request, 1)), {}).ok());
    }
    auto silent = connect();
    EXPECT_EQ(reply(silent).accepted, 0U);
    EXPECT_LE(waiting.load(), AttachQueue::kThreadsOfAUser);
    end.set_value();
    for (control::PacketSocket& socket : sockets) {
        EXPECT_EQ(reply(socket).accepted, 1U);
    }
}

TEST_F(GuestListenerTest, WhatTheSystemRefusesEndsThatProgramOnly) {
    open_ = [](const GuestRequest&) -> Result<void> {
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    };
    start();
    auto socket = connect();
    const wire::AttachReply refused = attach(socket);
    EXPECT_EQ(refused.accepted, 0U);
    EXPECT_NE(std::string(refused.text).find("no more threads"), std::string::npos) << refused.text;
    open_ = [](const GuestRequest&) { return Result<void>{}; };
    auto other = connect();
    EXPECT_EQ(attach(other).accepted, 1U);
}

TEST_F(GuestListenerTest, WhatIsNoAttachRequestIsToldFromOneThatIsCutShort) {
    start();
    const wire::AttachRequest request;
    const auto whole = std::as_bytes(std::span(&request, 1));
    const auto refusal_of = [&](std::size_t bytes) {
        auto socket = connect();
        EXPECT_TRUE(socket.send(whole.first(bytes), {}).ok());
        const wire::AttachReply refused = reply(socket);
        EXPECT_EQ(refused.accepted, 0U) << bytes;
        return std::string(refused.text);
    };
    EXPECT_NE(refusal_of(1).find("is no attach request"), std::string::npos);
    EXPECT_NE(refusal_of(4).find("is no attach request"), std::string::npos);
    EXPECT_NE(refusal_of(whole.size() - 1).find("is cut short"), std::string::npos);
}

// gantry-relay asks for a guest that was moved here, until it is here or known not to come.
TEST_F(GuestListenerTest, ARelayIsToldWhetherTheGuestOfItsLinkIsHere) {
    const control::UniqueFd region{::memfd_create("region", MFD_CLOEXEC)};
    resume_ = [&](const MirrorName& name) -> Result<RelayedGuest> {
        if (name.low == 1) {
            RelayedGuest guest;
            guest.region.reset(::dup(region.get()));
            guest.region_bytes = 4096;
            guest.channel_count = 3;
            guest.channel_index = 2;
            return guest;
        }
        return Error{name.low == 2 ? Code::kUnavailable : Code::kNotFound, "guest.test", "none"};
    };
    start();
    const auto ask = [&](std::uint64_t name) {
        wire::ResumeRequest request;
        request.session[0] = name;
        auto socket = connect();
        EXPECT_TRUE(socket.send(std::as_bytes(std::span(&request, 1)), {}).ok());
        const auto packet = socket.receive(kServedSoon);
        EXPECT_TRUE(packet.ok() && packet->bytes.size() == sizeof(wire::ResumeReply));
        wire::ResumeReply out;
        if (packet.ok() && packet->bytes.size() == sizeof out) {
            std::memcpy(&out, packet->bytes.data(), sizeof out);
            EXPECT_EQ(packet->descriptors.size(), name == 1 ? 1U : 0U);
        }
        return out;
    };
    const wire::ResumeReply here = ask(1);
    EXPECT_EQ(here.verdict, wire::ResumeVerdict::kAccepted);
    EXPECT_EQ(here.region_bytes, 4096U);
    EXPECT_EQ(here.channel_count, 3U);
    EXPECT_EQ(here.channel_index, 2U);
    EXPECT_EQ(ask(2).verdict, wire::ResumeVerdict::kNotNow);
    EXPECT_EQ(ask(3).verdict, wire::ResumeVerdict::kUnknown);
}

TEST_F(GuestListenerTest, ItsSocketIsGantrydsOwnUnlessOthersAreNamed) {
    start();
    EXPECT_EQ(mode(), 0600U);
    config_.allow_uids = {12345};
    start();
    EXPECT_EQ(mode(), 0666U) << "decided for each connection";
    auto own = connect();
    EXPECT_EQ(reply(own).accepted, 0U) << "not among allow_uids";
    config_.allow_uids.clear();
    config_.any_user = true;
    start();
    EXPECT_EQ(mode(), 0666U);
    auto any = connect();
    EXPECT_EQ(attach(any).accepted, 1U);
    config_.any_user = false;
    config_.group = "no-such-group";
    const auto refused = GuestListener::start(config_, {}, {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().reason, "guest.group");
}

}  // namespace
}  // namespace gantry::supervisor
