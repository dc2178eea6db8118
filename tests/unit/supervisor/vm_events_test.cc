// What libvirt's events about VMs lead to, and what becomes of VMs that are saved.
#include "host-daemon/supervisor/registry/vm_events.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <vector>

#include "host-daemon/supervisor/moves/source_runner.h"
#include "host-daemon/supervisor/registry/vm_saves.h"
#include "host-daemon/supervisor/workers/worker_stock.h"
#include "tests/unit/supervisor/one_vm.h"

namespace gantry::supervisor {
namespace {

constexpr std::chrono::seconds kSettledWithin{20};
constexpr const char* kSavedVm = "5f3b7a60-0000-4000-8000-000000000001";

/// As of a VM of ours that `daemon` serves.
libvirt::DomainInfo domain_of(const std::string& daemon) {
    libvirt::DomainInfo domain;
    domain.uuid = kSavedVm;
    domain.name = "g1";
    domain.gpu.emplace();
    domain.owner.emplace();
    domain.owner->daemon = daemon;
    return domain;
}

/// Runs all that has been posted so far.
void settle(SerialExecutor& executor) {
    std::promise<void> done;
    ASSERT_TRUE(executor.post([&] { done.set_value(); }));
    ASSERT_EQ(done.get_future().wait_for(kSettledWithin), std::future_status::ready);
}

/// A host without sessions, which runs errands at once.
class VmEventsTest : public testing::Test {
protected:
    VmEventsTest() { config_.peer.listen = "hosta:7700"; }
    ~VmEventsTest() override { housekeeping_.stop(); }

    VmHooks hooks() {
        VmHooks hooks;
        hooks.open = [this](const libvirt::DomainInfo& domain, VmLife life) {
            EXPECT_EQ(domain.uuid, kSavedVm);
            opened_.push_back(life);
        };
        hooks.heard = [](const libvirt::DomainEvent&) {};
        hooks.fetch =
            [this](const libvirt::DomainInfo& domain) -> Result<std::shared_ptr<Arrival>> {
            fetched_from_.push_back(domain.owner->daemon);
            return Error{Code::kAlreadyExists, "test", "it is on its way"};
        };
        hooks.run_aside = [](const std::function<void()>& errand) { errand(); };
        hooks.note = [](const std::string&, const MoveStamp&) {};
        return hooks;
    }

    Config config_;
    OneVm vm_;
    SessionTable sessions_;
    EndingSessions ending_;
    std::vector<VmLife> opened_;             ///< On housekeeping_.
    std::vector<std::string> fetched_from_;  ///< On housekeeping_.
    SerialExecutor housekeeping_;
    VmEvents events_{config_, vm_, sessions_, ending_, housekeeping_, hooks()};
};

// gantryd was not running while libvirt brought the VM here.
TEST_F(VmEventsTest, AGuestThatCameWithoutItsSessionHasItFetchedFromItsOwner) {
    vm_.has_xml(domain_of("hostb:7700"));
    libvirt::DomainEvent event;
    event.uuid = kSavedVm;
    event.kind = libvirt::EventKind::kResumedMigrated;
    events_.on_event(event);
    settle(housekeeping_);
    EXPECT_EQ(fetched_from_, std::vector<std::string>{"hostb:7700"});
    vm_.has_xml(domain_of("hosta:7700"));
    events_.on_event(event);
    settle(housekeeping_);
    EXPECT_EQ(fetched_from_.size(), 1U) << "it is this host's own";
}

TEST_F(VmEventsTest, AVmThatCouldNotBeOpenedIsOpenedOnceMoreWhileItRuns) {
    const auto try_again = [&] {
        housekeeping_.post([&] { events_.open_later(domain_of("hosta:7700")); });
        housekeeping_.post([&] { events_.retry_stranded(); });
        settle(housekeeping_);  // It asks the hypervisor,
        settle(housekeeping_);  // and acts on the answer.
    };
    try_again();
    EXPECT_EQ(opened_, std::vector<VmLife>{VmLife::kRunning});
    housekeeping_.post([&] { events_.retry_stranded(); });
    settle(housekeeping_);
    EXPECT_EQ(opened_.size(), 1U) << "once";
    vm_.is_now(engine::DomainState::kAbsent, engine::JobState::kNone);
    try_again();
    EXPECT_EQ(opened_.size(), 1U) << "it has ended meanwhile";
}

/// libvirt is saving it.
class SavedVm final : public Hypervisor {
public:
    void listen(EventHandler) override {}
    void stop() override {}
    void query(const std::string&, std::function<void(engine::DomainReport)> answer) override {
        answer({engine::DomainState::kPaused, engine::JobState::kUnknown});
    }
    void read_domain(const std::string&,
                     std::function<void(Result<libvirt::DomainInfo>)> answer) override {
        answer(Error{Code::kNotFound, "test", "nobody asks"});
    }
    void is_being_saved(const std::string&, std::function<void(bool)> answer) override {
        answer(true);
    }
    void abort_job(const std::string&) override { ++aborted; }
    void destroy(const std::string&) override {}
    void write_owner(const std::string&, const libvirt::Owner&,
                     std::function<void(Result<void>)>) override {}
    int aborted = 0;
};

/// A VM whose session is suspended, so that there is something to save; its region has no mark, so
/// that its state cannot be. The state is written when the test says so.
class VmSavesTest : public testing::Test {
protected:
    VmSavesTest() {
        config_.daemon.run_directory = folder_;
        SessionInfo info;
        info.id = kSavedVm;
        info.kind = SessionKind::kVm;
        info.vm_name = "g1";
        info.region_path = folder_ + "/region";
        info.region_bytes = 64 << 20;
        session_ = std::make_shared<Session>(info, config_, stock_);
        session_->set_suspended({{1, 2}, folder_ + "/file"});
        SourceHooks nothing;
        nothing.alert = [](engine::AlertKind, const Error&) {};
        nothing.progress = [](const engine::Progress&) {};
        nothing.query_domain = nothing.abort_job = nothing.released = nothing.given_up = [] {};
        nothing.finished = [](engine::Outcome, const Error&) {};
        driver_ = std::make_shared<SourceRunner>(kSavedVm, Epoch{1}, engine::Settings{}, "none", 0,
                                                 store_, session_->source(), std::move(nothing));
        sessions_.put(session_, driver_);
        libvirt::DomainEvent paused;
        paused.uuid = kSavedVm;
        paused.kind = libvirt::EventKind::kSuspendedPaused;
        saves_.on_event(paused);
        settle(housekeeping_);
        EXPECT_TRUE(saves_.is_saving(kSavedVm));
        EXPECT_TRUE(write_);
    }
    ~VmSavesTest() override {
        housekeeping_.stop();
        (void)sessions_.stop();
        driver_->stop();
        stock_.stop();
        std::filesystem::remove_all(folder_);
    }

    void write() {
        write_();
        settle(housekeeping_);
    }

    SaveHooks hooks() {
        SaveHooks hooks;
        hooks.close = [this](const std::shared_ptr<Session>& session) {
            EXPECT_EQ(session, session_);
            ++closed_;
        };
        hooks.open = [this](const libvirt::DomainInfo& domain) {
            EXPECT_EQ(domain.uuid, kSavedVm);
            EXPECT_EQ(closed_, 1) << "its earlier life first";
            ++opened_;
        };
        hooks.check = [](Session&) { return Result<void>(); };
        hooks.run_aside = [this](std::function<void()> errand) { write_ = std::move(errand); };
        return hooks;
    }

    std::string folder_ = [] {
        char pattern[] = "/tmp/vm_saves_test.XXXXXX";
        return std::string(::mkdtemp(pattern));
    }();
    Config config_;
    WorkerStock stock_{config_, [] { return WorkerStock::Awaited{}; }};
    SavedVm vm_;
    SessionTable sessions_;
    std::shared_ptr<Session> session_;
    EpochStore store_ = std::move(*EpochStore::open(folder_));
    std::shared_ptr<SourceRunner> driver_;
    std::function<void()> write_;
    int closed_ = 0;
    int opened_ = 0;
    SerialExecutor housekeeping_;
    VmSaves saves_{folder_, vm_, sessions_, housekeeping_, hooks()};
};

TEST_F(VmSavesTest, AVmThatEndsWhileItsStateIsWrittenIsClosedThen) {
    EXPECT_TRUE(saves_.closes_later(session_));
    EXPECT_EQ(closed_, 0);
    write();
    EXPECT_EQ(closed_, 1);
    EXPECT_EQ(opened_, 0);
    EXPECT_FALSE(saves_.is_saving(kSavedVm));
    EXPECT_EQ(saves_.counters().lost, 1U);
}

TEST_F(VmSavesTest, AVmThatBootsWhileItsStateIsWrittenIsOpenedThen) {
    EXPECT_TRUE(saves_.opens_later(domain_of("hosta:7700")));
    EXPECT_EQ(opened_, 0);
    write();
    EXPECT_EQ(closed_, 1);
    EXPECT_EQ(opened_, 1);
    EXPECT_FALSE(saves_.opens_later(domain_of("hosta:7700"))) << "nothing is written any more";
}

TEST_F(VmSavesTest, AVmThatEndsWhenAllIsWrittenIsClosedAtOnce) {
    write();
    EXPECT_EQ(vm_.aborted, 1) << "its state could not be saved";
    EXPECT_TRUE(saves_.is_saving(kSavedVm)) << "until the VM runs on or ends";
    EXPECT_FALSE(saves_.closes_later(session_)) << "nobody would close it";
    EXPECT_FALSE(saves_.is_saving(kSavedVm));
    EXPECT_FALSE(saves_.closes_later(session_));
}

}  // namespace
}  // namespace gantry::supervisor
