#include "migration/libvirt/handles.h"

#include <pthread.h>
#include <signal.h>

#include <mutex>
#include <thread>

#include "migration/libvirt/errors.h"
#include "proto/base/unless_exhausted.h"

namespace gantry::libvirt {

std::string domain_uuid(virDomain* domain) {
    char text[VIR_UUID_STRING_BUFLEN] = {};
    return virDomainGetUUIDString(domain, text) == 0 ? text : "";
}

std::string domain_name(virDomain* domain) {
    const char* name = virDomainGetName(domain);
    return name == nullptr ? "" : name;
}

StopCause stop_cause(int state, int reason) {
    const bool is_migration =
        (state == VIR_DOMAIN_PAUSED &&
         (reason == VIR_DOMAIN_PAUSED_MIGRATION || reason == VIR_DOMAIN_PAUSED_POSTCOPY ||
          reason == VIR_DOMAIN_PAUSED_POSTCOPY_FAILED)) ||
        (state == VIR_DOMAIN_SHUTOFF && reason == VIR_DOMAIN_SHUTOFF_MIGRATED);
    const bool is_unsaid = (state == VIR_DOMAIN_PAUSED && reason == VIR_DOMAIN_PAUSED_UNKNOWN) ||
                           (state == VIR_DOMAIN_SHUTOFF && reason == VIR_DOMAIN_SHUTOFF_UNKNOWN);
    return is_migration ? StopCause::kMigration
           : is_unsaid  ? StopCause::kUnknown
                        : StopCause::kOther;
}

Result<DomainState> domain_state(virDomain* domain, StopCause* cause) {
    int state = 0;
    int reason = 0;
    if (virDomainGetState(domain, &state, &reason, 0) < 0) {
        Error error = last_error("cannot read the state of the domain");
        if (error.code == Code::kNotFound) {
            return DomainState::kAbsent;
        }
        return error;
    }
    if (cause != nullptr) {
        *cause = stop_cause(state, reason);
    }
    switch (state) {
        case VIR_DOMAIN_RUNNING:
        case VIR_DOMAIN_BLOCKED: return DomainState::kRunning;
        case VIR_DOMAIN_PAUSED:
        case VIR_DOMAIN_PMSUSPENDED: return DomainState::kPaused;
        case VIR_DOMAIN_SHUTDOWN:  // On its way down, vCPUs may still run.
            return DomainState::kRunning;
        default: return DomainState::kAbsent;
    }
}

namespace {

JobKind job_kind(int type, int operation) {
    if (type == VIR_DOMAIN_JOB_NONE) {
        return JobKind::kNone;
    }
    switch (operation) {
        case VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT: return JobKind::kMigrationOut;
        case VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN: return JobKind::kMigrationIn;
        case VIR_DOMAIN_JOB_OPERATION_SAVE:
        case VIR_DOMAIN_JOB_OPERATION_SNAPSHOT: return JobKind::kSave;
        case VIR_DOMAIN_JOB_OPERATION_UNKNOWN: return JobKind::kUnknown;
        default: return JobKind::kOther;
    }
}

}  // namespace

JobStats job_stats(int type, const virTypedParameter* parameters, int count) {
    // libvirt takes the list as non-const though it only reads.
    auto* list = const_cast<virTypedParameter*>(parameters);
    const auto number = [&](const char* name) {
        unsigned long long value = 0;
        virTypedParamsGetULLong(list, count, name, &value);
        return static_cast<std::uint64_t>(value);
    };
    int operation = VIR_DOMAIN_JOB_OPERATION_UNKNOWN;
    virTypedParamsGetInt(list, count, VIR_DOMAIN_JOB_OPERATION, &operation);
    JobStats stats;
    stats.kind = job_kind(type, operation);
    stats.elapsed_ms = number(VIR_DOMAIN_JOB_TIME_ELAPSED);
    stats.downtime_ms = number(VIR_DOMAIN_JOB_DOWNTIME);
    stats.memory_total_bytes = number(VIR_DOMAIN_JOB_MEMORY_TOTAL);
    stats.memory_processed_bytes = number(VIR_DOMAIN_JOB_MEMORY_PROCESSED);
    stats.memory_remaining_bytes = number(VIR_DOMAIN_JOB_MEMORY_REMAINING);
    stats.memory_bytes_per_second = number(VIR_DOMAIN_JOB_MEMORY_BPS);
    stats.iteration = number(VIR_DOMAIN_JOB_MEMORY_ITERATION);
    return stats;
}

Result<JobStats> job_stats(virDomain* domain) {
    int type = VIR_DOMAIN_JOB_NONE;
    virTypedParameterPtr parameters = nullptr;
    int count = 0;
    if (virDomainGetJobStats(domain, &type, &parameters, &count, 0) < 0) {
        Error error = last_error("cannot read the job of the domain");
        // A domain that is not running (any more) has no job.
        if (error.code == Code::kFailedPrecondition || error.code == Code::kNotFound) {
            JobStats none;
            none.kind = JobKind::kNone;
            return none;
        }
        return error;
    }
    const JobStats stats = job_stats(type, parameters, count);
    virTypedParamsFree(parameters, count);
    return stats;
}

Result<void> start_event_loop() {
    static std::once_flag once;
    static bool registered = false;
    GANTRY_TRY(unless_exhausted([] {
        std::call_once(once, [] {
            silence_libvirt();
            registered = virInitialize() == 0 && virEventRegisterDefaultImpl() == 0;
            if (!registered) {
                return;
            }
            std::thread([] {
                pthread_setname_np(pthread_self(), "libvirt-loop");
                sigset_t all;
                sigfillset(&all);
                pthread_sigmask(SIG_BLOCK, &all, nullptr);
                for (;;) {
                    virEventRunDefaultImpl();
                }
            }).detach();
        });
    }));
    if (!registered) {
        return Error{Code::kInternal, "libvirt.event_loop", "libvirt's event loop cannot start"};
    }
    return {};
}

}  // namespace gantry::libvirt
