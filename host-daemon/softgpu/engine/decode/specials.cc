#include "host-daemon/softgpu/engine/decode/specials.h"

#include <unordered_map>

namespace gantry::softgpu {
namespace {

constexpr SpecialName kNames[] = {
    {"%tid.x", Special::kTidX},
    {"%tid.y", Special::kTidY},
    {"%tid.z", Special::kTidZ},
    {"%ntid.x", Special::kNtidX},
    {"%ntid.y", Special::kNtidY},
    {"%ntid.z", Special::kNtidZ},
    {"%ctaid.x", Special::kCtaidX},
    {"%ctaid.y", Special::kCtaidY},
    {"%ctaid.z", Special::kCtaidZ},
    {"%nctaid.x", Special::kNctaidX},
    {"%nctaid.y", Special::kNctaidY},
    {"%nctaid.z", Special::kNctaidZ},
    {"%laneid", Special::kLaneid},
    {"%warpid", Special::kWarpid},
    {"%nwarpid", Special::kNwarpid},
    {"%smid", Special::kSmid},
    {"%nsmid", Special::kNsmid},
    {"%gridid", Special::kGridid},
    {"%lanemask_eq", Special::kLanemaskEq},
    {"%lanemask_le", Special::kLanemaskLe},
    {"%lanemask_lt", Special::kLanemaskLt},
    {"%lanemask_ge", Special::kLanemaskGe},
    {"%lanemask_gt", Special::kLanemaskGt},
    {"%dynamic_smem_size", Special::kDynamicSharedSize},
    {"%total_smem_size", Special::kTotalSharedSize},
    {"%aggr_smem_size", Special::kAggregateSharedSize},
    {"%envreg1", Special::kEnvreg1},
    {"%envreg2", Special::kEnvreg2},
    {"%clusterid.x", Special::kClusteridX},
    {"%clusterid.y", Special::kClusteridY},
    {"%clusterid.z", Special::kClusteridZ},
    {"%nclusterid.x", Special::kNclusteridX},
    {"%nclusterid.y", Special::kNclusteridY},
    {"%nclusterid.z", Special::kNclusteridZ},
    {"%cluster_ctaid.x", Special::kClusterCtaidX},
    {"%cluster_ctaid.y", Special::kClusterCtaidY},
    {"%cluster_ctaid.z", Special::kClusterCtaidZ},
    {"%cluster_nctaid.x", Special::kClusterNctaidX},
    {"%cluster_nctaid.y", Special::kClusterNctaidY},
    {"%cluster_nctaid.z", Special::kClusterNctaidZ},
    {"%cluster_ctarank", Special::kClusterCtarank},
    {"%cluster_nctarank", Special::kClusterNctarank},
    {"%is_explicit_cluster", Special::kIsExplicitCluster},
    {"%reserved_smem_offset_begin", Special::kReservedSharedBegin},
    {"%reserved_smem_offset_end", Special::kReservedSharedEnd},
    {"%reserved_smem_offset_cap", Special::kReservedSharedCap},
    {"%reserved_smem_offset_0", Special::kReservedSharedBegin},
    {"%reserved_smem_offset_1", Special::kReservedSharedSlot1},
    {"%clock", Special::kTidX, 0},
    {"%clock64", Special::kTidX, 1},
    {"%globaltimer", Special::kTidX, 2},
    {"%globaltimer_lo", Special::kTidX, 3},
    {"%globaltimer_hi", Special::kTidX, 4},
    {"%clock_hi", Special::kTidX, 5},
};

}  // namespace

const SpecialName* find_special(std::string_view name) {
    static const auto* const table = [] {
        auto* made = new std::unordered_map<std::string_view, const SpecialName*>;
        for (const SpecialName& entry : kNames) {
            made->emplace(entry.name, &entry);
        }
        return made;
    }();
    const auto found = table->find(name);
    if (found != table->end()) {
        return found->second;
    }
    if (name.substr(0, 7) == "%envreg") {
        static constexpr SpecialName kOther{"%envreg", Special::kEnvregOther};
        return &kOther;
    }
    return nullptr;
}

}  // namespace gantry::softgpu
