// Owners for libvirt's reference-counted handles. Internal to this folder.
#pragma once

#include <libvirt/libvirt.h>

#include <memory>
#include <string>

#include "migration/libvirt/events.h"
#include "proto/base/result.h"

namespace gantry::libvirt {

struct FreeDomain {
    void operator()(virDomain* domain) const noexcept { virDomainFree(domain); }
};
struct CloseConnection {
    void operator()(virConnect* connection) const noexcept { virConnectClose(connection); }
};
using DomainHandle = std::unique_ptr<virDomain, FreeDomain>;
using ConnectionHandle = std::unique_ptr<virConnect, CloseConnection>;

/// "" when libvirt cannot tell, which it always can for a live handle.
[[nodiscard]] std::string domain_uuid(virDomain* domain);
[[nodiscard]] std::string domain_name(virDomain* domain);

/// Asks libvirt; a domain that is not running is kAbsent.
[[nodiscard]] Result<DomainState> domain_state(virDomain* domain, StopCause* cause = nullptr);
/// From virDomainGetState's two numbers.
[[nodiscard]] StopCause stop_cause(int state, int reason);
[[nodiscard]] Result<JobStats> job_stats(virDomain* domain);
/// From the parameters of virDomainGetJobStats and of the job-completed event.
[[nodiscard]] JobStats job_stats(int type, const virTypedParameter* parameters, int count);

/// Starts libvirt's default event loop in a thread of its own, once for the process and for ever:
/// libvirt allows one loop, and both keepalive and events need it.
[[nodiscard]] Result<void> start_event_loop();

}  // namespace gantry::libvirt
