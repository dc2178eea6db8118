// The books of a host whose device takes long to say what it is, and of one whose VMs end.
#include "host-daemon/supervisor/registry/registry.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "registry_of_a_vm.h"

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
    config.daemon.state_directory = folder + "/state";
    config.worker.executable = folder + "/worker";
    config.worker.devices = {0};
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
    EXPECT_TRUE(here->front().capabilities.gpu_name.empty());
    EXPECT_EQ(listed.get(), 0);
    registry.stop();
    std::filesystem::remove_all(folder);
}

TEST_F(RegistryOfAVm, WhoseQemuEndsInMidMoveEndsItsSession) {
    begin_move();
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    vm_.tell(kVm, libvirt::EventKind::kStoppedFailed);
    EXPECT_TRUE(comes_to([&] { return sessions() == 0; }, kEndedWithin));
}

TEST_F(RegistryOfAVm, ThatIsDestroyedInMidMoveEndsItsSession) {
    begin_move();
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    vm_.tell(kVm, libvirt::EventKind::kStopped);
    EXPECT_TRUE(comes_to([&] { return sessions() == 0; }, kEndedWithin));
}

/// libvirt still shows it for a moment when the move has ended.
TEST_F(RegistryOfAVm, ThatIsSeenOnceMoreAfterItsEndEndsItsSession) {
    begin_move();
    vm_.tell(kVm, libvirt::EventKind::kStopped);
    EXPECT_TRUE(comes_to([&] { return !is_moving(); }, kEndedWithin));
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    vm_.tell("", libvirt::EventKind::kStateReadEnd);
    EXPECT_TRUE(comes_to([&] { return sessions() == 0; }, kEndedWithin));
}

TEST_F(RegistryOfAVm, ThatEndedWhileLibvirtWasAwayEndsItsSession) {
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    vm_.tell("", libvirt::EventKind::kStateReadEnd);
    EXPECT_TRUE(comes_to([&] { return sessions() == 0; }, kEndedWithin));
}

/// A VM that is kept defined leaves its reason behind: its guest is elsewhere, its state is here.
TEST_F(RegistryOfAVm, ThatWasMigratedAwayKeepsTheSessionThatDidNotFollow) {
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone,
               engine::StopCause::kMigration);
    vm_.tell("", libvirt::EventKind::kStateReadEnd);
    std::this_thread::sleep_for(seconds{1});
    EXPECT_EQ(sessions(), 1);
}

TEST_F(RegistryOfAVm, ThatComesBackToItsSessionIsToldToLetItFollow) {
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone,
               engine::StopCause::kMigration);
    control::AdmitRequest request;
    request.set_vm_name("g1");
    const auto xml_of = [&](const std::string& daemon) {
        return std::string("<domain type='qemu'><name>g1</name><uuid>") + kVm +
               "</uuid><metadata><g:gpu xmlns:g='urn:gantry:vm:1'><g:needs memory_mib='64'/>"
               "</g:gpu><o:owner xmlns:o='urn:gantry:owner:1' daemon='" +
               daemon + "' session='" + kVm +
               "' epoch='1'/></metadata><devices><shmem name='gantry-g1' "
               "role='master'><model type='ivshmem-plain'/><size unit='M'>64</size></shmem>"
               "</devices></domain>";
    };
    request.set_domain_xml(xml_of("hosta:7700"));
    const auto refused = registry_.admit(request);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().reason, "session.behind");
    request.set_domain_xml(xml_of("hostb:7700"));
    const auto other = registry_.admit(request);
    ASSERT_FALSE(other.ok());
    EXPECT_NE(other.error().reason, "session.behind") << "what it brings is another host's";
    EXPECT_EQ(sessions(), 1);
}

TEST_F(RegistryOfAVm, ThatWasSavedEndsItsSession) {
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    vm_.tell(kVm, libvirt::EventKind::kStoppedSaved);
    EXPECT_TRUE(comes_to([&] { return sessions() == 0; }, kEndedWithin));
}

// Else a host fills its disk with records of VMs that are gone.
TEST_F(RegistryOfAVm, ThatEndedLeavesNoRecordOfItsEpoch) {
    ASSERT_TRUE(store_.load(kVm).value().has_value());
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    vm_.tell(kVm, libvirt::EventKind::kStopped);
    EXPECT_TRUE(comes_to([&] { return !store_.load(kVm).value().has_value(); }, kEndedWithin));
}

// What `gantry watch` shows of a VM whose move is over.
TEST_F(RegistryOfAVm, ThatHasEndedIsListedByHowItsMoveEnded) {
    begin_move();
    vm_.is_now(engine::DomainState::kRunning, engine::JobState::kNone);
    registry_.receive(kVm, {{1, 2}, engine::MsgAbort{"test", "the target does not want it"}},
                      "hostb", std::make_shared<MutePeer>());
    ASSERT_TRUE(comes_to([&] { return registry_.status().has_ended(kVm, 0); }, seconds{20}));
    EXPECT_EQ(registry_.list("", 0).sessions_size(), 1) << "one that is here is listed once";
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    vm_.tell(kVm, libvirt::EventKind::kStopped);
    ASSERT_TRUE(comes_to([&] { return sessions() == 0; }, kEndedWithin));
    const std::uint64_t all = 0;
    for (const char* name : {"", "g1", kVm}) {
        const auto listed = registry_.list(name, all);
        ASSERT_EQ(listed.sessions_size(), 1) << name;
        EXPECT_EQ(listed.sessions(0).session_id(), kVm);
        EXPECT_EQ(listed.sessions(0).peer(), "hostb");
    }
    EXPECT_EQ(registry_.list("another", all).sessions_size(), 0);
    EXPECT_EQ(registry_.list("", registry_.status().history_serial()).sessions_size(), 0);
}

TEST_F(RegistryOfAVm, IsToldWhyAHostWithoutPeersMovesNothing) {
    control::PreflightRequest request;
    request.set_session("g1");
    const auto reply = registry_.preflight(request);
    ASSERT_TRUE(reply.ok()) << reply.error().to_string();
    EXPECT_FALSE(reply->can_move());
    ASSERT_GT(reply->findings_size(), 0);
    EXPECT_EQ(reply->findings(0).reason(), "peer.off");
    EXPECT_TRUE(reply->findings(0).refusal());
    EXPECT_NE(reply->findings(0).text().find("peer.listen"), std::string::npos);
}

TEST_F(RegistryOfAVm, ThatIsResetHasANewLife) {
    vm_.has_xml(domain());
    const auto before = registry_.find(kVm);
    ASSERT_TRUE(before.ok());
    vm_.tell(kVm, libvirt::EventKind::kQemuReset);
    const auto is_another = [&] {
        const auto now = registry_.find(kVm);
        return !now.ok() || *now != *before;
    };
    EXPECT_TRUE(comes_to(is_another, kEndedWithin));
}

/// What gantryd logs while this lives.
class LinesOfLog {
public:
    LinesOfLog() {
        auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
        spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", std::move(sink)));
    }
    ~LinesOfLog() { spdlog::set_default_logger(before_); }
    LinesOfLog(const LinesOfLog&) = delete;
    LinesOfLog& operator=(const LinesOfLog&) = delete;

    /// To be called when nobody logs any more.
    [[nodiscard]] int with(const std::string& word) const {
        std::istringstream all(text_.str());
        int count = 0;
        for (std::string line; std::getline(all, line);) {
            count += line.find(word) != std::string::npos ? 1 : 0;
        }
        return count;
    }

private:
    std::ostringstream text_;
    std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

/// libvirt's file came with a program that some gantryd served, and nothing of it is here: it
/// neither waits for ever nor gets a worker that knows nothing of it.
TEST_F(RegistryOfAVm, RestoredWithoutItsStateTellsItsPrograms) {
    const LinesOfLog log;
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    vm_.tell(kVm, libvirt::EventKind::kStoppedSaved);
    ASSERT_TRUE(comes_to([&] { return sessions() == 0; }, kEndedWithin));
    ASSERT_TRUE(start(control::StartingRequest::STEP_RESTORE));
    constexpr std::uint32_t kChannels = 2;
    auto region = Region::make_file(folder_ + "/region", kRegionBytes, kChannels);
    ASSERT_TRUE(region.ok()) << region.error().to_string();
    constexpr std::uint64_t kGeneration = 3;
    ASSERT_TRUE(region->reserve(kChannels, {0, wire::ClaimState::kOpen, 42, kGeneration}).ok());
    ASSERT_TRUE(region->write_state(0, kGeneration, wire::ServeState::kServing).ok());
    ASSERT_TRUE(region->write_worker_state(kChannels, 0, wire::WorkerState::kRunning).ok());
    // Of another program, which was refused: it has its error, and nothing to lose.
    ASSERT_TRUE(region->reserve(kChannels, {1, wire::ClaimState::kOpen, 43, kGeneration}).ok());
    ASSERT_TRUE(region->write_state(1, kGeneration, wire::ServeState::kRefused).ok());
    ASSERT_TRUE(start(control::StartingRequest::STEP_STARTED));
    vm_.has_xml(domain());
    vm_.is_now(engine::DomainState::kRunning, engine::JobState::kNone);
    vm_.tell(kVm, libvirt::EventKind::kRestored);
    const auto worker_state = [&] {
        wire::ChannelLayout layout{};
        EXPECT_TRUE(wire::compute_layout(kRegionBytes, kChannels, 0, &layout));
        wire::WorkerState state{};
        const auto at = layout.host_words + offsetof(wire::HostWords, worker_state);
        EXPECT_EQ(pread(region->fd(), &state, sizeof state, static_cast<off_t>(at)),
                  static_cast<ssize_t>(sizeof state));
        return state;
    };
    EXPECT_TRUE(comes_to([&] { return worker_state() == wire::WorkerState::kDead; }, seconds{2}));
    std::this_thread::sleep_for(milliseconds{300});  // A watcher would see the claim.
    const auto answers = region->answers(kChannels);
    ASSERT_TRUE(answers.ok());
    EXPECT_EQ(answers->at(0).state, wire::ServeState::kClosed);
    EXPECT_EQ(answers->at(1).state, wire::ServeState::kRefused);
    EXPECT_EQ(registry_.saves().started_without, 1u);
    registry_.stop();
    EXPECT_EQ(log.with(": 1 programs of VM g1 get CUDA errors"), 1);
}

TEST_F(RegistryOfAVm, ThatBootsIsNotAskedForAState) {
    const auto started = start(control::StartingRequest::STEP_STARTED);
    EXPECT_TRUE(started.ok());
    EXPECT_EQ(sessions(), 1) << "nothing has happened to it";
}

/// The same with a region, which its guest writes.
class RegistryOfAHostileVm : public RegistryOfAVm {
protected:
    static constexpr std::uint32_t kChannels = 8;

    void write(const void* from, std::size_t bytes, std::size_t offset) {
        ASSERT_EQ(::pwrite(guest_->fd(), from, bytes, static_cast<off_t>(offset)),
                  static_cast<ssize_t>(bytes));
    }
    void lay_out() {
        auto made = Region::make_file(folder_ + "/region", kRegionBytes, kChannels);
        ASSERT_TRUE(made.ok()) << made.error().to_string();
        guest_.emplace(std::move(*made));
    }
    void claim(std::uint32_t channel, std::uint64_t generation) {
        const struct {
            wire::ClaimState state = wire::ClaimState::kOpen;
            std::uint32_t pid = 1;
            std::uint64_t generation;
        } claim{.generation = generation};
        static_assert(sizeof claim == sizeof(wire::ChannelClaim));
        write(&claim, sizeof claim,
              offsetof(wire::GuestDirectory, claims) + channel * sizeof claim);
    }

    std::optional<Region> guest_;
};

constexpr seconds kHostile{4};

/// How often threads of this process gave up a processor by themselves, that is, were woken since.
std::int64_t voluntary_switches() {
    rusage usage{};
    EXPECT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_nvcsw;
}

TEST_F(RegistryOfAHostileVm, FillsNoLog) {
    const LinesOfLog log;
    lay_out();
    const auto until = std::chrono::steady_clock::now() + kHostile;
    for (std::uint32_t version = 1000; std::chrono::steady_clock::now() < until; ++version) {
        write(&version, sizeof version, offsetof(wire::GuestDirectory, wire_version));
        std::this_thread::sleep_for(milliseconds{1});
    }
    registry_.stop();
    EXPECT_GE(log.with("wire version"), 2) << "the first ones are told";
    EXPECT_GE(log.with("such lines were left out"), 1) << "and how many are not";
    EXPECT_EQ(log.with("(0 such lines"), 0);
    EXPECT_LE(log.with("wire version"),
              RegionWatcher::kLinesAtOnce + RegionWatcher::kLinesPerSecond * 10);
}

TEST_F(RegistryOfAHostileVm, StartsNoWorkersWithoutEnd) {
    const LinesOfLog log;
    lay_out();
    const auto until = std::chrono::steady_clock::now() + kHostile;
    for (std::uint64_t generation = 1; std::chrono::steady_clock::now() < until; ++generation) {
        for (std::uint32_t channel = 1; channel < kChannels; ++channel) {
            claim(channel, generation);
        }
        std::this_thread::sleep_for(milliseconds{20});
    }
    registry_.stop();
    EXPECT_GE(log.with("opens channel"), 10) << "the first ones begin at once";
    EXPECT_LE(log.with("opens channel"),
              RegionWatcher::kStartsAtOnce + RegionWatcher::kStartsPerSecond * 10);
}

// Counts wake-ups: what one costs depends on the machine (30 to 130 us here), how often gantryd
// wakes does not. Ten a second look at the region and five at the socket; at 60 us each these are
// 0.1 % of a processor.
TEST_F(RegistryOfAHostileVm, ThatDoesNothingCostsNextToNothing) {
    lay_out();
    std::this_thread::sleep_for(seconds{2});
    constexpr int kSpanS = 4;
    constexpr int kWakesPerSecond = 18;
    const std::int64_t before = voluntary_switches();
    std::this_thread::sleep_for(seconds{kSpanS});
    EXPECT_LE(voluntary_switches() - before, kWakesPerSecond * kSpanS);
}

TEST_F(RegistryOfAVm, KeepsItsSessionWhereAMoveFailsOrLibvirtKnowsNothing) {
    begin_move();
    vm_.is_now(engine::DomainState::kRunning, engine::JobState::kNone);
    registry_.receive(kVm, {{1, 2}, engine::MsgAbort{"test", "the target does not want it"}},
                      "hostb", std::make_shared<MutePeer>());
    EXPECT_TRUE(comes_to([&] { return !is_moving(); }, kEndedWithin));
    vm_.is_now(engine::DomainState::kUnknown, engine::JobState::kUnknown);
    vm_.tell("", libvirt::EventKind::kStateReadEnd);
    std::this_thread::sleep_for(seconds{1});
    EXPECT_EQ(sessions(), 1);
}

}  // namespace
}  // namespace gantry::supervisor
