// What gantryd asks of, and hears from, the hypervisor of this host; an interface so that tests can
// inject hints and hosts without libvirt can do without.
//
// Hints are never the truth (migration/engine decides). Requests are answered on a thread of the
// implementation; they may take long. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "migration/engine/machine.h"
#include "migration/libvirt/domain_info.h"
#include "migration/libvirt/events.h"

namespace gantry::supervisor {

class Hypervisor {
public:
    using EventHandler = std::function<void(const libvirt::DomainEvent&)>;
    virtual ~Hypervisor() = default;

    /// Begins to deliver events; one call of the handler at a time.
    virtual void listen(EventHandler handler) = 0;
    /// No handler runs after it has returned.
    virtual void stop() = 0;
    virtual void query(const std::string& uuid,
                       std::function<void(engine::DomainReport)> answer) = 0;
    virtual void read_domain(const std::string& uuid,
                             std::function<void(Result<libvirt::DomainInfo>)> answer) = 0;
    /// True: the VM is paused, and libvirt is writing its memory into a file.
    virtual void is_being_saved(const std::string& uuid, std::function<void(bool)> answer) {
        (void)uuid;
        answer(false);
    }
    virtual void abort_job(const std::string& uuid) = 0;
    virtual void destroy(const std::string& uuid) = 0;
    /// May take as long as libvirt migrates the VM; other requests do not wait behind it.
    virtual void write_owner(const std::string& uuid, const libvirt::Owner& owner,
                             std::function<void(Result<void>)> done) = 0;
};

/// The libvirt at `uri`; connects (again and again) in the background.
std::unique_ptr<Hypervisor> make_libvirt_hypervisor(const std::string& uri);
/// No hypervisor: knows no domain, delivers nothing.
std::unique_ptr<Hypervisor> make_no_hypervisor();

}  // namespace gantry::supervisor
