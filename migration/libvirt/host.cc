#include "migration/libvirt/host.h"

#include <cstdlib>

#include "migration/libvirt/errors.h"
#include "migration/libvirt/handles.h"
#include "proto/base/mutex.h"

namespace gantry::libvirt {

namespace {

constexpr int kKeepaliveIntervalS = 5;
constexpr unsigned kKeepaliveCount = 4;

std::string version_text(unsigned long version) {
    return std::to_string(version / 1'000'000) + "." + std::to_string(version / 1000 % 1000) + "." +
           std::to_string(version % 1000);
}

using XmlText = std::unique_ptr<char, decltype(&std::free)>;

/// Frees the domains that nobody has taken, and the list.
struct DomainList {
    virDomain** items = nullptr;
    ~DomainList() {
        for (virDomain** item = items; item != nullptr && *item != nullptr; ++item) {
            virDomainFree(*item);
        }
        std::free(items);
    }
};

}  // namespace

class Host::Impl {
public:
    explicit Impl(std::string uri) : uri_(std::move(uri)) {}

    /// The connection, opened (again) when there is none that lives. Each user holds a reference,
    /// so a reopening by another thread pulls nothing away.
    Result<ConnectionHandle> connection() {
        const MutexLock lock(mutex_);
        if (connection_ && virConnectIsAlive(connection_.get()) != 1) {
            connection_.reset();
        }
        if (!connection_) {
            GANTRY_TRY(start_event_loop());
            connection_.reset(virConnectOpen(uri_.c_str()));
            if (!connection_) {
                return last_error("cannot connect to libvirt at " + uri_);
            }
            // Not supported by libvirt's test driver, which needs none.
            virConnectSetKeepAlive(connection_.get(), kKeepaliveIntervalS, kKeepaliveCount);
        }
        virConnectRef(connection_.get());
        return ConnectionHandle(connection_.get());
    }

    Result<DomainHandle> domain(const std::string& uuid) {
        GANTRY_ASSIGN(const ConnectionHandle held, connection());
        DomainHandle domain(virDomainLookupByUUIDString(held.get(), uuid.c_str()));
        if (!domain) {
            return last_error("cannot find domain " + uuid);
        }
        return domain;
    }

private:
    const std::string uri_;
    Mutex mutex_;
    ConnectionHandle connection_ GANTRY_GUARDED_BY(mutex_);
};

Host::Host(std::string uri) : impl_(std::make_unique<Impl>(std::move(uri))) { silence_libvirt(); }
Host::~Host() = default;

Result<std::string> Host::versions() {
    GANTRY_ASSIGN(const ConnectionHandle connection, impl_->connection());
    unsigned long libvirt = 0;
    unsigned long hypervisor = 0;
    if (virConnectGetLibVersion(connection.get(), &libvirt) < 0) {
        return last_error("cannot ask libvirt's version");
    }
    std::string text = "libvirt " + version_text(libvirt);
    // A libvirt that has no QEMU to ask says so when a VM is started.
    if (virConnectGetVersion(connection.get(), &hypervisor) == 0) {
        const char* type = virConnectGetType(connection.get());
        text += std::string(", ") + (type != nullptr ? type : "hypervisor") + " " +
                version_text(hypervisor);
    }
    return text;
}

Result<std::vector<ListedDomain>> Host::read_domains() {
    GANTRY_ASSIGN(const ConnectionHandle connection, impl_->connection());
    DomainList list;
    const int count = virConnectListAllDomains(connection.get(), &list.items, 0);
    if (count < 0) {
        return last_error("cannot list libvirt's domains");
    }
    std::vector<ListedDomain> out;
    for (int i = 0; i < count; ++i) {
        virDomain* domain = list.items[i];
        const XmlText text(virDomainGetXMLDesc(domain, VIR_DOMAIN_XML_INACTIVE), &std::free);
        out.push_back({domain_name(domain),
                       text ? parse_domain_xml(text.get()) : last_error("cannot read its XML")});
    }
    return out;
}

Result<DomainInfo> Host::read_domain(const std::string& uuid) {
    GANTRY_ASSIGN(const DomainHandle domain, impl_->domain(uuid));
    const XmlText text(virDomainGetXMLDesc(domain.get(), 0), &std::free);
    if (!text) {
        return last_error("cannot read the XML of domain " + uuid);
    }
    return parse_domain_xml(text.get());
}

Result<DomainReport> Host::report(const std::string& uuid) {
    DomainReport report;
    auto domain = impl_->domain(uuid);
    if (!domain.ok()) {
        if (domain.error().code != Code::kNotFound) {
            return domain.error();
        }
        report.state = DomainState::kAbsent;
        report.job.kind = JobKind::kNone;
        return report;
    }
    GANTRY_ASSIGN(report.state, domain_state(domain->get(), &report.cause));
    if (report.state == DomainState::kAbsent) {  // Defined, and shut off: it can have no job.
        report.job.kind = JobKind::kNone;
        return report;
    }
    GANTRY_ASSIGN(report.job, job_stats(domain->get()));
    return report;
}

Result<bool> Host::is_being_saved(const std::string& uuid) {
    GANTRY_ASSIGN(const DomainHandle domain, impl_->domain(uuid));
    int state = 0;
    int reason = 0;
    if (virDomainGetState(domain.get(), &state, &reason, 0) < 0) {
        return last_error("cannot read the state of domain " + uuid);
    }
    if (state != VIR_DOMAIN_PAUSED) {
        return false;
    }
    // A guest that was paused before keeps that reason; a snapshot may show no job yet.
    if (reason == VIR_DOMAIN_PAUSED_SAVE || reason == VIR_DOMAIN_PAUSED_SNAPSHOT) {
        return true;
    }
    GANTRY_ASSIGN(const JobStats job, job_stats(domain.get()));
    return job.kind == JobKind::kSave;
}

Result<void> Host::write_owner(const std::string& uuid, const Owner& owner) {
    GANTRY_ASSIGN(const std::string text, owner_xml(owner));
    GANTRY_ASSIGN(const DomainHandle domain, impl_->domain(uuid));
    if (virDomainSetMetadata(domain.get(), VIR_DOMAIN_METADATA_ELEMENT, text.c_str(), kOwnerPrefix,
                             kOwnerNamespace, VIR_DOMAIN_AFFECT_LIVE) < 0) {
        return last_error("cannot stamp the owner into domain " + uuid);
    }
    return {};
}

Result<void> Host::abort_job(const std::string& uuid) {
    GANTRY_ASSIGN(const DomainHandle domain, impl_->domain(uuid));
    if (virDomainAbortJob(domain.get()) < 0) {
        return last_error("cannot abort the job of domain " + uuid);
    }
    return {};
}

Result<void> Host::destroy(const std::string& uuid) {
    GANTRY_ASSIGN(const DomainHandle domain, impl_->domain(uuid));
    if (virDomainDestroy(domain.get()) < 0) {
        return last_error("cannot destroy domain " + uuid);
    }
    return {};
}

}  // namespace gantry::libvirt
