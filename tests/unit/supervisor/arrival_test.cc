// A session's arrival and its link to the source, whose threads ask the arrival for its driver.
#include "host-daemon/supervisor/sessions/arrival.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <thread>

#include "host-daemon/supervisor/sessions/handover.h"
#include "host-daemon/supervisor/workers/worker_stock.h"

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

/// A host without workers.
class ArrivalTest : public testing::Test {
protected:
    ArrivalTest() {
        config_.daemon.run_directory = folder_;
        request_.info.id = "arriving";
        request_.info.kind = SessionKind::kVm;
    }
    ~ArrivalTest() override {
        stock_.stop();
        std::filesystem::remove_all(folder_);
    }

    static ArrivalHooks hooks();

    std::string folder_ = [] {
        char pattern[] = "/tmp/arrival_test.XXXXXX";
        return std::string(::mkdtemp(pattern));
    }();
    Config config_;
    WorkerStock stock_{config_, [] { return WorkerStock::Awaited{}; }};
    EpochStore store_ = std::move(*EpochStore::open(folder_));
    ArrivalRequest request_;
};

ArrivalHooks ArrivalTest::hooks() {
    ArrivalHooks hooks;
    hooks.choose = [](std::optional<DeviceNumber>) -> Result<engine::HostGpu> {
        engine::HostGpu gpu;
        gpu.capabilities.gpu_name = "any";
        return gpu;
    };
    hooks.reserve = [](const engine::SessionNeeds&, DeviceNumber) { return Result<void>(); };
    hooks.discard = [] {};
    hooks.query_domain = [](const std::function<void(engine::DomainReport)>&) {};
    hooks.arrived = [](Epoch) {};
    hooks.ended = [](engine::Outcome, const Error&) {};
    return hooks;
}

TEST_F(ArrivalTest, StreamsThatEndWhileNewOnesAreOpenedAskItForItsDriver) {
    std::promise<bool> has_told;
    Arrival arrival(request_, config_, stock_, engine::Settings{}, store_, hooks());
    const auto begun = arrival.begin([&](const transport::TargetLinkHandlers& handlers) {
        return std::make_unique<EndingLink>(handlers, &has_told);
    });
    ASSERT_TRUE(begun.ok()) << begun.error().to_string();
    auto outcome = has_told.get_future();
    ASSERT_EQ(outcome.wait_for(seconds{30}), std::future_status::ready);
    EXPECT_TRUE(outcome.get()) << "the thread that open_bulk waits for waits for the arrival";
}

class SilentLink final : public transport::TargetLink {
public:
    void send(const engine::Message&) override {}
    void open_bulk(engine::MigrationId, int) override {}
};

TEST_F(ArrivalTest, AnAnswerOfTheHypervisorMayComeAfterItsEnd) {
    using Answer = std::function<void(engine::DomainReport)>;
    std::promise<Answer> asked;
    ArrivalHooks hooks = this->hooks();
    hooks.query_domain = [&](Answer answer) { asked.set_value(std::move(answer)); };
    alignas(Arrival) static std::byte memory[sizeof(Arrival)];
    const auto forget = [](Arrival* ended) {
        ended->~Arrival();
        std::memset(memory, 0x5a, sizeof memory);  // No mutex, and no pointer.
    };
    std::shared_ptr<Arrival> arrival(
        new (memory) Arrival(request_, config_, stock_, engine::Settings{}, store_, hooks), forget);
    arrival->resume(
        [](const transport::TargetLinkHandlers&) { return std::make_unique<SilentLink>(); },
        std::nullopt, engine::MigrationId{1, 2}, std::nullopt);
    auto answer = asked.get_future();
    ASSERT_EQ(answer.wait_for(seconds{30}), std::future_status::ready);
    arrival.reset();
    EXPECT_NO_THROW(answer.get()({engine::DomainState::kRunning, engine::JobState::kNone}));
}

// `gantry fenced` ends what waits for a host that will not answer, and `gantry status` says so.
TEST_F(ArrivalTest, ThatItsSourceIsFencedStandsOnceAnOperatorHasSaidIt) {
    Arrival arrival(request_, config_, stock_, engine::Settings{}, store_, hooks());
    arrival.resume(
        [](const transport::TargetLinkHandlers&) { return std::make_unique<SilentLink>(); },
        std::nullopt, engine::MigrationId{1, 2}, std::nullopt);
    EXPECT_FALSE(arrival.source_fenced());
    arrival.confirm_source_fenced();
    EXPECT_TRUE(arrival.source_fenced());
}

TEST(Handover, AGuestIsFetchedWithItsMemoryOrTheReason) {
    const std::string path = testing::TempDir() + "handover_" + std::to_string(::getpid());
    // A reason that is longer than its room in the packet, and no words after it.
    const std::string long_reason(300, 'r');
    const auto server =
        HandoverServer::start(path, [&](const HandoverRequest& request) -> Result<GuestLink> {
            if (request.session_id == "here") {
                GuestLink link;
                link.region = std::move(*Region::create_local(64 << 20));
                return link;
            }
            if (request.session_id == "wordless") {
                return Error{Code::kNotFound, long_reason, ""};
            }
            return Error{Code::kNotFound, "session.unknown", "none of that name"};
        });
    ASSERT_TRUE(server.ok()) << server.error().to_string();
    const auto here = fetch_guest(path, {"here", 3});
    ASSERT_TRUE(here.ok()) << here.error().to_string();
    EXPECT_EQ(here->region.bytes(), 64U << 20);
    EXPECT_FALSE(here->socket.valid());
    const auto text_of = [&](const char* id) {
        const auto refused = fetch_guest(path, {id, 3});
        EXPECT_FALSE(refused.ok()) << id;
        return refused.ok() ? "" : refused.error().text;
    };
    const std::string refusal = text_of("elsewhere");
    EXPECT_TRUE(refusal.ends_with(": none of that name")) << refusal;
    const std::string wordless = text_of("wordless");
    EXPECT_TRUE(wordless.ends_with(": ")) << wordless;
    std::filesystem::remove(path);
}

}  // namespace
}  // namespace gantry::supervisor
