// What a source's driver tells of a move that ends.
#include "host-daemon/supervisor/moves/source_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <thread>

#include "host-daemon/supervisor/parts/worker_state.h"
#include "host-daemon/supervisor/registry/device_book.h"
#include "host-daemon/supervisor/registry/session_table.h"
#include "host-daemon/supervisor/registry/status.h"
#include "host-daemon/supervisor/workers/worker_stock.h"

namespace gantry::supervisor {
namespace {

constexpr std::chrono::seconds kSoon{20};

class NoLink final : public MessageLink {
public:
    void send(const engine::Message&) override {}
};

/// A session without workers.
class SourceDriverTest : public testing::Test {
protected:
    ~SourceDriverTest() override { std::filesystem::remove_all(folder_); }

    std::string folder_ = [] {
        char pattern[] = "/tmp/source_runner_test.XXXXXX";
        return std::string(::mkdtemp(pattern));
    }();
    EpochStore store_ = std::move(*EpochStore::open(folder_));
    WorkerSet workers_;
    WorkersSource source_{workers_, {"session", 0, {}, false}};
};

TEST_F(SourceDriverTest, AMoveThatEndsIsToldOfUntilItIsKnownHow) {
    const SourceRunner* told_by = nullptr;
    std::promise<SourceStatus> told;
    SourceHooks hooks;
    hooks.alert = [](engine::AlertKind, const Error&) {};
    hooks.progress = [](const engine::Progress&) {};
    hooks.query_domain = hooks.abort_job = hooks.released = [] {};
    hooks.finished = [](engine::Outcome, const Error&) {};
    hooks.given_up = [&] { told.set_value(told_by->status()); };
    engine::Settings settings;
    settings.job_absent_grace = engine::Duration{0};
    settings.is_bound_to_hypervisor = false;
    SourceRunner driver("session", Epoch{1}, settings, "none", 0, store_, source_,
                        std::move(hooks));
    told_by = &driver;
    const engine::MigrationId move{1, 2};
    const auto link = std::make_shared<NoLink>();
    driver.receive({move, engine::MsgPrepare{engine::kEngineProtocolVersion, "session", {}}},
                   "hostb", link);
    driver.receive({move, engine::MsgAbort{"test", "the target does not want it"}}, "hostb", link);
    const engine::DomainReport no_other_attempt{engine::DomainState::kRunning,
                                                engine::JobState::kNone};
    driver.feed(engine::source_event::Domain{no_other_attempt});
    auto then = told.get_future();
    ASSERT_EQ(then.wait_for(kSoon), std::future_status::ready);
    const SourceStatus status = then.get();
    EXPECT_EQ(status.last_migration, move);
    EXPECT_TRUE(!status.migration && !status.awaits_attempt);
    EXPECT_TRUE(status.ends) << "a watch would take it for a move that never was";
    for (const auto until = std::chrono::steady_clock::now() + kSoon; driver.status().ends;) {
        ASSERT_LT(std::chrono::steady_clock::now(), until);
    }
    driver.stop();
}

// A source that waits for another attempt shows one that failed as "retry"; this one will have
// none.
TEST_F(SourceDriverTest, AMoveThatEndsIsShownAsNoRetry) {
    Config config;
    config.daemon.run_directory = folder_;
    WorkerStock stock(config, [] { return WorkerStock::Awaited{}; });
    SessionInfo info;
    info.id = "session";
    const auto session = std::make_shared<Session>(info, config, stock);
    DeviceBook devices([](DeviceNumber) -> Result<control::DeviceDescription> {
        return Error{Code::kNotFound, "gpu.absent", "none"};
    });
    SessionTable sessions;
    MoveRecords records(folder_, "hosta");
    HostStatus status("hosta", sessions, devices, records);
    std::promise<control::SessionStatus> told;
    SourceHooks hooks;
    hooks.alert = [](engine::AlertKind, const Error&) {};
    hooks.progress = [](const engine::Progress&) {};
    hooks.query_domain = hooks.abort_job = hooks.released = [] {};
    hooks.finished = [](engine::Outcome, const Error&) {};
    hooks.given_up = [&] { told.set_value(status.list("", std::nullopt).sessions(0)); };
    engine::Settings settings;
    settings.job_absent_grace = engine::Duration{0};
    settings.is_bound_to_hypervisor = false;
    const auto driver = std::make_shared<SourceRunner>("session", Epoch{1}, settings, "none", 0,
                                                       store_, source_, std::move(hooks));
    sessions.put(session, driver);
    const engine::MigrationId move{1, 2};
    const auto link = std::make_shared<NoLink>();
    driver->receive({move, engine::MsgPrepare{engine::kEngineProtocolVersion, "session", {}}},
                    "hostb", link);
    driver->receive({move, engine::MsgAbort{"test", "the target does not want it"}}, "hostb", link);
    driver->feed(
        engine::source_event::Domain{{engine::DomainState::kRunning, engine::JobState::kNone}});
    auto then = told.get_future();
    ASSERT_EQ(then.wait_for(kSoon), std::future_status::ready);
    const control::SessionStatus shown = then.get();
    EXPECT_EQ(shown.peer(), "hostb");
    EXPECT_EQ(shown.move().phase(), "failed");
    driver->stop();
    (void)sessions.stop();
}

/// Counts the answers that go by it.
class CountingLink final : public transport::MessageLink {
public:
    void send(const engine::Message& message) override {
        refusals += std::holds_alternative<engine::MsgRefused>(message.body) ? 1 : 0;
        ++answers;
    }
    std::atomic<int> answers{0};
    std::atomic<int> refusals{0};
};

TEST_F(SourceDriverTest, WhoeverElseAsksNeitherGetsNorTakesTheAnswersOfTheMigrationUnderWay) {
    const Ticket ticket = random_ticket();
    SourceHooks hooks;
    hooks.alert = [](engine::AlertKind, const Error&) {};
    hooks.progress = [](const engine::Progress&) {};
    hooks.query_domain = hooks.abort_job = hooks.released = hooks.given_up = [] {};
    hooks.finished = [](engine::Outcome, const Error&) {};
    hooks.renew_ticket = [](Epoch) {};
    engine::Settings settings;
    settings.heartbeat = engine::Duration{20'000};  // By which its link is seen to be used.
    SourceRunner driver("session", Epoch{1}, settings, "none", 0, store_, source_,
                        std::move(hooks));
    driver.feed(engine::source_event::TicketStands{ticket});
    const auto prepare = [&](engine::MigrationId id, const char* peer, const Ticket& brought,
                             const std::shared_ptr<CountingLink>& link) {
        engine::MsgPrepare asks{engine::kEngineProtocolVersion, "session", {}, brought};
        asks.capabilities.gpu_name = "any";
        asks.capabilities.cc = {9, 0};
        driver.receive({id, asks}, peer, link);
    };
    const auto until = [](const auto& is_so) {
        for (const auto end = std::chrono::steady_clock::now() + kSoon; !is_so();) {
            if (std::chrono::steady_clock::now() > end) {
                return false;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
        }
        return true;
    };
    const auto ours = std::make_shared<CountingLink>();
    prepare({1, 2}, "hostb", ticket, ours);
    driver.feed(
        engine::source_event::Domain{{engine::DomainState::kRunning, engine::JobState::kOutgoing}});
    ASSERT_TRUE(until([&] { return driver.status().migration.has_value(); }));
    EXPECT_EQ(driver.status().peer, "hostb");
    EXPECT_NE(driver.bulk({1, 2}, "hostb"), nullptr);
    EXPECT_EQ(driver.bulk({1, 2}, "hostc"), nullptr) << "the blocks are another's";
    const auto thief = std::make_shared<CountingLink>();
    for (std::uint64_t i = 0; i < 40; ++i) {
        prepare({9, i}, "hostc", i % 2 == 0 ? ticket : random_ticket(), thief);
        prepare({1, 2}, "hostc", ticket, thief);  // By the name that nobody told it.
    }
    ASSERT_TRUE(until([&] { return thief->refusals == 40; }));
    const int before = ours->answers;
    EXPECT_TRUE(until([&] { return ours->answers > before + 2; })) << "its link is gone";
    EXPECT_EQ(thief->answers, thief->refusals);
    EXPECT_EQ(ours->refusals, 0);
    EXPECT_EQ(driver.status().migration, (engine::MigrationId{1, 2}));
    driver.stop();
}

}  // namespace
}  // namespace gantry::supervisor
