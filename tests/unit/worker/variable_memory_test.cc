// Memory at addresses outside the arena, beside what others have there.
#include "host-daemon/execution/memory/variable_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

constexpr std::uint64_t kVariableZone = 1ULL << 30;
constexpr std::uint64_t kVariableGranule = ArenaAllocator::kGranuleBytes;
constexpr std::uint64_t kVariablesAt = 0x7100'0000'0000;

/// Writes there and reads it back.
void use_variable(Host& host, std::uint64_t address) {
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
    ASSERT_EQ(api.cuMemAddressReserve(&taken, kVariableGranule, kVariableGranule,
                                      kVariablesAt + 3 * kVariableGranule, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(taken, kVariablesAt + 3 * kVariableGranule);
    {
        VariableMemory memory(*host.device);
        // In two granules, in one of them, in another zone, and where something lies.
        const std::array first{VariableRange{kVariablesAt + kVariableGranule - 8, 64}};
        const std::array second{VariableRange{kVariablesAt + kVariableGranule + 64, 8},
                                VariableRange{kVariablesAt + kVariableZone + 8, 8}};
        const std::array third{VariableRange{taken + 8, 8}};
        const auto held = memory.hold(first);
        ASSERT_TRUE(held.ok()) << held.error().to_string();
        use_variable(host, kVariablesAt + kVariableGranule - 8);
        {
            const auto beside = memory.hold(second);
            ASSERT_TRUE(beside.ok()) << beside.error().to_string();
            use_variable(host, kVariablesAt + kVariableZone + 8);
            const auto refused = memory.hold(third);
            ASSERT_FALSE(refused.ok());
            EXPECT_EQ(refused.error().reason, "module.globals.not_now");
            EXPECT_NE(refused.error().text.find("try again"), std::string::npos);
        }
        use_variable(host, kVariablesAt + kVariableGranule + 64);
        EXPECT_TRUE(memory.hold(second).ok()) << "what was reserved stays so";
    }
    // All was given back.
    api.cuMemAddressFree(taken, kVariableGranule);
    for (const std::uint64_t base : {kVariablesAt, kVariablesAt + kVariableZone}) {
        CUdeviceptr again = 0;
        ASSERT_EQ(api.cuMemAddressReserve(&again, kVariableZone, kVariableGranule, base, 0),
                  CUDA_SUCCESS);
        EXPECT_EQ(again, base);
        api.cuMemAddressFree(again, kVariableZone);
    }
}

}  // namespace
}  // namespace gantry::worker
