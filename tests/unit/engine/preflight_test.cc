// Preflight: each reason id, with the numbers in its sentence.
#include "migration/engine/preflight.h"

#include <gtest/gtest.h>

namespace gantry::engine {
namespace {

SessionNeeds needs() {
    SessionNeeds n;
    n.session_id = "vm";
    n.parts.push_back({{1}, "train", 4711, 512ULL << 20, 0});
    n.memory_quota_bytes = 1ULL << 30;
    n.cc_min = {8, 0};
    n.profile_name = "movable";
    n.driver_version = 13000;
    n.driver_version_min = 12000;
    n.snapshot_version = 1;
    n.modules.push_back(
        {{1},
         std::string(64, 'a'),
         "saxpy",
         {{{9, 0}, CodeScope::kPortable, false, 0}, {{7, 5}, CodeScope::kPortable, true, 90}},
         false});
    return n;
}

TargetCapabilities target() {
    TargetCapabilities t;
    t.host = "hostb";
    t.gpu_name = "Soft A";
    t.cc = {9, 0};
    t.memory_total_bytes = 4ULL << 30;
    t.memory_free_bytes = 2ULL << 30;
    t.driver_version = 13000;
    t.ptx_isa_version_max = 90;
    t.snapshot_version_min = 1;
    t.snapshot_version_max = 1;
    return t;
}

/// The one finding expected, with words its sentence must contain.
void expect_refusal(const SessionNeeds& n, const TargetCapabilities& t, std::string_view reason,
                    std::initializer_list<const char*> words) {
    const auto findings = preflight(n, t);
    ASSERT_EQ(findings.size(), 1U) << refusal_text(findings);
    EXPECT_EQ(findings[0].reason, reason);
    EXPECT_TRUE(refused(findings));
    for (const char* word : words) {
        EXPECT_NE(findings[0].text.find(word), std::string::npos)
            << word << " in: " << findings[0].text;
    }
    EXPECT_NE(refusal_text(findings).find("[" + std::string(reason) + "]"), std::string::npos);
}

TEST(Preflight, FittingTargetHasNoFindings) { EXPECT_TRUE(preflight(needs(), target()).empty()); }

TEST(Preflight, Memory) {
    auto t = target();
    t.memory_total_bytes = t.memory_free_bytes = 512ULL << 20;
    expect_refusal(needs(), t, reason::kGpuMemoryTooSmall, {"1024 MiB", "512 MiB", "hostb"});
    t.memory_total_bytes = 2ULL << 30;
    expect_refusal(needs(), t, reason::kGpuMemoryInUse, {"1024 MiB", "512 MiB free"});
}

TEST(Preflight, MemoryInUseCountsAboveTheQuota) {
    auto n = needs();
    n.memory_quota_bytes = 0;
    n.parts[0].resident_bytes = 3ULL << 30;
    expect_refusal(n, target(), reason::kGpuMemoryInUse, {"3072 MiB"});
    // So do contexts, heaps and stacks, which the target makes anew.
    n.parts[0].resident_bytes = 0;
    n.parts[0].beside_bytes = 3ULL << 30;
    expect_refusal(n, target(), reason::kGpuMemoryInUse, {"3072 MiB"});
}

TEST(Preflight, ComputeCapability) {
    auto t = target();
    t.cc = {7, 5};
    expect_refusal(needs(), t, reason::kGpuCcUnsupported, {"8.0", "7.5"});
}

TEST(Preflight, SoftOnlyProfile) {
    auto n = needs();
    n.profile = ProfileKind::kSoftOnly;
    n.profile_name = "soft130";
    expect_refusal(n, target(), reason::kProfileSoftOnly, {"soft130"});
    auto t = target();
    t.takes_any_profile = true;
    EXPECT_TRUE(preflight(n, t).empty());
}

TEST(Preflight, ModuleCode) {
    auto n = needs();
    n.modules[0].code = {{{10, 0}, CodeScope::kPortable, false, 0}};
    expect_refusal(n, target(), reason::kModuleNoCode, {"saxpy", "9.0", "sm_100"});
    n.modules[0].code = {{{9, 0}, CodeScope::kPortable, true, 91}};
    expect_refusal(n, target(), reason::kModulePtxTooNew, {"9.1", "9.0"});
    n = needs();
    n.modules[0].has_address_bound_globals = true;
    expect_refusal(n, target(), reason::kModuleGlobalsNotMovable, {"saxpy"});
}

TEST(Preflight, Versions) {
    auto t = target();
    t.driver_version = 11080;
    expect_refusal(needs(), t, reason::kDriverTooOld, {"12.0", "11.8"});
    t.driver_version = 12040;
    const auto findings = preflight(needs(), t);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].severity, Severity::kWarning);
    EXPECT_FALSE(refused(findings));
    t = target();
    auto n = needs();
    n.snapshot_version = 2;
    expect_refusal(n, t, reason::kSnapshotVersion, {"version 2", "1 to 1"});
}

TEST(Preflight, ProgramsMoveToWorkersOfTheSameCallTableOnly) {
    auto n = needs();
    auto t = target();
    n.parts[0].table_hash = 0xabc;
    EXPECT_TRUE(preflight(n, t).empty()) << "an older release does not tell";
    t.table_hash = 0xabc;
    EXPECT_TRUE(preflight(n, t).empty());
    n.parts.push_back({{2}, "", 4712, 0, 0, 0, 0xdef});
    expect_refusal(n, t, reason::kVersionTable,
                   {"4712", "0000000000000def", "0000000000000abc", "hostb"});
}

TEST(Preflight, AVmWithoutProgramsHasNoStateToRead) {
    auto n = needs();
    n.parts.clear();
    n.modules.clear();
    n.snapshot_version = 0;
    n.driver_version = n.driver_version_min = 0;
    EXPECT_TRUE(preflight(n, target()).empty());
}

TEST(Preflight, Features) {
    auto n = needs();
    n.blocking.push_back({{1}, "ipc.memory", "2 imported allocations"});
    expect_refusal(n, target(), "feature.ipc.memory.not_movable", {"4711", "train", "2 imported"});
}

TEST(Preflight, AttributeBaseline) {
    auto n = needs();
    n.attributes.push_back({97, "max_shared_memory_per_block_optin", 232448});
    auto t = target();
    t.attributes = {{97, 101376}};
    expect_refusal(n, t, reason::kGpuAttributeTooLow, {"232448", "101376"});
}

TEST(Preflight, PeerTroubleHidesTheRest) {
    auto t = target();
    t.gpu_name.clear();
    t.reach = PeerReach::kUnreachable;
    t.reach_detail = "connection refused";
    expect_refusal(needs(), t, reason::kNetworkUnreachable, {"connection refused"});
    t.reach = PeerReach::kCertificateInvalid;
    expect_refusal(needs(), t, reason::kCertificateInvalid, {"certificates"});
    t.reach = PeerReach::kReachable;
    expect_refusal(needs(), t, reason::kGpuAbsent, {"hostb"});
}

TEST(Preflight, WhichCodeRunsWhere) {
    const auto runs = [](CodeEntry code, ComputeCapability cc) { return can_run(code, cc); };
    EXPECT_TRUE(runs({{8, 0}, CodeScope::kPortable, false, 0}, {8, 6}));
    EXPECT_FALSE(runs({{8, 6}, CodeScope::kPortable, false, 0}, {8, 0}));
    EXPECT_FALSE(runs({{8, 0}, CodeScope::kPortable, false, 0}, {9, 0}));
    EXPECT_TRUE(runs({{8, 0}, CodeScope::kPortable, true, 80}, {12, 0}));
    EXPECT_FALSE(runs({{9, 0}, CodeScope::kArchSpecific, true, 80}, {10, 0}));
    EXPECT_TRUE(runs({{9, 0}, CodeScope::kArchSpecific, true, 80}, {9, 0}));
    EXPECT_TRUE(runs({{10, 0}, CodeScope::kFamily, true, 88}, {10, 3}));
    EXPECT_FALSE(runs({{10, 0}, CodeScope::kFamily, true, 88}, {12, 0}));
}

}  // namespace
}  // namespace gantry::engine
