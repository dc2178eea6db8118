// A gantryd that begins with the session of one VM, for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "host-daemon/supervisor/registry/registry.h"
#include "tests/unit/supervisor/one_vm.h"

namespace gantry::supervisor {

class MutePeer final : public transport::MessageLink {
public:
    void send(const engine::Message&) override {}
};

/// Its VM has no program, unless `workers` say so.
class RegistryOfAVm : public testing::Test {
protected:
    static constexpr std::uint64_t kRegionBytes = 128 << 20;
    static constexpr const char* kVm = "5f3b7a60-0000-4000-8000-000000000001";

    /// `workers`: what a gantryd before this one has noted of those that serve its programs.
    explicit RegistryOfAVm(const nlohmann::json& workers = nlohmann::json::array()) {
        config_.daemon.run_directory = folder_;
        config_.daemon.state_directory = folder_ + "/state";
        config_.worker.executable = "/bin/false";
        config_.worker.user.clear();
        config_.worker.private_tmp = false;
        config_.daemon.state_directory = folder_ + "/state";
        config_.vm.region_directory = folder_;
        config_.peer.listen = "hosta:7700";  // Nobody listens; VMs are stamped with it.
        std::filesystem::create_directory(folder_ + "/sessions");
        SessionInfo info;
        info.id = kVm;
        info.kind = SessionKind::kVm;
        info.vm_name = "g1";
        info.region_path = folder_ + "/region";
        info.region_bytes = kRegionBytes;
        const nlohmann::json record{{"session", to_json(info)}, {"workers", workers}};
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
    bool comes_to(const std::function<bool()>& condition, std::chrono::seconds within) {
        const auto until = std::chrono::steady_clock::now() + within;
        while (!condition() && std::chrono::steady_clock::now() < until) {
            std::this_thread::sleep_for(std::chrono::milliseconds{10});
        }
        return condition();
    }
    bool is_moving() {
        const auto session = registry_.find(kVm);
        return session.ok() && (*session)->driver()->status().migration.has_value();
    }
    void begin_move() {
        ASSERT_TRUE(comes_to([&] { return vm_.ticket().exists(); }, std::chrono::seconds{20}));
        vm_.is_now(engine::DomainState::kRunning, engine::JobState::kOutgoing);
        engine::TargetCapabilities target;
        target.host = "hostb";
        target.gpu_name = "another";
        target.cc = {9, 0};
        target.memory_total_bytes = target.memory_free_bytes = 1ULL << 40;
        target.driver_version = target.ptx_isa_version_max = 99999;
        target.snapshot_version_max = 99999;
        registry_.receive(
            kVm,
            {{1, 2}, engine::MsgPrepare{engine::kEngineProtocolVersion, kVm, target, vm_.ticket()}},
            "hostb", std::make_shared<MutePeer>());
        ASSERT_TRUE(comes_to([&] { return is_moving(); }, std::chrono::seconds{20}));
    }

    static libvirt::DomainInfo domain() { return *libvirt::parse_domain_xml(kXml); }
    Result<control::StartingReply> start(control::StartingRequest::Step step) {
        control::StartingRequest request;
        request.set_vm_name("g1");
        request.set_step(step);
        request.set_domain_xml(kXml);
        return registry_.starting(request);
    }

    static constexpr const char* kXml = R"(<domain type='qemu'>
  <name>g1</name><uuid>5f3b7a60-0000-4000-8000-000000000001</uuid>
  <metadata><gantry:gpu xmlns:gantry='urn:gantry:vm:1'>
    <gantry:needs memory_mib='64'/><gantry:region shmem='region'/></gantry:gpu></metadata>
  <devices><shmem name='region' role='master'>
    <model type='ivshmem-plain'/><size unit='M'>128</size></shmem></devices>
</domain>)";

    std::string folder_ = [] {
        char pattern[] = "/tmp/registry_test.XXXXXX";
        return std::string(::mkdtemp(pattern));
    }();
    Config config_;
    EpochStore store_ = std::move(*EpochStore::open(folder_ + "/state"));
    OneVm vm_;
    Registry registry_{config_, store_, vm_};
};

inline constexpr std::chrono::seconds kEndedWithin{5};

}  // namespace gantry::supervisor
