// Preflight: may this session move to that target? A pure function from needs and capabilities to
// findings, used by `gantry preflight`, by the admission hook and by the source before precopy.
//
// Every finding has a stable reason id (never reworded; manual, log and tests share it) and one
// sentence with the numbers and what to do. Any finding of severity kRefusal means no.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "migration/engine/needs.h"

namespace gantry::engine {

namespace reason {
inline constexpr std::string_view kGpuAbsent = "gpu.absent";
inline constexpr std::string_view kGpuMemoryTooSmall = "gpu.memory.too_small";
inline constexpr std::string_view kGpuMemoryInUse = "gpu.memory.in_use";
inline constexpr std::string_view kGpuCcUnsupported = "gpu.cc.unsupported";
inline constexpr std::string_view kGpuAttributeTooLow = "gpu.attribute.too_low";
inline constexpr std::string_view kModuleNoCode = "module.no_code";
inline constexpr std::string_view kModuleGlobalsNotMovable = "module.globals.not_movable";
inline constexpr std::string_view kModulePtxTooNew = "module.ptx.too_new";
inline constexpr std::string_view kDriverTooOld = "driver.too_old";
inline constexpr std::string_view kProfileSoftOnly = "profile.soft_only";
inline constexpr std::string_view kSnapshotVersion = "snapshot.version.unsupported";
inline constexpr std::string_view kVersionTable = "version.table";
inline constexpr std::string_view kNetworkUnreachable = "network.unreachable";
inline constexpr std::string_view kCertificateInvalid = "certificate.invalid";
inline constexpr std::string_view kDriverDowngrade = "driver.older_than_source";  // warning
/// kFeature<id>NotMovable: "feature." + BlockingFeature::id + ".not_movable".
inline constexpr std::string_view kFeaturePrefix = "feature.";
inline constexpr std::string_view kFeatureSuffix = ".not_movable";
}  // namespace reason

enum class Severity { kRefusal = 1, kWarning = 2 };

struct Finding {
    Severity severity = Severity::kRefusal;
    std::string reason;
    std::string text;
};

/// All findings, refusals first, in a fixed order. Empty: the session can move.
[[nodiscard]] std::vector<Finding> preflight(const SessionNeeds& needs,
                                             const TargetCapabilities& target);

[[nodiscard]] bool refused(const std::vector<Finding>& findings);

/// One line for virsh's error and the log: "<text> [<reason>]; ..." of all refusals.
[[nodiscard]] std::string refusal_text(const std::vector<Finding>& findings);

/// True when a device of capability `device` can run this code entry.
[[nodiscard]] bool can_run(const CodeEntry& code, ComputeCapability device);

}  // namespace gantry::engine
