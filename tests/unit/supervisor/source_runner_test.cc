// What a source's driver tells of a move that ends.
#include "host-daemon/supervisor/moves/source_runner.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <string>

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
    SourceRunner driver("session", Epoch{1}, settings, "none", 0, store_, source_,
                        std::move(hooks));
    told_by = &driver;
    const engine::MigrationId move{1, 2};
    const auto link = std::make_shared<NoLink>();
    driver.receive({move, engine::MsgPrepare{engine::kEngineProtocolVersion, "session", {}}}, link);
    driver.receive({move, engine::MsgAbort{"test", "the target does not want it"}}, link);
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

}  // namespace
}  // namespace gantry::supervisor
