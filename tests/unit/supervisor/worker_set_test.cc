// A session's workers, some of which answer nothing, or late.
#include "host-daemon/supervisor/workers/worker_set.h"

#include <gtest/gtest.h>
#include <sys/personality.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "host-daemon/supervisor/workers/worker_stock.h"

namespace gantry::supervisor {
namespace {

using std::chrono::seconds;

/// Its workers are processes that answer nothing.
class WorkerSetTest : public testing::Test {
protected:
    WorkerSetTest() {
        std::filesystem::create_directory(folder_ + "/workers");
        config_.daemon.run_directory = folder_;
        config_.worker.executable = folder_ + "/worker";
        config_.worker.user.clear();
        config_.worker.private_tmp = false;
        std::ofstream(config_.worker.executable) << "#!/bin/sh\nexec sleep 100\n";
        chmod(config_.worker.executable.c_str(), 0700);
    }
    ~WorkerSetTest() override { std::filesystem::remove_all(folder_); }

    std::string folder_ = [] {
        char pattern[] = "/tmp/worker_set_test.XXXXXX";
        return std::string(mkdtemp(pattern));
    }();
    Config config_;
};

TEST_F(WorkerSetTest, IsThereWhileAWorkerDoesNotTakeItsStagingArea) {
    const auto worker = Worker::spare(config_);
    ASSERT_TRUE(worker.ok()) << worker.error().to_string();
    WorkerSet set;
    set.add(*worker);
    auto staging = std::async(std::launch::async, [&] { return set.staging(*worker).ok(); });
    EXPECT_EQ(staging.wait_for(seconds{1}), std::future_status::timeout);
    auto looking = std::async(std::launch::async, [&] { return set.all().size(); });
    EXPECT_EQ(looking.wait_for(seconds{5}), std::future_status::ready);
    (*worker)->abort();
    EXPECT_FALSE(staging.get());
    EXPECT_EQ(looking.get(), 1U);
    (*worker)->discard();
}

/// Takes its staging area when it is told to, and answers all else at once.
class SlowWorker {
public:
    SlowWorker(WorkerRecord record, const std::string& control_path) : record_(std::move(record)) {
        record_.session_id = "s";
        record_.part = kPart;
        record_.process.control_path = control_path;
        auto listener = control::PacketListener::bind(control_path);
        EXPECT_TRUE(listener.ok());
        thread_ = std::jthread([this, listening = std::move(*listener)]() mutable {
            auto socket = listening.accept();
            control::ToWorker request;
            while (socket && socket->receive_message(request)) {
                EXPECT_TRUE(socket->send_message(answer(request)));
            }
        });
        auto adopted = Worker::adopt(record_, {[](engine::PartId, const std::string&) {},
                                               [](engine::PartId, const control::Event&) {}});
        EXPECT_TRUE(adopted.ok()) << adopted.error().to_string();
        worker = *adopted;
        worker->leave();
    }
    ~SlowWorker() { worker->abort(); }

    std::shared_ptr<Worker> worker;
    std::promise<void> is_asked;
    std::promise<void> may_take_it;

private:
    static constexpr engine::PartId kPart{0x101};

    control::FromWorker answer(const control::ToWorker& request) {
        control::FromWorker reply;
        reply.set_request_id(request.request_id());
        if (request.has_status()) {
            control::StatusReply& status = *reply.mutable_status_reply();
            status.set_protocol_version(control::kWorkerProtocolVersion);
            status.set_session_id(record_.session_id);
            status.set_part_id(record_.part.value);
        } else if (request.has_attach_arena()) {
            is_asked.set_value();
            may_take_it.get_future().wait();
        }
        return reply;
    }

    WorkerRecord record_;
    std::jthread thread_;
};

TEST_F(WorkerSetTest, StagingAreaOfAWorkerThatWasReplacedIsNotItsReplacements) {
    const auto process = Worker::spare(config_);
    ASSERT_TRUE(process.ok()) << process.error().to_string();
    SlowWorker old((*process)->record(), folder_ + "/old.sock");
    SlowWorker fresh((*process)->record(), folder_ + "/fresh.sock");
    WorkerSet set;
    set.add(old.worker);
    auto attached = std::async(std::launch::async, [&] { return set.staging(old.worker); });
    old.is_asked.get_future().wait();
    set.add(fresh.worker);
    old.may_take_it.set_value();
    const auto of_old = attached.get();
    fresh.may_take_it.set_value();
    const auto of_fresh = set.staging(fresh.worker);
    ASSERT_TRUE(of_old.ok() && of_fresh.ok());
    EXPECT_NE(*of_old, *of_fresh);
    EXPECT_EQ(fresh.is_asked.get_future().wait_for(seconds{0}), std::future_status::ready);
    (*process)->discard();
}

// So that variables of modules lie at the same addresses by themselves, or that these are free.
TEST_F(WorkerSetTest, AUsualWorkersAddressesAreFixedAndAScatteredOnesAreNot) {
    constexpr unsigned long kNoRandomisation = ADDR_NO_RANDOMIZE;
    std::ofstream(config_.worker.executable)
        << "#!/bin/sh\ncat /proc/self/personality >" << folder_ << "/personality\nexit 1\n";
    WorkerStock stock(config_, [] { return WorkerStock::Awaited{}; });
    const WorkerHandlers nobody{[](engine::PartId, const std::string&) {},
                                [](engine::PartId, const control::Event&) {}};
    const auto is_fixed = [&](Addresses addresses) {
        EXPECT_FALSE(stock.launch_new("s", engine::PartId{1}, 0, 0, nobody, addresses).ok());
        std::string digits;
        std::ifstream(folder_ + "/personality") >> digits;
        EXPECT_FALSE(digits.empty());
        return (std::strtoul(digits.c_str(), nullptr, 16) & kNoRandomisation) != 0;
    };
    EXPECT_TRUE(is_fixed(Addresses::kUsual));
    EXPECT_FALSE(is_fixed(Addresses::kScattered));
    config_.worker.fixed_addresses = false;
    EXPECT_FALSE(is_fixed(Addresses::kUsual)) << "gantryd.toml says so";
    stock.stop();
}

}  // namespace
}  // namespace gantry::supervisor
