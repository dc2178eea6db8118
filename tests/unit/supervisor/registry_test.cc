// The books of a host whose device takes long to say what it is, and of one whose VMs end.
#include "host-daemon/supervisor/registry/registry.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

namespace gantry::supervisor {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Fails at once the first time, and answers nothing the second time.
constexpr const char* kWorker = R"(#!/bin/sh
cd "${0%/*}"
if [ -e has_failed ]; then
    echo $$ >pid.new
    mv pid.new pid
    exec sleep 100
fi
touch has_failed
exit 1
)";

TEST(Registry, ListsItsSessionsWhileTheDeviceIsLookedFor) {
    char pattern[] = "/tmp/registry_test.XXXXXX";
    const std::string folder = mkdtemp(pattern);
    Config config;
    config.daemon.run_directory = folder;
    config.worker.executable = folder + "/worker";
    config.worker.user.clear();
    config.worker.private_tmp = false;
    std::ofstream(config.worker.executable) << kWorker;
    chmod(config.worker.executable.c_str(), 0700);
    auto store = EpochStore::open(folder + "/state");
    ASSERT_TRUE(store.ok()) << store.error().to_string();
    const auto hypervisor = make_no_hypervisor();
    Registry registry(config, *store, *hypervisor);
    const auto started = registry.start();
    ASSERT_TRUE(started.ok()) << started.error().to_string();

    auto asked = std::async(std::launch::async, [&] { return registry.capabilities(); });
    pid_t worker = 0;
    while (worker == 0 && asked.wait_for(milliseconds{1}) == std::future_status::timeout) {
        std::ifstream(folder + "/pid") >> worker;
    }
    ASSERT_NE(worker, 0);
    auto listed = std::async(std::launch::async, [&] { return registry.list("").sessions_size(); });
    EXPECT_EQ(listed.wait_for(seconds{5}), std::future_status::ready);
    kill(worker, SIGKILL);
    const auto here = asked.get();
    ASSERT_TRUE(here.ok());
    EXPECT_TRUE(here->gpu_name.empty());
    EXPECT_EQ(listed.get(), 0);
    registry.stop();
    std::filesystem::remove_all(folder);
}

/// One VM, which runs here until it is told to have ended.
class OneVm final : public Hypervisor {
public:
    void listen(EventHandler handler) override { handler_ = std::move(handler); }
    void stop() override {}
    void query(const std::string&, std::function<void(engine::DomainReport)> answer) override {
        answer(report());
    }
    void read_domain(const std::string& uuid,
                     std::function<void(Result<libvirt::DomainInfo>)> answer) override {
        answer(Error{Code::kNotFound, "libvirt.none", "no domain " + uuid});
    }
    void abort_job(const std::string&) override {}
    void destroy(const std::string&) override {}
    void write_owner(const std::string&, const libvirt::Owner&) override {}

    void is_now(engine::DomainState state, engine::JobState job) {
        const std::lock_guard lock(mutex_);
        report_ = {state, job};
    }
    void tell(const std::string& uuid, libvirt::EventKind kind) {
        libvirt::DomainEvent event;
        event.uuid = uuid;
        event.kind = kind;
        handler_(event);
    }

private:
    engine::DomainReport report() {
        const std::lock_guard lock(mutex_);
        return report_;
    }

    EventHandler handler_;
    std::mutex mutex_;
    engine::DomainReport report_{engine::DomainState::kRunning, engine::JobState::kNone};
};

class NoLink final : public transport::MessageLink {
public:
    void send(const engine::Message&) override {}
};

/// A gantryd that begins with the session of one VM, which has no program.
class RegistryOfAVm : public testing::Test {
protected:
    static constexpr const char* kVm = "5f3b7a60-0000-4000-8000-000000000001";

    RegistryOfAVm() {
        config_.daemon.run_directory = folder_;
        config_.worker.executable = "/bin/false";
        config_.worker.user.clear();
        config_.worker.private_tmp = false;
        std::filesystem::create_directory(folder_ + "/sessions");
        SessionInfo info;
        info.id = kVm;
        info.kind = SessionKind::kVm;
        info.vm_name = "g1";
        info.region_path = folder_ + "/region";
        info.region_bytes = 1 << 20;
        const nlohmann::json record{{"session", to_json(info)},
                                    {"workers", nlohmann::json::array()}};
        std::ofstream(folder_ + "/sessions/g1.json") << record;
        engine::DurableRecord owned;
        owned.epoch = Epoch{1};
        EXPECT_TRUE(store_.save(kVm, owned).ok());
        const auto started = registry_.start();
        EXPECT_TRUE(started.ok()) << started.error().to_string();
        EXPECT_EQ(sessions(), 1);
    }
    ~RegistryOfAVm() override {
        registry_.stop();
        std::filesystem::remove_all(folder_);
    }

    int sessions() { return registry_.list("").sessions_size(); }
    bool comes_to(const std::function<bool()>& condition, seconds within) {
        const auto until = std::chrono::steady_clock::now() + within;
        while (!condition() && std::chrono::steady_clock::now() < until) {
            std::this_thread::sleep_for(milliseconds{10});
        }
        return condition();
    }
    bool is_moving() {
        const auto session = registry_.find(kVm);
        return session.ok() && (*session)->driver()->status().migration.has_value();
    }
    void begin_move() {
        vm_.is_now(engine::DomainState::kRunning, engine::JobState::kOutgoing);
        registry_.receive(kVm,
                          {{1, 2}, engine::MsgPrepare{engine::kEngineProtocolVersion, kVm, {}}},
                          std::make_shared<NoLink>());
        ASSERT_TRUE(comes_to([&] { return is_moving(); }, seconds{20}));
    }

    std::string folder_ = [] {
        char pattern[] = "/tmp/registry_test.XXXXXX";
        return std::string(::mkdtemp(pattern));
    }();
    Config config_;
    EpochStore store_ = std::move(*EpochStore::open(folder_ + "/state"));
    OneVm vm_;
    Registry registry_{config_, store_, vm_};
};

constexpr seconds kSoon{5};

TEST_F(RegistryOfAVm, WhoseQemuEndsInMidMoveEndsItsSession) {
    begin_move();
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    vm_.tell(kVm, libvirt::EventKind::kStoppedFailed);
    EXPECT_TRUE(comes_to([&] { return sessions() == 0; }, kSoon));
}

TEST_F(RegistryOfAVm, ThatIsDestroyedInMidMoveEndsItsSession) {
    begin_move();
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    vm_.tell(kVm, libvirt::EventKind::kStopped);
    EXPECT_TRUE(comes_to([&] { return sessions() == 0; }, kSoon));
}

/// libvirt still shows it for a moment when the move has ended.
TEST_F(RegistryOfAVm, ThatIsSeenOnceMoreAfterItsEndEndsItsSession) {
    begin_move();
    vm_.tell(kVm, libvirt::EventKind::kStopped);
    EXPECT_TRUE(comes_to([&] { return !is_moving(); }, kSoon));
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    vm_.tell("", libvirt::EventKind::kStateReadEnd);
    EXPECT_TRUE(comes_to([&] { return sessions() == 0; }, kSoon));
}

TEST_F(RegistryOfAVm, ThatEndedWhileLibvirtWasAwayEndsItsSession) {
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    vm_.tell("", libvirt::EventKind::kStateReadEnd);
    EXPECT_TRUE(comes_to([&] { return sessions() == 0; }, kSoon));
}

TEST_F(RegistryOfAVm, KeepsItsSessionWhereAMoveFailsOrLibvirtKnowsNothing) {
    begin_move();
    vm_.is_now(engine::DomainState::kRunning, engine::JobState::kNone);
    registry_.receive(kVm, {{1, 2}, engine::MsgAbort{"test", "the target does not want it"}},
                      std::make_shared<NoLink>());
    EXPECT_TRUE(comes_to([&] { return !is_moving(); }, kSoon));
    vm_.is_now(engine::DomainState::kUnknown, engine::JobState::kUnknown);
    vm_.tell("", libvirt::EventKind::kStateReadEnd);
    std::this_thread::sleep_for(seconds{1});
    EXPECT_EQ(sessions(), 1);
}

}  // namespace
}  // namespace gantry::supervisor
