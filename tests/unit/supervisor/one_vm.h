// A hypervisor of one VM, which runs here until a test says otherwise; for tests of Registry.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "host-daemon/supervisor/registry/hypervisor.h"

namespace gantry::supervisor {

/// Any thread; what it answers it answers at once, in the caller's.
class OneVm final : public Hypervisor {
public:
    void listen(EventHandler handler) override { handler_ = std::move(handler); }
    void stop() override {}
    void query(const std::string&, std::function<void(engine::DomainReport)> answer) override {
        answer(report());
    }
    void read_domain(const std::string& uuid,
                     std::function<void(Result<libvirt::DomainInfo>)> answer) override {
        if (domain_.uuid == uuid) {
            answer(domain_);
        } else {
            answer(Error{Code::kNotFound, "libvirt.none", "no domain " + uuid});
        }
    }
    void abort_job(const std::string&) override {}
    void destroy(const std::string&) override {}
    void write_owner(const std::string&, const libvirt::Owner& owner,
                     std::function<void(Result<void>)> done) override {
        done({});
        const std::lock_guard lock(mutex_);
        ticket_ = owner.ticket;
    }

    /// Before any event of it.
    void has_xml(libvirt::DomainInfo domain) { domain_ = std::move(domain); }
    void is_now(engine::DomainState state, engine::JobState job,
                engine::StopCause cause = engine::StopCause::kUnknown) {
        const std::lock_guard lock(mutex_);
        report_ = {state, job, cause};
    }
    void tell(const std::string& uuid, libvirt::EventKind kind) {
        libvirt::DomainEvent event;
        event.uuid = uuid;
        event.kind = kind;
        handler_(event);
    }
    /// As libvirt's migration would carry it now; none before the session knows that it stands: no
    /// migration is as quick as a test.
    Ticket ticket() {
        const std::lock_guard lock(mutex_);
        return ticket_;
    }

private:
    engine::DomainReport report() {
        const std::lock_guard lock(mutex_);
        return report_;
    }

    EventHandler handler_;
    libvirt::DomainInfo domain_;
    std::mutex mutex_;
    engine::DomainReport report_{engine::DomainState::kRunning, engine::JobState::kNone};
    Ticket ticket_;
};

}  // namespace gantry::supervisor
