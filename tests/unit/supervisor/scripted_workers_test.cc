// What gantryd makes of workers that end, are two of a kind, or hold what a file does not.
#include <gtest/gtest.h>

#include <filesystem>
#include <future>

#include "host-daemon/supervisor/moves/source_runner.h"
#include "host-daemon/supervisor/parts/digest_report.h"
#include "host-daemon/supervisor/sessions/session.h"
#include "host-daemon/supervisor/snapshots/snapshot_room.h"
#include "host-daemon/supervisor/workers/worker_stock.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/container.pb.h"
#include "tests/unit/supervisor/registry_of_a_vm.h"
#include "tests/unit/supervisor/scripted_worker.h"

namespace gantry::supervisor {
namespace {

using std::chrono::seconds;

constexpr engine::PartId kPart = part_of({0, 1});
constexpr engine::Seed kSeed{5, 6};

const WorkerHandlers kNobody{[](engine::PartId, const std::string&) {},
                             [](engine::PartId, const control::Event&) {}};

std::vector<std::byte> block_of(int value) {
    return std::vector<std::byte>(engine::kBlockBytes, static_cast<std::byte>(value));
}

engine::Fingerprint fingerprint_of(const std::vector<std::byte>& block) {
    return snapshot::fingerprint(snapshot::FingerprintKey(kSeed), snapshot::BlockSpan(block));
}

class ScriptedWorkers : public testing::Test {
protected:
    ScriptedWorkers() {
        std::filesystem::create_directory(folder_ + "/sessions");
        config_.daemon.run_directory = folder_;
        config_.daemon.state_directory = folder_;
        info_.id = "s";
        info_.kind = SessionKind::kLocal;
    }
    ~ScriptedWorkers() override {
        stock_.stop();
        std::filesystem::remove_all(folder_);
    }
    [[nodiscard]] std::string path(const char* name) const { return folder_ + "/" + name; }

    std::string folder_ = [] {
        char pattern[] = "/tmp/scripted_workers_test.XXXXXX";
        return std::string(::mkdtemp(pattern));
    }();
    Config config_;
    SessionInfo info_;
    WorkerStock stock_{config_, [] { return WorkerStock::Awaited{}; }};
};

TEST_F(ScriptedWorkers, OneThatBreaksOffIsKilledAndTold) {
    ScriptedWorker scripted("s", kPart, path("w.sock"));
    std::promise<std::string> told;
    WorkerHandlers handlers = kNobody;
    handlers.lost = [&](engine::PartId part, const std::string& how) {
        EXPECT_EQ(part, kPart);
        told.set_value(how);
    };
    const auto worker = Worker::adopt(scripted.record(), handlers);
    ASSERT_TRUE(worker.ok()) << worker.error().to_string();
    EXPECT_TRUE(scripted.lives());
    scripted.hang_up();
    auto how = told.get_future();
    ASSERT_EQ(how.wait_for(seconds{20}), std::future_status::ready);
    EXPECT_EQ(how.get().find("killed after it broke off: "), 0U);
    EXPECT_FALSE(scripted.lives());
}

// gantryd was restarted while one was taking the other's place.
TEST_F(ScriptedWorkers, OfTwoOfAPartTheOneWithTheGuestStays) {
    for (const bool is_first : {false, true}) {
        ScriptedWorker serving("s", kPart, path("serving.sock"));
        ScriptedWorker fresh("s", kPart, path("fresh.sock"), control::WORKER_STATE_STARTED);
        std::vector<WorkerRecord> records{fresh.record(), serving.record()};
        if (is_first) {
            std::swap(records[0], records[1]);
        }
        const auto session = std::make_shared<Session>(info_, config_, stock_);
        EXPECT_EQ(session->adopt_workers(records, kNobody, true), 2U);
        EXPECT_TRUE(fresh.was_ended());
        EXPECT_FALSE(serving.was_ended());
        ASSERT_NE(session->workers().find(kPart), nullptr);
        EXPECT_EQ(session->workers().find(kPart)->pid(), serving.record().process.pid);
        EXPECT_EQ(session->workers().all().size(), 1U);
        session->leave();
    }
}

TEST_F(ScriptedWorkers, ADifferenceFromAFileIsToldBlockByBlock) {
    const std::string file = path("state");
    const std::uint64_t first = wire::kArenaBase / engine::kBlockBytes;
    {
        auto out = snapshot::AtomicFile::create(file);
        ASSERT_TRUE(out.ok());
        snapshot::SnapshotHeader header;
        header.set_seed_low(kSeed.low);
        header.set_seed_high(kSeed.high);
        snapshot::SnapshotWriter writer(out->fd(), file, header, snapshot::Codec::kStored);
        ASSERT_TRUE(writer.add_graph(kPart.value, "graph").ok());
        for (int i = 0; i < 3; ++i) {
            const auto block = block_of(i + 1);
            ASSERT_TRUE(writer
                            .add_block({kPart.value, 1, first + static_cast<std::uint64_t>(i)},
                                       snapshot::BlockSpan(block))
                            .ok());
        }
        ASSERT_TRUE(writer.finish().ok());
        ASSERT_TRUE(out->commit().ok());
    }
    std::vector<std::pair<std::uint64_t, engine::Fingerprint>> blocks;
    ScriptedWorker scripted("s", kPart, path("w.sock"), control::WORKER_STATE_FROZEN,
                            [&](const control::ToWorker& request, ScriptedWorker::Reply* reply) {
                                if (request.has_get_digest()) {
                                    ScriptedWorker::list_blocks(blocks, reply);
                                }
                            });
    const auto worker = Worker::adopt(scripted.record(), kNobody);
    ASSERT_TRUE(worker.ok()) << worker.error().to_string();
    for (std::uint64_t i = 0; i < 3; ++i) {
        blocks.emplace_back(first + i, fingerprint_of(block_of(static_cast<int>(i) + 1)));
    }
    const auto text = [&] { return memory_beside_file(**worker, file, kSeed).text; };
    EXPECT_EQ(text(), "at a second look all 3 blocks are as the file says");
    blocks[0].second = fingerprint_of(block_of(9));
    blocks[1].second = fingerprint_of(block_of(0));
    blocks[2].first += 10;
    const auto named = [&](std::uint64_t block) {
        return name_of({engine::MemorySpace::kDevice, block});
    };
    EXPECT_EQ(text(), "2 of 3 blocks differ, 1 are not in the file, 1 not in memory; " +
                          named(first) + " (other bytes); " + named(first + 1) + " (zeros); " +
                          named(first + 12) + " (not in the file); " + named(first + 2) +
                          " (not in memory)");
    (*worker)->leave();
}

// Zeros and repeats are not stored.
TEST_F(ScriptedWorkers, TheRoomOfASnapshotIsThatOfItsDifferentBlocks) {
    std::optional<engine::Seed> seed;
    ScriptedWorker scripted("s", kPart, path("w.sock"), control::WORKER_STATE_SERVING,
                            [&](const control::ToWorker& request, ScriptedWorker::Reply* reply) {
                                if (request.has_begin_precopy()) {
                                    const control::Seed& told = request.begin_precopy().seed();
                                    seed = engine::Seed{told.low(), told.high()};
                                } else if (request.has_get_digest() && seed) {
                                    const snapshot::FingerprintKey key(*seed);
                                    const auto one = block_of(1);
                                    const auto two = block_of(2);
                                    ScriptedWorker::list_blocks(
                                        {{1, snapshot::fingerprint(key, snapshot::BlockSpan(one))},
                                         {2, key.zero_block()},
                                         {3, snapshot::fingerprint(key, snapshot::BlockSpan(two))},
                                         {4, snapshot::fingerprint(key, snapshot::BlockSpan(one))}},
                                        reply);
                                }
                            });
    const auto session = std::make_shared<Session>(info_, config_, stock_);
    ASSERT_EQ(session->adopt_workers({scripted.record()}, kNobody, true), 1U);
    EpochStore store = std::move(*EpochStore::open(folder_));
    SourceHooks hooks;
    hooks.alert = [](engine::AlertKind, const Error&) {};
    hooks.progress = [](const engine::Progress&) {};
    hooks.query_domain = hooks.abort_job = hooks.released = hooks.given_up = [] {};
    hooks.finished = [](engine::Outcome, const Error&) {};
    engine::Settings settings;
    settings.is_bound_to_hypervisor = false;
    SourceRunner driver("s", Epoch{1}, settings, "none", 0, store, session->source(),
                        std::move(hooks));
    const auto bytes = stored_bytes_now(*session, driver);
    ASSERT_TRUE(bytes.ok()) << bytes.error().to_string();
    EXPECT_EQ(*bytes, 2 * engine::kBlockBytes);
    driver.stop();
    session->leave();
}

/// As RegistryOfAVm, and a program of the VM is served.
struct ServingWorker {
    std::string socket_folder = [] {
        char pattern[] = "/tmp/serving_worker.XXXXXX";
        return std::string(::mkdtemp(pattern));
    }();
    ScriptedWorker worker{"5f3b7a60-0000-4000-8000-000000000001", kPart, socket_folder + "/w.sock"};
    ~ServingWorker() { std::filesystem::remove_all(socket_folder); }
};
class RegistryOfAWorkingVm : protected ServingWorker, public RegistryOfAVm {
protected:
    RegistryOfAWorkingVm() : RegistryOfAVm(nlohmann::json::array({to_json(worker.record())})) {}
    std::size_t workers() {
        const auto session = registry_.find(kVm);
        return session.ok() ? (*session)->workers().all().size() : 0;
    }
};

TEST_F(RegistryOfAWorkingVm, ServesTheVmOnWhenAProgramOfItHasEnded) {
    ASSERT_EQ(workers(), 1U);
    worker.tell_guest_gone();
    EXPECT_TRUE(comes_to([&] { return worker.was_ended(); }, seconds{20}));
    EXPECT_TRUE(comes_to([&] { return sessions() == 0 || workers() == 0; }, seconds{20}));
    EXPECT_EQ(sessions(), 1);
    // What it would do once its session was closed is done by now, or never.
    vm_.tell("", libvirt::EventKind::kStateReadEnd);
    EXPECT_EQ(sessions(), 1);
}

}  // namespace
}  // namespace gantry::supervisor
