#include "host-daemon/supervisor/registry/hypervisor.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <optional>

#include "migration/libvirt/host.h"
#include "migration/libvirt/listener.h"
#include "proto/base/serial_executor.h"

namespace gantry::supervisor {
namespace {

engine::DomainReport to_engine(const libvirt::DomainReport& report) {
    engine::DomainReport out;
    switch (report.state) {
        case libvirt::DomainState::kUnknown: out.domain = engine::DomainState::kUnknown; break;
        case libvirt::DomainState::kAbsent: out.domain = engine::DomainState::kAbsent; break;
        case libvirt::DomainState::kRunning: out.domain = engine::DomainState::kRunning; break;
        case libvirt::DomainState::kPaused: out.domain = engine::DomainState::kPaused; break;
    }
    switch (report.job.kind) {
        case libvirt::JobKind::kUnknown: out.job = engine::JobState::kUnknown; break;
        case libvirt::JobKind::kMigrationOut: out.job = engine::JobState::kOutgoing; break;
        case libvirt::JobKind::kMigrationIn: out.job = engine::JobState::kIncoming; break;
        case libvirt::JobKind::kNone:
        case libvirt::JobKind::kSave:
        case libvirt::JobKind::kOther: out.job = engine::JobState::kNone; break;
    }
    switch (report.cause) {
        case libvirt::StopCause::kUnknown: out.cause = engine::StopCause::kUnknown; break;
        case libvirt::StopCause::kMigration: out.cause = engine::StopCause::kMigration; break;
        case libvirt::StopCause::kOther: out.cause = engine::StopCause::kOther; break;
    }
    return out;
}

class LibvirtHypervisor final : public Hypervisor {
public:
    explicit LibvirtHypervisor(std::string uri) : uri_(std::move(uri)), host_(uri_) {}
    ~LibvirtHypervisor() override { stop(); }

    void listen(EventHandler handler) override {
        libvirt::ListenerOptions options;
        options.uri = uri_;
        listener_ = std::make_unique<libvirt::Listener>(
            options,
            [handler = std::move(handler)](libvirt::DomainEvent event) { handler(event); });
    }

    void stop() override {
        listener_.reset();
        stamps_.stop();
        slow_.stop();
        quick_.stop();
    }

    void query(const std::string& uuid, std::function<void(engine::DomainReport)> answer) override {
        quick_.post([this, uuid, answer = std::move(answer)] {
            auto report = host_.report(uuid);
            note_silence(report.ok() ? "" : report.error().to_string());
            answer(report ? to_engine(*report) : engine::DomainReport{});
        });
    }

    void is_being_saved(const std::string& uuid, std::function<void(bool)> answer) override {
        quick_.post([this, uuid, answer = std::move(answer)] {
            const auto saved = host_.is_being_saved(uuid);
            if (!saved) {
                spdlog::debug("domain {}: {}", uuid, saved.error().to_string());
            }
            answer(saved && *saved);
        });
    }

    void read_domain(const std::string& uuid,
                     std::function<void(Result<libvirt::DomainInfo>)> answer) override {
        slow_.post([this, uuid, answer = std::move(answer)] { answer(host_.read_domain(uuid)); });
    }

    void abort_job(const std::string& uuid) override {
        log_failure("aborting the migration of", uuid,
                    [this, uuid] { return host_.abort_job(uuid); });
    }
    void destroy(const std::string& uuid) override {
        log_failure("destroying", uuid, [this, uuid] { return host_.destroy(uuid); });
    }
    void write_owner(const std::string& uuid, const libvirt::Owner& owner,
                     std::function<void(Result<void>)> done) override {
        stamps_.post([this, uuid, owner, done = std::move(done)] {
            Result<void> written = host_.write_owner(uuid, owner);
            if (!written) {
                spdlog::warn("writing the owner into domain {}: {}", uuid,
                             written.error().to_string());
            }
            done(std::move(written));
        });
    }

private:
    /// quick_ only. A move waits for libvirt's word, for as long as that takes: who looks for the
    /// cause finds it here, once. For moments it is silent in every move.
    void note_silence(const std::string& why) {
        constexpr std::chrono::seconds kWorthALine{10};
        const auto now = SerialExecutor::Clock::now();
        if (why.empty()) {
            silent_since_.reset();
            is_silence_told_ = false;
            return;
        }
        silent_since_ = silent_since_.value_or(now);
        if (!is_silence_told_ && now - *silent_since_ >= kWorthALine) {
            is_silence_told_ = true;
            spdlog::warn("libvirt has told nothing about domains for {} s: {}", kWorthALine.count(),
                         why);
        }
    }
    void log_failure(const char* what, const std::string& uuid,
                     std::function<Result<void>()> action) {
        slow_.post([what, uuid, action = std::move(action)] {
            if (auto done = action(); !done) {
                spdlog::warn("{} domain {}: {}", what, uuid, done.error().to_string());
            }
        });
    }

    const std::string uri_;
    libvirt::Host host_;
    std::unique_ptr<libvirt::Listener> listener_;
    std::optional<SerialExecutor::Clock::time_point> silent_since_;  ///< None: it answered last.
    bool is_silence_told_ = false;
    SerialExecutor quick_;  ///< Questions of the engine; must not wait behind a slow request.
    SerialExecutor slow_;
    SerialExecutor stamps_;
};

class NoHypervisor final : public Hypervisor {
public:
    void listen(EventHandler) override {}
    void stop() override {}
    void query(const std::string&, std::function<void(engine::DomainReport)> answer) override {
        answer({});
    }
    void read_domain(const std::string& uuid,
                     std::function<void(Result<libvirt::DomainInfo>)> answer) override {
        answer(Error{Code::kNotFound, "libvirt.none",
                     "this host has no libvirt (vm.libvirt_uri is empty): no domain " + uuid});
    }
    void abort_job(const std::string&) override {}
    void destroy(const std::string&) override {}
    void write_owner(const std::string& uuid, const libvirt::Owner&,
                     std::function<void(Result<void>)> done) override {
        done(Error{Code::kNotFound, "libvirt.none", "this host has no libvirt: no domain " + uuid});
    }
};

}  // namespace

std::unique_ptr<Hypervisor> make_libvirt_hypervisor(const std::string& uri) {
    return std::make_unique<LibvirtHypervisor>(uri);
}

std::unique_ptr<Hypervisor> make_no_hypervisor() { return std::make_unique<NoHypervisor>(); }

}  // namespace gantry::supervisor
