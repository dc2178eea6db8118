#include "migration/engine/preflight.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

namespace gantry::engine {
namespace {

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, pattern);
    std::vsnprintf(text, sizeof text, pattern, arguments);
    va_end(arguments);
    return text;
}

std::string mib(std::uint64_t bytes) {
    return format("%" PRIu64 " MiB", (bytes + (1U << 20) - 1) >> 20);
}

std::string cc_text(ComputeCapability cc) { return format("%u.%u", cc.major, cc.minor); }

std::string version_text(std::uint32_t driver_version) {
    return format("%u.%u", driver_version / 1000, driver_version % 1000 / 10);
}

class Evaluation {
public:
    Evaluation(const SessionNeeds& needs, const TargetCapabilities& target)
        : needs_(needs), target_(target) {}

    std::vector<Finding> run() {
        reach();
        if (target_.reach != PeerReach::kReachable) {
            return std::move(findings_);  // nothing that the target says is known
        }
        gpu();
        versions();
        features();
        std::stable_sort(findings_.begin(), findings_.end(),
                         [](const auto& a, const auto& b) { return a.severity < b.severity; });
        return std::move(findings_);
    }

private:
    void add(Severity severity, std::string_view reason, std::string text) {
        findings_.push_back({severity, std::string(reason), std::move(text)});
    }
    void refuse(std::string_view reason, std::string text) {
        add(Severity::kRefusal, reason, std::move(text));
    }
    const char* host() const { return target_.host.empty() ? "target" : target_.host.c_str(); }

    void reach() {
        const char* detail = target_.reach_detail.c_str();
        if (target_.reach == PeerReach::kUnreachable) {
            refuse(reason::kNetworkUnreachable,
                   format("gantryd on %s cannot be reached (%s): check that it runs and that its "
                          "control port is open between the hosts.",
                          host(), detail));
        } else if (target_.reach == PeerReach::kCertificateInvalid) {
            refuse(reason::kCertificateInvalid,
                   format("gantryd on %s was not accepted as a peer (%s): check both hosts' "
                          "certificates and that one authority signed them.",
                          host(), detail));
        }
    }

    void gpu() {
        if (target_.gpu_name.empty()) {
            refuse(reason::kGpuAbsent,
                   format("%s has no GPU that Gantry may use: add one to its configuration or "
                          "choose another host.",
                          host()));
            return;
        }
        memory();
        compute_capability();
        attributes();
        for (const ModuleNeed& module : needs_.modules) {
            module_code(module);
        }
    }

    void memory() {
        const std::uint64_t need = std::max(needs_.memory_quota_bytes, needs_.device_bytes());
        if (need > target_.memory_total_bytes) {
            refuse(
                reason::kGpuMemoryTooSmall,
                format("the VM needs %s of GPU memory (%s in use now), %s on %s has %s in all: "
                       "choose a larger GPU or lower the VM's quota.",
                       mib(need).c_str(), mib(needs_.device_bytes()).c_str(),
                       target_.gpu_name.c_str(), host(), mib(target_.memory_total_bytes).c_str()));
        } else if (need > target_.memory_free_bytes) {
            refuse(reason::kGpuMemoryInUse,
                   format("the VM needs %s of GPU memory, %s on %s has %s free of %s: move or stop "
                          "another session there first.",
                          mib(need).c_str(), target_.gpu_name.c_str(), host(),
                          mib(target_.memory_free_bytes).c_str(),
                          mib(target_.memory_total_bytes).c_str()));
        }
    }

    void compute_capability() {
        if (target_.cc < needs_.cc_min) {
            refuse(reason::kGpuCcUnsupported,
                   format("the VM needs compute capability %s or newer, %s on %s has %s: choose a "
                          "newer GPU, or give the VM a lower baseline before it starts.",
                          cc_text(needs_.cc_min).c_str(), target_.gpu_name.c_str(), host(),
                          cc_text(target_.cc).c_str()));
        }
        if (needs_.profile == ProfileKind::kSoftOnly && !target_.takes_any_profile) {
            refuse(reason::kProfileSoftOnly,
                   format("the VM was started with the profile \"%s\", whose facts no real GPU can "
                          "keep, and %s on %s is one: choose a host with a soft GPU, or restart "
                          "the VM with a movable profile.",
                          needs_.profile_name.c_str(), target_.gpu_name.c_str(), host()));
        }
    }

    void attributes() {
        for (const AttributeNeed& need : needs_.attributes) {
            const auto it =
                std::find_if(target_.attributes.begin(), target_.attributes.end(),
                             [&](const auto& entry) { return entry.first == need.attribute; });
            if (it != target_.attributes.end() && it->second < need.value_min) {
                refuse(
                    reason::kGpuAttributeTooLow,
                    format("the VM uses %s (attribute %u) of %" PRId64 ", %s on %s offers %" PRId64
                           ": choose another GPU, or end the process that uses it "
                           "first.",
                           need.name.c_str(), need.attribute, need.value_min,
                           target_.gpu_name.c_str(), host(), it->second));
            }
        }
    }

    void module_code(const ModuleNeed& module) {
        const CodeEntry* usable = nullptr;
        const CodeEntry* too_new = nullptr;
        for (const CodeEntry& code : module.code) {
            if (!can_run(code, target_.cc)) {
                continue;
            }
            if (code.is_ptx && target_.ptx_isa_version_max != 0 &&
                code.ptx_isa_version > target_.ptx_isa_version_max) {
                too_new = &code;
                continue;
            }
            usable = &code;
        }
        const std::string name =
            format("module \"%s\" (%.12s)", module.name.c_str(), module.image_sha256.c_str());
        if (usable == nullptr && too_new != nullptr) {
            refuse(
                reason::kModulePtxTooNew,
                format("%s has only PTX of ISA %u.%u, the driver on %s compiles up to %u.%u: "
                       "install a newer driver there.",
                       name.c_str(), too_new->ptx_isa_version / 10, too_new->ptx_isa_version % 10,
                       host(), target_.ptx_isa_version_max / 10, target_.ptx_isa_version_max % 10));
        } else if (usable == nullptr) {
            refuse(reason::kModuleNoCode,
                   format("%s has no code for compute capability %s of %s on %s (it carries %s): "
                          "build it with PTX, or choose a GPU that it was built for.",
                          name.c_str(), cc_text(target_.cc).c_str(), target_.gpu_name.c_str(),
                          host(), code_list(module).c_str()));
        }
        if (module.has_address_bound_globals && !target_.can_place_globals) {
            refuse(reason::kModuleGlobalsNotMovable,
                   format("%s has global variables, and the driver on %s cannot be made to place "
                          "them at their present addresses: choose a host whose driver can.",
                          name.c_str(), host()));
        }
    }

    static std::string code_list(const ModuleNeed& module) {
        std::string list;
        for (const CodeEntry& code : module.code) {
            const char* scope = code.scope == CodeScope::kArchSpecific ? "a"
                                : code.scope == CodeScope::kFamily     ? "f"
                                                                       : "";
            list += format("%s%s_%u%u%s", list.empty() ? "" : ", ", code.is_ptx ? "compute" : "sm",
                           code.cc.major, code.cc.minor, scope);
        }
        return list.empty() ? "nothing" : list;
    }

    void versions() {
        if (target_.driver_version < needs_.driver_version_min) {
            refuse(reason::kDriverTooOld,
                   format("the application needs a CUDA driver of %s or newer, %s has %s: install "
                          "a newer driver there.",
                          version_text(needs_.driver_version_min).c_str(), host(),
                          version_text(target_.driver_version).c_str()));
        } else if (target_.driver_version < needs_.driver_version) {
            add(Severity::kWarning, reason::kDriverDowngrade,
                format("the CUDA driver on %s is %s, older than the present host's %s: calls that "
                       "only the newer one has will fail.",
                       host(), version_text(target_.driver_version).c_str(),
                       version_text(needs_.driver_version).c_str()));
        }
        const bool is_read = needs_.snapshot_version >= target_.snapshot_version_min &&
                             needs_.snapshot_version <= target_.snapshot_version_max;
        if (!needs_.parts.empty() && !is_read) {  // Without a program there is no state to read.
            refuse(reason::kSnapshotVersion,
                   format("the session's state has format version %u, gantryd on %s reads %u to "
                          "%u: bring both hosts to the same Gantry release.",
                          needs_.snapshot_version, host(), target_.snapshot_version_min,
                          target_.snapshot_version_max));
        }
        for (const PartNeed& part : needs_.parts) {
            if (part.table_hash != 0 && target_.table_hash != 0 &&
                part.table_hash != target_.table_hash) {
                refuse(reason::kVersionTable,
                       format("process %u calls by version %016" PRIx64 " of the CUDA API table, "
                              "the workers of %s serve version %016" PRIx64 ": bring both hosts "
                              "to the same Gantry release.",
                              part.guest_pid, part.table_hash, host(), target_.table_hash));
                break;
            }
        }
    }

    void features() {
        for (const BlockingFeature& feature : needs_.blocking) {
            std::string process;
            for (const PartNeed& part : needs_.parts) {
                if (part.part == feature.part) {
                    process = format(" in process %u", part.guest_pid);
                    process += part.process_name.empty() ? "" : " (" + part.process_name + ")";
                }
            }
            refuse(std::string(reason::kFeaturePrefix) + feature.id +
                       std::string(reason::kFeatureSuffix),
                   format("%s%s cannot move (%s): end its use, or that process, first.",
                          feature.id.c_str(), process.c_str(), feature.detail.c_str()));
        }
    }

    const SessionNeeds& needs_;
    const TargetCapabilities& target_;
    std::vector<Finding> findings_;
};

}  // namespace

std::uint64_t SessionNeeds::resident_bytes() const {
    std::uint64_t sum = 0;
    for (const PartNeed& part : parts) {
        sum += part.resident_bytes;
    }
    return sum;
}

std::uint64_t SessionNeeds::device_bytes() const {
    std::uint64_t sum = resident_bytes();
    for (const PartNeed& part : parts) {
        sum += part.beside_bytes;
    }
    return sum;
}

bool can_run(const CodeEntry& code, ComputeCapability device) {
    if (code.scope == CodeScope::kArchSpecific) {
        return code.cc == device;
    }
    if (code.is_ptx && code.scope == CodeScope::kPortable) {
        return code.cc <= device;
    }
    return code.cc.major == device.major && code.cc.minor <= device.minor;
}

std::vector<Finding> preflight(const SessionNeeds& needs, const TargetCapabilities& target) {
    return Evaluation(needs, target).run();
}

bool refused(const std::vector<Finding>& findings) {
    return std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
        return finding.severity == Severity::kRefusal;
    });
}

std::string refusal_text(const std::vector<Finding>& findings) {
    std::string text;
    for (const Finding& finding : findings) {
        if (finding.severity == Severity::kRefusal) {
            text += (text.empty() ? "" : "; ") + finding.text + " [" + finding.reason + "]";
        }
    }
    return text;
}

}  // namespace gantry::engine
