#include "migration/libvirt/event_mapping.h"

#include <libvirt/libvirt.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace gantry::libvirt {

namespace {

EventKind suspended_kind(int detail) {
    switch (detail) {
        case VIR_DOMAIN_EVENT_SUSPENDED_MIGRATED: return EventKind::kSuspendedMigrated;
        case VIR_DOMAIN_EVENT_SUSPENDED_POSTCOPY: return EventKind::kSuspendedPostcopy;
        case VIR_DOMAIN_EVENT_SUSPENDED_POSTCOPY_FAILED: return EventKind::kSuspendedPostcopyFailed;
        case VIR_DOMAIN_EVENT_SUSPENDED_PAUSED: return EventKind::kSuspendedPaused;
        default: return EventKind::kSuspendedOther;
    }
}

EventKind resumed_kind(int detail) {
    switch (detail) {
        case VIR_DOMAIN_EVENT_RESUMED_MIGRATED: return EventKind::kResumedMigrated;
        case VIR_DOMAIN_EVENT_RESUMED_UNPAUSED: return EventKind::kResumedUnpaused;
        case VIR_DOMAIN_EVENT_RESUMED_POSTCOPY: return EventKind::kResumedPostcopy;
        case VIR_DOMAIN_EVENT_RESUMED_POSTCOPY_FAILED: return EventKind::kResumedPostcopyFailed;
        default: return EventKind::kResumedOther;
    }
}

EventKind started_kind(int detail) {
    switch (detail) {
        case VIR_DOMAIN_EVENT_STARTED_MIGRATED: return EventKind::kStartedMigrated;
        case VIR_DOMAIN_EVENT_STARTED_RESTORED:
        case VIR_DOMAIN_EVENT_STARTED_FROM_SNAPSHOT: return EventKind::kRestored;
        default: return EventKind::kStarted;
    }
}

EventKind stopped_kind(int detail) {
    switch (detail) {
        case VIR_DOMAIN_EVENT_STOPPED_MIGRATED: return EventKind::kStoppedMigrated;
        case VIR_DOMAIN_EVENT_STOPPED_FAILED: return EventKind::kStoppedFailed;
        case VIR_DOMAIN_EVENT_STOPPED_SAVED: return EventKind::kStoppedSaved;
        default: return EventKind::kStopped;
    }
}

const char* lifecycle_name(int event) {
    switch (event) {
        case VIR_DOMAIN_EVENT_DEFINED: return "DEFINED";
        case VIR_DOMAIN_EVENT_UNDEFINED: return "UNDEFINED";
        case VIR_DOMAIN_EVENT_STARTED: return "STARTED";
        case VIR_DOMAIN_EVENT_SUSPENDED: return "SUSPENDED";
        case VIR_DOMAIN_EVENT_RESUMED: return "RESUMED";
        case VIR_DOMAIN_EVENT_STOPPED: return "STOPPED";
        case VIR_DOMAIN_EVENT_SHUTDOWN: return "SHUTDOWN";
        case VIR_DOMAIN_EVENT_PMSUSPENDED: return "PMSUSPENDED";
        case VIR_DOMAIN_EVENT_CRASHED: return "CRASHED";
        default: return "OTHER";
    }
}

}  // namespace

std::optional<EventKind> lifecycle_kind(int event, int detail) {
    switch (event) {
        case VIR_DOMAIN_EVENT_UNDEFINED: return EventKind::kUndefined;
        case VIR_DOMAIN_EVENT_STARTED: return started_kind(detail);
        case VIR_DOMAIN_EVENT_SUSPENDED: return suspended_kind(detail);
        case VIR_DOMAIN_EVENT_RESUMED: return resumed_kind(detail);
        case VIR_DOMAIN_EVENT_STOPPED: return stopped_kind(detail);
        case VIR_DOMAIN_EVENT_PMSUSPENDED:
        case VIR_DOMAIN_EVENT_CRASHED: return EventKind::kSuspendedOther;
        default: return std::nullopt;
    }
}

std::string lifecycle_text(int event, int detail) {
    return std::string(lifecycle_name(event)) + "/" + std::to_string(detail);
}

bool map_monitor_event(const char* name, const char* details, DomainEvent* event) {
    const std::string_view what = name == nullptr ? "" : name;
    event->text = std::string(what) + (details == nullptr ? "" : std::string(" ") + details);
    if (what == "STOP") {
        event->kind = EventKind::kQemuStop;
        return true;
    }
    if (what == "RESUME") {
        event->kind = EventKind::kQemuResume;
        return true;
    }
    if (what == "RESET") {
        event->kind = EventKind::kQemuReset;
        return true;
    }
    if (what != "MIGRATION" || details == nullptr) {
        return false;
    }
    const auto json = nlohmann::json::parse(details, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("status") || !json["status"].is_string()) {
        return false;
    }
    event->kind = EventKind::kMigrationStatus;
    event->qemu_status = parse_qemu_status(json["status"].get<std::string>());
    return true;
}

}  // namespace gantry::libvirt
