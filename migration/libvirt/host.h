// Host: questions to and requests of the local libvirt, one call at a time.
//
// Thread-safe: several threads may call at once. Every call may block: libvirt answers nothing
// about a VM while it holds that VM's lock (on a target from `prepare` until its QEMU is up), and a
// dead libvirtd is noticed by keepalive after about 25 s. Never call from a Listener's callback,
// from a hook, or from the thread that drives the engine.
// Failure: a Result error with reason "libvirt.*"; the connection is opened again at the next call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "migration/libvirt/domain_info.h"
#include "migration/libvirt/events.h"
#include "proto/base/result.h"

namespace gantry::libvirt {

inline constexpr char kDefaultUri[] = "qemu:///system";

struct DomainReport {
    DomainState state = DomainState::kUnknown;
    StopCause cause = StopCause::kUnknown;
    JobStats job;
};

struct ListedDomain {
    std::string name;
    Result<DomainInfo> info;  ///< Of its inactive XML, what it is started from.
};

class Host {
public:
    explicit Host(std::string uri = kDefaultUri);
    ~Host();
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;

    /// libvirt's and its hypervisor's: "libvirt 9.0.0, QEMU 7.2.0".
    [[nodiscard]] Result<std::string> versions();
    /// All that are defined or run here.
    [[nodiscard]] Result<std::vector<ListedDomain>> read_domains();
    /// The live XML, parsed. NotFound ("libvirt.no_domain") when there is no such domain.
    [[nodiscard]] Result<DomainInfo> read_domain(const std::string& uuid);
    /// State and current job. A domain that is not here is kAbsent with no job, not an error.
    [[nodiscard]] Result<DomainReport> report(const std::string& uuid);
    /// Its guest is paused, and libvirt writes its memory into a file: a save or a snapshot.
    [[nodiscard]] Result<bool> is_being_saved(const std::string& uuid);
    /// Stamps the owner into the live XML. libvirt holds it up for 30 s, and refuses it then, while
    /// a migration of the VM runs; so it is done when a session opens, when a VM has arrived, and
    /// when a migration has failed.
    [[nodiscard]] Result<void> write_owner(const std::string& uuid, const Owner& owner);
    /// As `virsh domjobabort`: ends an outgoing migration before its switchover.
    [[nodiscard]] Result<void> abort_job(const std::string& uuid);
    /// As `virsh destroy`: the last resort against a guest that runs on two hosts.
    [[nodiscard]] Result<void> destroy(const std::string& uuid);

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace gantry::libvirt
