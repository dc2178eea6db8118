// Memory at addresses outside the arena, beside what others have there.
#include "host-daemon/worker/variable_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

constexpr std::uint64_t kZone = 1ULL << 30;
constexpr std::uint64_t kGranule = ArenaAllocator::kGranuleBytes;
constexpr std::uint64_t kBase = 0x7100'0000'0000;

/// Writes there and reads it back.
void use(Host& host, std::uint64_t address) {
    const driver::DriverApi& api = host.device->api();
    std::array<unsigned char, 8> got{};
    ASSERT_EQ(api.cuMemcpyDtoH_v2(got.data(), address, got.size()), CUDA_SUCCESS);
    EXPECT_EQ(got, decltype(got){}) << "new memory is zero";
    ASSERT_EQ(api.cuMemcpyHtoD_v2(address, "variable", got.size()), CUDA_SUCCESS);
    ASSERT_EQ(api.cuMemcpyDtoH_v2(got.data(), address, got.size()), CUDA_SUCCESS);
    EXPECT_EQ(std::memcmp(got.data(), "variable", got.size()), 0);
}

TEST(VariableMemory, LiesBesideWhatIsInItsZone) {
    Host host;
    host.device->bind_thread();
    const driver::DriverApi& api = host.device->api();
    CUdeviceptr taken = 0;
    ASSERT_EQ(api.cuMemAddressReserve(&taken, kGranule, kGranule, kBase + 3 * kGranule, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(taken, kBase + 3 * kGranule);
    {
        VariableMemory memory(*host.device);
        // In two granules, in one of them, in another zone, and where something lies.
        const std::array first{VariableRange{kBase + kGranule - 8, 64}};
        const std::array second{VariableRange{kBase + kGranule + 64, 8},
                                VariableRange{kBase + kZone + 8, 8}};
        const std::array third{VariableRange{taken + 8, 8}};
        const auto held = memory.hold(first);
        ASSERT_TRUE(held.ok()) << held.error().to_string();
        use(host, kBase + kGranule - 8);
        {
            const auto beside = memory.hold(second);
            ASSERT_TRUE(beside.ok()) << beside.error().to_string();
            use(host, kBase + kZone + 8);
            const auto refused = memory.hold(third);
            ASSERT_FALSE(refused.ok());
            EXPECT_EQ(refused.error().reason, "module.globals.not_movable");
            EXPECT_NE(refused.error().text.find("try again"), std::string::npos);
        }
        use(host, kBase + kGranule + 64);
        EXPECT_TRUE(memory.hold(second).ok()) << "what was reserved stays so";
    }
    // All was given back.
    api.cuMemAddressFree(taken, kGranule);
    for (const std::uint64_t base : {kBase, kBase + kZone}) {
        CUdeviceptr again = 0;
        ASSERT_EQ(api.cuMemAddressReserve(&again, kZone, kGranule, base, 0), CUDA_SUCCESS);
        EXPECT_EQ(again, base);
        api.cuMemAddressFree(again, kZone);
    }
}

}  // namespace
}  // namespace gantry::worker
