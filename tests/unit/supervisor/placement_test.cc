// Which GPU a session begins on: rules, and invariants over random hosts and sessions.
#include "host-daemon/supervisor/registry/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "host-daemon/supervisor/registry/device_book.h"

namespace gantry::supervisor {
namespace {

constexpr std::uint64_t kMebibyte = 1 << 20;

GpuOffer gpu(DeviceNumber device, std::uint64_t mib, std::uint64_t promised_mib = 0,
             std::size_t sessions = 0) {
    GpuOffer out;
    out.device = device;
    out.name = "Test H" + std::to_string(100 * (device + 1)) + " PCIe";
    out.uuid = std::string(31, '0') + std::to_string(device);
    out.cc = {9, 0};
    out.memory_bytes = mib * kMebibyte;
    out.promised_bytes = promised_mib * kMebibyte;
    out.session_count = sessions;
    return out;
}

PlacementRequest wants(std::uint64_t mib, libvirt::GpuWish wish = {}) {
    PlacementRequest out;
    out.quota_bytes = mib * kMebibyte;
    out.wish = std::move(wish);
    return out;
}

std::string reason_of(const Result<DeviceNumber>& placed) {
    return placed ? "on " + std::to_string(*placed) : placed.error().reason;
}

TEST(Placement, EachPolicyHasItsOrder) {
    const std::vector<GpuOffer> host = {gpu(2, 100, 90, 1), gpu(0, 80, 40, 3), gpu(1, 100, 50, 2)};
    EXPECT_EQ(reason_of(place(wants(5), host, PlacementPolicy::kFreeMemory)), "on 1");
    EXPECT_EQ(reason_of(place(wants(5), host, PlacementPolicy::kFirst)), "on 0");
    EXPECT_EQ(reason_of(place(wants(5), host, PlacementPolicy::kSpread)), "on 2");
    // The first choice has no room: the next one in the policy's order.
    EXPECT_EQ(reason_of(place(wants(45), host, PlacementPolicy::kFirst)), "on 1");
    EXPECT_EQ(reason_of(place(wants(45), host, PlacementPolicy::kSpread)), "on 1");
}

TEST(Placement, EqualOnesAreTakenByNumberAndByTheirSessions) {
    const std::vector<GpuOffer> host = {gpu(1, 100), gpu(0, 100)};
    EXPECT_EQ(reason_of(place(wants(5), host, PlacementPolicy::kFreeMemory)), "on 0");
    EXPECT_EQ(reason_of(place(wants(5), host, PlacementPolicy::kSpread)), "on 0");
    // Without quotas nothing is promised, and sessions do not all go to one GPU.
    EXPECT_EQ(
        reason_of(place(wants(0), {gpu(0, 100, 0, 1), gpu(1, 100)}, PlacementPolicy::kFreeMemory)),
        "on 1");
}

TEST(Placement, TheMetadataOfAVmDecidesFirst) {
    const std::vector<GpuOffer> host = {gpu(0, 100), gpu(1, 100, 60)};
    const auto placed = [&](const libvirt::GpuWish& wish, std::uint64_t mib = 10) {
        return place(wants(mib, wish), host, PlacementPolicy::kFreeMemory);
    };
    EXPECT_EQ(reason_of(placed({1, "", ""})), "on 1");
    EXPECT_EQ(reason_of(placed({std::nullopt, gpu(1, 0).uuid, ""})), "on 1");
    EXPECT_EQ(reason_of(placed({std::nullopt, "", "H200"})), "on 1");
    EXPECT_EQ(reason_of(placed({std::nullopt, "", "H200 PCIe"})), "on 1");
    // Whole words only, and never another GPU than what it names.
    EXPECT_EQ(reason_of(placed({std::nullopt, "", "H20"})), "gpu.not_served");
    EXPECT_EQ(reason_of(placed({0, "", "H200"})), "gpu.not_served");
    EXPECT_EQ(reason_of(placed({1, "", ""}, 50)), "gpu.memory.in_use");
    const auto refused = placed({7, "", ""});
    EXPECT_EQ(refused.error().text,
              "the VM's <device> metadata wants the GPU of number 7; this host serves: GPU 0 (Test "
              "H100 PCIe), GPU 1 (Test H200 PCIe)");
}

TEST(Placement, ARefusalSaysOfEachGpuWhy) {
    PlacementRequest request = wants(80);
    EXPECT_EQ(reason_of(place(request, {}, PlacementPolicy::kFirst)), "gpu.absent");
    const std::vector<GpuOffer> host = {gpu(0, 100, 60), gpu(1, 64)};
    const auto full = place(request, host, PlacementPolicy::kFirst);
    EXPECT_EQ(reason_of(full), "gpu.memory.in_use");  // It helps to wait for the first.
    EXPECT_NE(full.error().text.find("GPU 0 (Test H100 PCIe) has 100 MiB, of which 60 MiB are "
                                     "promised to others; 80 MiB are wanted"),
              std::string::npos)
        << full.error().text;
    EXPECT_NE(full.error().text.find("GPU 1 (Test H200 PCIe) has 64 MiB in all"), std::string::npos)
        << full.error().text;
    request.quota_bytes = 101 * kMebibyte;
    EXPECT_EQ(reason_of(place(request, host, PlacementPolicy::kFirst)), "gpu.memory.too_small");
    request.cc_min = {10, 0};
    EXPECT_EQ(reason_of(place(request, host, PlacementPolicy::kFirst)), "gpu.cc.unsupported");
}

/// What it is asked, and what is left of each of a host's GPUs.
class Host {
public:
    explicit Host(std::mt19937& random) : random_(random) {
        const DeviceNumber count = 1 + random_() % 8;
        std::vector<DeviceNumber> served;
        for (DeviceNumber device = 0; device < count; ++device) {
            served.push_back(device);
            sizes_.push_back((1 + random_() % 64) * 16 * kMebibyte);
        }
        std::shuffle(served.begin(), served.end(), random_);
        book_.serve(served);
        for (const DeviceNumber device : served) {
            control::DeviceDescription description;
            description.set_name("GPU");
            description.set_compute_capability_major(9);
            description.set_memory_bytes(sizes_[device]);
            book_.note(device, description);
        }
    }

    /// A session comes or goes.
    void step(PlacementPolicy policy) {
        const std::string id = "s" + std::to_string(random_() % 24);
        if (sessions_.contains(id)) {
            book_.forget(id);
            sessions_.erase(id);
            return;
        }
        PlacementRequest request = wants(random_() % 600);
        if (random_() % 4 == 0) {
            request.wish.number = random_() % (sizes_.size() + 1);
        }
        const auto before = book_.offers(id);
        const auto foreseen = place(request, before, policy);
        const auto placed = book_.place(id, request, policy);
        EXPECT_EQ(reason_of(placed), reason_of(foreseen)) << "the same books, another answer";
        if (placed) {
            EXPECT_TRUE(!request.wish.number || *request.wish.number == *placed);
            sessions_[id] = {*placed, request.quota_bytes};
        } else {
            refuses(request, before);
        }
        check();
    }

    [[nodiscard]] std::size_t session_count() const { return sessions_.size(); }

private:
    /// No GPU that it may have had room.
    static void refuses(const PlacementRequest& request, const std::vector<GpuOffer>& host) {
        for (const GpuOffer& offer : host) {
            const bool may = !request.wish.number || *request.wish.number == offer.device;
            EXPECT_FALSE(may && request.quota_bytes <= offer.free_bytes()) << offer.text();
        }
    }

    void check() const {
        std::map<DeviceNumber, std::uint64_t> promised;
        for (const auto& [id, where] : sessions_) {
            promised[where.first] += where.second;
        }
        for (DeviceNumber device = 0; device < sizes_.size(); ++device) {
            EXPECT_EQ(book_.promised(device), promised[device]);
            EXPECT_LE(book_.promised(device), sizes_[device]) << "more than there is";
        }
    }

    std::mt19937& random_;
    std::vector<std::uint64_t> sizes_;
    DeviceBook book_{[](DeviceNumber) -> Result<control::DeviceDescription> {
        return Error{Code::kInternal, "device.open", "it is known"};
    }};
    std::map<std::string, std::pair<DeviceNumber, std::uint64_t>> sessions_;
};

TEST(Placement, NeverPromisesMoreThanThereIsAndNeverRefusesWhatFits) {
    std::size_t placed = 0;
    for (unsigned seed = 1; seed <= 60; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 random(seed);
        Host host(random);
        const auto policy = static_cast<PlacementPolicy>(seed % 3);
        for (int i = 0; i < 100 && !testing::Test::HasFailure(); ++i) {
            host.step(policy);
            placed += host.session_count();
        }
    }
    EXPECT_GT(placed, 2'000U);  // It was no test of refusals alone.
}

TEST(Placement, TheOrderOfTheListDecidesNothing) {
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
        std::vector<GpuOffer> host;
        for (DeviceNumber device = 0; device < 6; ++device) {
            host.push_back(gpu(device, 50 + random() % 3 * 50, random() % 2 * 25, random() % 3));
        }
        const auto request = wants(random() % 160);
        for (const auto policy :
             {PlacementPolicy::kFreeMemory, PlacementPolicy::kFirst, PlacementPolicy::kSpread}) {
            const std::string expected = reason_of(place(request, host, policy));
            std::vector<GpuOffer> shuffled = host;
            std::shuffle(shuffled.begin(), shuffled.end(), random);
            EXPECT_EQ(reason_of(place(request, shuffled, policy)), expected);
        }
    }
}

}  // namespace
}  // namespace gantry::supervisor
