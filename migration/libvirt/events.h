// What a libvirt host tells about its VMs, as plain structs: nothing of libvirt's headers is needed
// by those who receive them.
//
// These are hints, never the truth about who owns a session (see migration/engine): an event may
// be late, lost (libvirtd restarted) or, at the source, contradict what happens at the target.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace gantry::libvirt {

enum class EventKind : std::uint32_t {
    kConnected = 1,  ///< Connection (again) in place; a kStateRead follows for every domain.
    /// libvirtd is gone or silent; text says why. Events are lost from here on.
    kDisconnected = 2,
    kStateRead = 3,     ///< After a connect: `state` and `job` as libvirt sees them now.
    kStateReadEnd = 4,  ///< All domains of this connect were reported: others are not here.

    kStarted = 10,          ///< Booted here.
    kStartedMigrated = 11,  ///< An incoming QEMU is up; memory has not begun to arrive.
    kRestored = 12,         ///< Started with the memory of a saved file or of a snapshot.

    /// Source: the guest stopped for the switchover (or --timeout-suspend).
    kSuspendedMigrated = 20,
    kSuspendedPostcopy = 21,
    kSuspendedPostcopyFailed = 22,
    kSuspendedPaused = 23,  ///< By an operator, by save, or a paused guest that has just arrived.
    kSuspendedOther = 24,   ///< I/O error, watchdog, snapshot: the guest does not run.

    kResumedMigrated = 30,  ///< Target: runs, memory complete. Source: the migration failed.
    kResumedUnpaused = 31,  ///< By an operator, or by QEMU itself after a failed switchover.
    kResumedPostcopy = 32,  ///< Target: runs, memory incomplete.
    kResumedPostcopyFailed = 33,
    kResumedOther = 34,

    kStoppedMigrated = 40,  ///< Source: moved away.
    kStoppedFailed = 41,    ///< Target: the incoming migration failed. Elsewhere: QEMU died.
    kStopped = 42,          ///< Shut down, destroyed or crashed: no longer here.
    kUndefined = 43,
    kStoppedSaved = 44,  ///< Its memory lies in a file now.

    kMigrationIteration = 50,  ///< iteration
    kJobCompleted = 51,        ///< job: final figures. Source only, success only.
    kMigrationStatus = 52,     ///< QEMU's own MIGRATION event: qemu_status
    kQemuStop = 53,            ///< vCPUs stopped, with QEMU's time stamp.
    kQemuResume = 54,
    kQemuReset = 55,  ///< The machine starts again, by its guest's wish or an operator's.
};

enum class QemuMigrationStatus : std::uint32_t {
    kOther = 0,
    kSetup = 1,
    kActive = 2,
    kPreSwitchover = 3,
    kDevice = 4,
    kPostcopyActive = 5,
    kPostcopyPaused = 6,
    kCompleted = 7,  ///< Not the commit: the source may still be resumed.
    kFailed = 8,
    kCancelling = 9,
    kCancelled = 10,
};

enum class DomainState : std::uint32_t {
    kUnknown = 0,  ///< libvirt could not be asked.
    kAbsent = 1,   ///< Not known to this libvirt, or not running.
    kRunning = 2,
    kPaused = 3,  ///< Paused, also by a migration on its way out.
};

/// Why a domain that is kPaused or kAbsent does not run here.
enum class StopCause : std::uint32_t {
    kUnknown = 0,    ///< Not known to this libvirt (any more), or it does not say.
    kMigration = 1,  ///< Paused by a migration on its way out, or migrated away.
    kOther = 2,      ///< Paused by a user, saved, shut down, crashed, ...
};

enum class JobKind : std::uint32_t {
    kUnknown = 0,
    kNone = 1,
    kMigrationOut = 2,
    kMigrationIn = 3,
    kOther = 4,  ///< Dump, backup.
    kSave = 5,   ///< The guest's memory goes into a file: save, managed save, snapshot.
};

struct JobStats {
    JobKind kind = JobKind::kUnknown;
    std::uint64_t elapsed_ms = 0;
    std::uint64_t downtime_ms = 0;
    std::uint64_t memory_total_bytes = 0;
    std::uint64_t memory_processed_bytes = 0;
    std::uint64_t memory_remaining_bytes = 0;
    std::uint64_t memory_bytes_per_second = 0;
    std::uint64_t iteration = 0;
};

struct DomainEvent {
    EventKind kind{};
    std::string uuid;  ///< Lower case, with dashes; empty for kConnected and kDisconnected.
    std::string name;
    std::chrono::steady_clock::time_point received;
    std::chrono::microseconds qemu_time{};  ///< Since the epoch; only QEMU's own events have it.
    std::uint64_t iteration = 0;
    QemuMigrationStatus qemu_status = QemuMigrationStatus::kOther;
    DomainState state = DomainState::kUnknown;
    std::optional<JobStats> job;
    std::string text;  ///< For the log: what libvirt said, as far as it matters.
};

[[nodiscard]] const char* to_string(EventKind kind);
[[nodiscard]] const char* to_string(QemuMigrationStatus status);
[[nodiscard]] const char* to_string(DomainState state);
[[nodiscard]] const char* to_string(JobKind kind);

/// "pre-switchover" and so on, as QEMU writes it.
[[nodiscard]] QemuMigrationStatus parse_qemu_status(const std::string& text);

}  // namespace gantry::libvirt
