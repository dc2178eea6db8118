// The GPU of a host that a session goes to: the first that preflight does not refuse.
#include "migration/engine/gpu_choice.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace gantry::engine {
namespace {

SessionNeeds needs_of(std::uint64_t mib) {
    SessionNeeds out;
    out.session_id = "vm";
    out.memory_quota_bytes = mib << 20;
    out.cc_min = {8, 0};
    out.driver_version = out.driver_version_min = 12000;
    out.snapshot_version = 1;
    return out;
}

HostGpu gpu(std::uint32_t number, std::uint64_t free_mib, ComputeCapability cc = {9, 0}) {
    HostGpu out;
    out.number = number;
    out.capabilities.host = "hostb";
    out.capabilities.gpu_name = "Soft " + std::to_string(number);
    out.capabilities.cc = cc;
    out.capabilities.memory_total_bytes = 1024ULL << 20;
    out.capabilities.memory_free_bytes = free_mib << 20;
    out.capabilities.driver_version = 12000;
    out.capabilities.ptx_isa_version_max = 90;
    out.capabilities.snapshot_version_min = out.capabilities.snapshot_version_max = 1;
    return out;
}

TEST(GpuChoice, TheFirstThatIsNotRefused) {
    const std::vector<HostGpu> host = {gpu(2, 100), gpu(0, 900, {7, 5}), gpu(1, 500), gpu(3, 500)};
    const GpuChoice choice = choose_gpu(needs_of(400), host);
    EXPECT_EQ(choice.index, 2U);
    EXPECT_TRUE(choice.findings.empty());
}

TEST(GpuChoice, WhereAllAreRefusedEachSaysWhy) {
    const GpuChoice choice = choose_gpu(needs_of(400), {gpu(2, 100), gpu(0, 900, {7, 5})});
    EXPECT_EQ(choice.index, 0U);
    ASSERT_EQ(choice.findings.size(), 2U) << refusal_text(choice.findings);
    EXPECT_EQ(choice.findings[0].reason, reason::kGpuMemoryInUse);
    EXPECT_EQ(choice.findings[0].text.find("GPU 2: "), 0U) << choice.findings[0].text;
    EXPECT_EQ(choice.findings[1].reason, reason::kGpuCcUnsupported);
    EXPECT_EQ(choice.findings[1].text.find("GPU 0: "), 0U) << choice.findings[1].text;
}

TEST(GpuChoice, OneGpuIsJudgedAsEver) {
    const HostGpu only = gpu(0, 100);
    const GpuChoice choice = choose_gpu(needs_of(400), {only});
    const auto judged = preflight(needs_of(400), only.capabilities);
    ASSERT_EQ(choice.findings.size(), judged.size());
    EXPECT_EQ(choice.findings[0].text, judged[0].text);
    const GpuChoice none = choose_gpu(needs_of(400), {});
    ASSERT_FALSE(none.findings.empty());
    EXPECT_EQ(none.findings[0].reason, reason::kGpuAbsent);
}

}  // namespace
}  // namespace gantry::engine
