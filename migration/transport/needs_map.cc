// The preflight data of message_map.h.
#include "migration/transport/message_map.h"

namespace gantry::transport {
namespace {

engine::CodeScope scope_of(std::uint32_t value) {
    switch (value) {
        case 2: return engine::CodeScope::kFamily;
        case 3: return engine::CodeScope::kArchSpecific;
        default: return engine::CodeScope::kPortable;
    }
}

void put_module(const engine::ModuleNeed& module, control::NeededModule* out) {
    out->set_part_id(module.part.value);
    out->set_image_sha256(module.image_sha256);
    out->set_name(module.name);
    out->set_has_address_bound_globals(module.has_address_bound_globals);
    for (const engine::CodeEntry& entry : module.code) {
        control::NeededCode& code = *out->add_code();
        code.set_major(entry.cc.major);
        code.set_minor(entry.cc.minor);
        code.set_scope(static_cast<std::uint32_t>(entry.scope));
        code.set_is_ptx(entry.is_ptx);
        code.set_ptx_isa_version(entry.ptx_isa_version);
    }
}

engine::ModuleNeed get_module(const control::NeededModule& module) {
    engine::ModuleNeed out;
    out.part.value = module.part_id();
    out.image_sha256 = module.image_sha256();
    out.name = module.name();
    out.has_address_bound_globals = module.has_address_bound_globals();
    for (const control::NeededCode& code : module.code()) {
        out.code.push_back({{code.major(), code.minor()},
                            scope_of(code.scope()),
                            code.is_ptx(),
                            code.ptx_isa_version()});
    }
    return out;
}

}  // namespace

control::SessionNeeds to_proto(const engine::SessionNeeds& needs) {
    control::SessionNeeds out;
    out.set_session_id(needs.session_id);
    for (const engine::PartNeed& part : needs.parts) {
        control::PartNeed& to = *out.add_parts();
        to.set_part_id(part.part.value);
        to.set_process_name(part.process_name);
        to.set_guest_pid(part.guest_pid);
        to.set_resident_bytes(part.resident_bytes);
        to.set_pinned_bytes(part.pinned_bytes);
        to.set_mirror_region_bytes(part.mirror_region_bytes);
        to.set_table_hash(part.table_hash);
        to.set_beside_bytes(part.beside_bytes);
    }
    out.set_memory_quota_bytes(needs.memory_quota_bytes);
    out.set_cc_seen_major(needs.cc_seen.major);
    out.set_cc_seen_minor(needs.cc_seen.minor);
    out.set_cc_min_major(needs.cc_min.major);
    out.set_cc_min_minor(needs.cc_min.minor);
    out.set_soft_only(needs.profile == engine::ProfileKind::kSoftOnly);
    out.set_profile_name(needs.profile_name);
    for (const engine::ModuleNeed& module : needs.modules) {
        put_module(module, out.add_modules());
    }
    for (const engine::AttributeNeed& attribute : needs.attributes) {
        control::NeededAttribute& to = *out.add_attributes();
        to.set_attribute(attribute.attribute);
        to.set_name(attribute.name);
        to.set_value_min(attribute.value_min);
    }
    for (const engine::BlockingFeature& feature : needs.blocking) {
        control::NeededFeature& to = *out.add_blocking();
        to.set_part_id(feature.part.value);
        to.set_id(feature.id);
        to.set_detail(feature.detail);
    }
    out.set_driver_version(needs.driver_version);
    out.set_driver_version_min(needs.driver_version_min);
    out.set_snapshot_version(needs.snapshot_version);
    return out;
}

engine::SessionNeeds from_proto(const control::SessionNeeds& needs) {
    engine::SessionNeeds out;
    out.session_id = needs.session_id();
    for (const control::PartNeed& part : needs.parts()) {
        out.parts.push_back({{part.part_id()},
                             part.process_name(),
                             part.guest_pid(),
                             part.resident_bytes(),
                             part.pinned_bytes(),
                             part.mirror_region_bytes(),
                             part.table_hash(),
                             part.beside_bytes()});
    }
    out.memory_quota_bytes = needs.memory_quota_bytes();
    out.cc_seen = {needs.cc_seen_major(), needs.cc_seen_minor()};
    out.cc_min = {needs.cc_min_major(), needs.cc_min_minor()};
    out.profile =
        needs.soft_only() ? engine::ProfileKind::kSoftOnly : engine::ProfileKind::kMovable;
    out.profile_name = needs.profile_name();
    for (const control::NeededModule& module : needs.modules()) {
        out.modules.push_back(get_module(module));
    }
    for (const control::NeededAttribute& attribute : needs.attributes()) {
        out.attributes.push_back({attribute.attribute(), attribute.name(), attribute.value_min()});
    }
    for (const control::NeededFeature& feature : needs.blocking()) {
        out.blocking.push_back({{feature.part_id()}, feature.id(), feature.detail()});
    }
    out.driver_version = needs.driver_version();
    out.driver_version_min = needs.driver_version_min();
    out.snapshot_version = needs.snapshot_version();
    return out;
}

control::TargetCapabilities to_proto(const engine::TargetCapabilities& from) {
    control::TargetCapabilities out;
    out.set_host(from.host);
    out.set_gpu_name(from.gpu_name);
    out.set_gpu_uuid(from.gpu_uuid);
    out.set_cc_major(from.cc.major);
    out.set_cc_minor(from.cc.minor);
    out.set_memory_total_bytes(from.memory_total_bytes);
    out.set_memory_free_bytes(from.memory_free_bytes);
    out.set_takes_any_profile(from.takes_any_profile);
    out.set_can_place_globals(from.can_place_globals);
    out.set_driver_version(from.driver_version);
    out.set_ptx_isa_version_max(from.ptx_isa_version_max);
    out.set_snapshot_version_min(from.snapshot_version_min);
    out.set_snapshot_version_max(from.snapshot_version_max);
    out.set_table_hash(from.table_hash);
    for (const auto& [number, value] : from.attributes) {
        (*out.mutable_attributes())[number] = value;
    }
    out.set_link_bytes_per_second(from.link_bytes_per_second);
    return out;
}

engine::TargetCapabilities from_proto(const control::TargetCapabilities& from) {
    engine::TargetCapabilities out;
    out.host = from.host();
    out.gpu_name = from.gpu_name();
    out.gpu_uuid = from.gpu_uuid();
    out.cc = {from.cc_major(), from.cc_minor()};
    out.memory_total_bytes = from.memory_total_bytes();
    out.memory_free_bytes = from.memory_free_bytes();
    out.takes_any_profile = from.takes_any_profile();
    out.can_place_globals = from.can_place_globals();
    out.driver_version = from.driver_version();
    out.ptx_isa_version_max = from.ptx_isa_version_max();
    out.snapshot_version_min = from.snapshot_version_min();
    out.snapshot_version_max = from.snapshot_version_max();
    out.table_hash = from.table_hash();
    for (const auto& [number, value] : from.attributes()) {
        out.attributes.emplace_back(number, value);
    }
    out.link_bytes_per_second = from.link_bytes_per_second();
    return out;
}

control::Finding to_proto(const engine::Finding& finding) {
    control::Finding out;
    out.set_refusal(finding.severity == engine::Severity::kRefusal);
    out.set_reason(finding.reason);
    out.set_text(finding.text);
    return out;
}

engine::Finding from_proto(const control::Finding& finding) {
    return {finding.refusal() ? engine::Severity::kRefusal : engine::Severity::kWarning,
            finding.reason(), finding.text()};
}

}  // namespace gantry::transport
