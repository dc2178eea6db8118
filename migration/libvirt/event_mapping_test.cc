#include "migration/libvirt/event_mapping.h"

#include <gtest/gtest.h>
#include <libvirt/libvirt.h>

#include "migration/libvirt/handles.h"

namespace gantry::libvirt {
namespace {

TEST(EventMapping, LifecycleDetailsThatDecideAMigration) {
    const auto kind = [](int event, int detail) { return lifecycle_kind(event, detail); };
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_STARTED, VIR_DOMAIN_EVENT_STARTED_MIGRATED),
              EventKind::kStartedMigrated);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_STARTED, VIR_DOMAIN_EVENT_STARTED_BOOTED), EventKind::kStarted);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_SUSPENDED, VIR_DOMAIN_EVENT_SUSPENDED_MIGRATED),
              EventKind::kSuspendedMigrated);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_SUSPENDED, VIR_DOMAIN_EVENT_SUSPENDED_PAUSED),
              EventKind::kSuspendedPaused);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_SUSPENDED, VIR_DOMAIN_EVENT_SUSPENDED_IOERROR),
              EventKind::kSuspendedOther);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_RESUMED, VIR_DOMAIN_EVENT_RESUMED_MIGRATED),
              EventKind::kResumedMigrated);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_RESUMED, VIR_DOMAIN_EVENT_RESUMED_UNPAUSED),
              EventKind::kResumedUnpaused);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_RESUMED, VIR_DOMAIN_EVENT_RESUMED_POSTCOPY),
              EventKind::kResumedPostcopy);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_STOPPED, VIR_DOMAIN_EVENT_STOPPED_MIGRATED),
              EventKind::kStoppedMigrated);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_STOPPED, VIR_DOMAIN_EVENT_STOPPED_FAILED),
              EventKind::kStoppedFailed);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_STOPPED, VIR_DOMAIN_EVENT_STOPPED_SAVED),
              EventKind::kStoppedSaved);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_STARTED, VIR_DOMAIN_EVENT_STARTED_RESTORED),
              EventKind::kRestored);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_STARTED, VIR_DOMAIN_EVENT_STARTED_FROM_SNAPSHOT),
              EventKind::kRestored);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_STOPPED, VIR_DOMAIN_EVENT_STOPPED_DESTROYED),
              EventKind::kStopped);
    EXPECT_EQ(kind(VIR_DOMAIN_EVENT_DEFINED, 0), std::nullopt);
    EXPECT_EQ(kind(9999, 0), std::nullopt);
}

TEST(EventMapping, AMigrationStopsAGuestUnlikeAnOperator) {
    EXPECT_EQ(stop_cause(VIR_DOMAIN_PAUSED, VIR_DOMAIN_PAUSED_MIGRATION), StopCause::kMigration);
    EXPECT_EQ(stop_cause(VIR_DOMAIN_PAUSED, VIR_DOMAIN_PAUSED_POSTCOPY), StopCause::kMigration);
    EXPECT_EQ(stop_cause(VIR_DOMAIN_PAUSED, VIR_DOMAIN_PAUSED_POSTCOPY_FAILED),
              StopCause::kMigration);
    EXPECT_EQ(stop_cause(VIR_DOMAIN_SHUTOFF, VIR_DOMAIN_SHUTOFF_MIGRATED), StopCause::kMigration);
    EXPECT_EQ(stop_cause(VIR_DOMAIN_PAUSED, VIR_DOMAIN_PAUSED_UNKNOWN), StopCause::kUnknown);
    EXPECT_EQ(stop_cause(VIR_DOMAIN_SHUTOFF, VIR_DOMAIN_SHUTOFF_UNKNOWN), StopCause::kUnknown);
    for (const int reason : {VIR_DOMAIN_PAUSED_USER, VIR_DOMAIN_PAUSED_SAVE, VIR_DOMAIN_PAUSED_DUMP,
                             VIR_DOMAIN_PAUSED_IOERROR, VIR_DOMAIN_PAUSED_SNAPSHOT}) {
        EXPECT_EQ(stop_cause(VIR_DOMAIN_PAUSED, reason), StopCause::kOther) << reason;
    }
    for (const int reason : {VIR_DOMAIN_SHUTOFF_SHUTDOWN, VIR_DOMAIN_SHUTOFF_DESTROYED,
                             VIR_DOMAIN_SHUTOFF_CRASHED, VIR_DOMAIN_SHUTOFF_SAVED}) {
        EXPECT_EQ(stop_cause(VIR_DOMAIN_SHUTOFF, reason), StopCause::kOther) << reason;
    }
    EXPECT_EQ(stop_cause(VIR_DOMAIN_RUNNING, VIR_DOMAIN_RUNNING_BOOTED), StopCause::kOther);
}

TEST(EventMapping, MonitorEvents) {
    DomainEvent event;
    EXPECT_TRUE(map_monitor_event("MIGRATION", R"({"status":"pre-switchover"})", &event));
    EXPECT_EQ(event.kind, EventKind::kMigrationStatus);
    EXPECT_EQ(event.qemu_status, QemuMigrationStatus::kPreSwitchover);
    EXPECT_TRUE(map_monitor_event("MIGRATION", R"({"status":"something-new"})", &event));
    EXPECT_EQ(event.qemu_status, QemuMigrationStatus::kOther);
    EXPECT_TRUE(map_monitor_event("STOP", nullptr, &event));
    EXPECT_EQ(event.kind, EventKind::kQemuStop);
    EXPECT_TRUE(map_monitor_event("RESUME", "{}", &event));
    EXPECT_EQ(event.kind, EventKind::kQemuResume);
    EXPECT_TRUE(map_monitor_event("RESET", R"({"guest":true,"reason":"guest-reset"})", &event));
    EXPECT_EQ(event.kind, EventKind::kQemuReset);
}

TEST(EventMapping, MonitorEventsThatSayNothing) {
    DomainEvent event;
    for (const char* details : {"", "{", "[]", "null", R"({"status":5})", R"({"a":"b"})"}) {
        EXPECT_FALSE(map_monitor_event("MIGRATION", details, &event)) << details;
    }
    EXPECT_FALSE(map_monitor_event("MIGRATION", nullptr, &event));
    EXPECT_FALSE(map_monitor_event("MIGRATION_PASS", R"({"pass":1})", &event));
    EXPECT_FALSE(map_monitor_event(nullptr, nullptr, &event));
}

TEST(EventMapping, StatusNamesRoundTrip) {
    for (const auto status :
         {QemuMigrationStatus::kSetup, QemuMigrationStatus::kDevice,
          QemuMigrationStatus::kPostcopyActive, QemuMigrationStatus::kCancelled}) {
        EXPECT_EQ(parse_qemu_status(to_string(status)), status);
    }
}

}  // namespace
}  // namespace gantry::libvirt
