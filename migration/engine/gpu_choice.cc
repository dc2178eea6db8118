#include "migration/engine/gpu_choice.h"

#include <algorithm>

namespace gantry::engine {

GpuChoice choose_gpu(const SessionNeeds& needs, const std::vector<HostGpu>& gpus) {
    if (gpus.empty()) {
        return {0, preflight(needs, {})};
    }
    GpuChoice refused_by_all;
    for (std::size_t i = 0; i < gpus.size(); ++i) {
        std::vector<Finding> findings = preflight(needs, gpus[i].capabilities);
        if (!refused(findings) || gpus.size() == 1) {
            return {i, std::move(findings)};
        }
        for (Finding& finding : findings) {
            if (gpus[i].number) {
                finding.text = "GPU " + std::to_string(*gpus[i].number) + ": " + finding.text;
            }
            const bool is_known =
                std::any_of(refused_by_all.findings.begin(), refused_by_all.findings.end(),
                            [&](const Finding& one) {
                                return one.reason == finding.reason && one.text == finding.text;
                            });
            if (!is_known) {
                refused_by_all.findings.push_back(std::move(finding));
            }
        }
    }
    std::stable_partition(refused_by_all.findings.begin(), refused_by_all.findings.end(),
                          [](const Finding& one) { return one.severity == Severity::kRefusal; });
    return refused_by_all;
}

}  // namespace gantry::engine
