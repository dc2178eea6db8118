// A session's arrival and its link to the source, whose threads ask the arrival for its driver.
#include "host-daemon/supervisor/arrival.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "host-daemon/supervisor/worker_stock.h"

namespace gantry::supervisor {
namespace {

using std::chrono::seconds;

/// As a link whose bulk streams of an earlier attempt end while new ones are opened: open_bulk
/// waits for their threads, and the last that these do is to tell of a loss.
class EndingLink final : public transport::TargetLink {
public:
    EndingLink(const transport::TargetLinkHandlers& handlers, std::promise<bool>* has_told)
        : handlers_(handlers), has_told_(has_told) {}

    void send(const engine::Message& message) override {
        if (std::holds_alternative<engine::MsgPrepare>(message.body)) {
            handlers_.message({message.migration, engine::MsgOffer{}});
        }
    }

    void open_bulk(engine::MigrationId, int) override {
        std::promise<void> told;
        std::future<void> telling = told.get_future();
        reader_ = std::jthread([this, told = std::move(told)]() mutable {
            handlers_.bulk_lost(Error{Code::kUnavailable, "stream.lost", "the first attempt's"});
            told.set_value();
        });
        has_told_->set_value(telling.wait_for(seconds{5}) == std::future_status::ready);
    }

private:
    const transport::TargetLinkHandlers handlers_;
    std::promise<bool>* has_told_;
    std::jthread reader_;
};

TEST(Arrival, StreamsThatEndWhileNewOnesAreOpenedAskItForItsDriver) {
    char folder[] = "/tmp/arrival_test.XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    Config config;
    config.daemon.run_directory = folder;
    auto store = EpochStore::open(folder);
    ASSERT_TRUE(store.ok()) << store.error().to_string();
    WorkerStock stock(config);
    ArrivalHooks hooks;
    hooks.capabilities = []() -> Result<engine::TargetCapabilities> {
        engine::TargetCapabilities gpu;
        gpu.gpu_name = "any";
        return gpu;
    };
    hooks.reserve = [](const engine::SessionNeeds&) { return Result<void>(); };
    hooks.discard = [] {};
    hooks.query_domain = [](const std::function<void(engine::DomainReport)>&) {};
    hooks.arrived = [](Epoch) {};
    hooks.ended = [](engine::Outcome, const Error&) {};
    ArrivalRequest request;
    request.info.id = "arriving";
    request.info.kind = SessionKind::kVm;
    std::promise<bool> has_told;
    {
        Arrival arrival(request, config, stock, engine::Settings{}, *store, std::move(hooks));
        const auto begun = arrival.begin([&](const transport::TargetLinkHandlers& handlers) {
            return std::make_unique<EndingLink>(handlers, &has_told);
        });
        ASSERT_TRUE(begun.ok()) << begun.error().to_string();
        auto outcome = has_told.get_future();
        ASSERT_EQ(outcome.wait_for(seconds{30}), std::future_status::ready);
        EXPECT_TRUE(outcome.get()) << "the thread that open_bulk waits for waits for the arrival";
    }
    stock.stop();
    std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gantry::supervisor
