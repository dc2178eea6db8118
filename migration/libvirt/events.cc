#include "migration/libvirt/events.h"

#include <array>
#include <utility>

namespace gantry::libvirt {

namespace {

constexpr std::array<std::pair<const char*, QemuMigrationStatus>, 10> kStatusNames{{
    {"setup", QemuMigrationStatus::kSetup},
    {"active", QemuMigrationStatus::kActive},
    {"pre-switchover", QemuMigrationStatus::kPreSwitchover},
    {"device", QemuMigrationStatus::kDevice},
    {"postcopy-active", QemuMigrationStatus::kPostcopyActive},
    {"postcopy-paused", QemuMigrationStatus::kPostcopyPaused},
    {"completed", QemuMigrationStatus::kCompleted},
    {"failed", QemuMigrationStatus::kFailed},
    {"cancelling", QemuMigrationStatus::kCancelling},
    {"cancelled", QemuMigrationStatus::kCancelled},
}};

}  // namespace

const char* to_string(EventKind kind) {
    switch (kind) {
        case EventKind::kConnected: return "connected";
        case EventKind::kDisconnected: return "disconnected";
        case EventKind::kStateRead: return "state_read";
        case EventKind::kStateReadEnd: return "state_read_end";
        case EventKind::kStarted: return "started";
        case EventKind::kStartedMigrated: return "started_migrated";
        case EventKind::kRestored: return "restored";
        case EventKind::kSuspendedMigrated: return "suspended_migrated";
        case EventKind::kSuspendedPostcopy: return "suspended_postcopy";
        case EventKind::kSuspendedPostcopyFailed: return "suspended_postcopy_failed";
        case EventKind::kSuspendedPaused: return "suspended_paused";
        case EventKind::kSuspendedOther: return "suspended_other";
        case EventKind::kResumedMigrated: return "resumed_migrated";
        case EventKind::kResumedUnpaused: return "resumed_unpaused";
        case EventKind::kResumedPostcopy: return "resumed_postcopy";
        case EventKind::kResumedPostcopyFailed: return "resumed_postcopy_failed";
        case EventKind::kResumedOther: return "resumed_other";
        case EventKind::kStoppedMigrated: return "stopped_migrated";
        case EventKind::kStoppedFailed: return "stopped_failed";
        case EventKind::kStopped: return "stopped";
        case EventKind::kUndefined: return "undefined";
        case EventKind::kStoppedSaved: return "stopped_saved";
        case EventKind::kMigrationIteration: return "migration_iteration";
        case EventKind::kJobCompleted: return "job_completed";
        case EventKind::kMigrationStatus: return "migration_status";
        case EventKind::kQemuStop: return "qemu_stop";
        case EventKind::kQemuResume: return "qemu_resume";
        case EventKind::kQemuReset: return "qemu_reset";
    }
    return "unknown";
}

const char* to_string(QemuMigrationStatus status) {
    for (const auto& [name, value] : kStatusNames) {
        if (value == status) {
            return name;
        }
    }
    return "other";
}

const char* to_string(DomainState state) {
    switch (state) {
        case DomainState::kUnknown: return "unknown";
        case DomainState::kAbsent: return "absent";
        case DomainState::kRunning: return "running";
        case DomainState::kPaused: return "paused";
    }
    return "unknown";
}

const char* to_string(JobKind kind) {
    switch (kind) {
        case JobKind::kUnknown: return "unknown";
        case JobKind::kNone: return "none";
        case JobKind::kMigrationOut: return "migration_out";
        case JobKind::kMigrationIn: return "migration_in";
        case JobKind::kOther: return "other";
        case JobKind::kSave: return "save";
    }
    return "unknown";
}

QemuMigrationStatus parse_qemu_status(const std::string& text) {
    for (const auto& [name, value] : kStatusNames) {
        if (text == name) {
            return value;
        }
    }
    return QemuMigrationStatus::kOther;
}

}  // namespace gantry::libvirt
