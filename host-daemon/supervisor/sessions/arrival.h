// Arrival: a session on its way to this host; one migration attempt after another until it is here
// or has been given up.
//
// It owns the workers that receive the state (through its Session, which has no source driver yet),
// the target driver and the link to the source. Threads: as TargetRunner. It is stopped by the
// registry's housekeeping only, never from a hook of its own; whoever holds it last destroys it. An
// answer of the hypervisor reaches it only while it is held by a shared_ptr.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "host-daemon/supervisor/moves/target_runner.h"
#include "host-daemon/supervisor/parts/worker_state.h"
#include "host-daemon/supervisor/sessions/session.h"
#include "migration/engine/gpu_choice.h"
#include "migration/transport/links.h"
#include "proto/base/mutex.h"

namespace gantry::supervisor {

struct ArrivalRequest {
    SessionInfo info;
    std::string source_address;
    Ticket ticket;              ///< VMs: out of the XML that libvirt's migration brought.
    std::string handover_path;  ///< Local programs: where their descriptors are fetched.
    bool arrives_when_converged = false;
};

/// What a session's record says while it arrives: the newest attempt, and the epoch that it asks
/// for.
struct ArrivalNote {
    ArrivalRequest request;
    engine::MigrationId migration;
    Epoch epoch;
};

nlohmann::json to_json(const ArrivalNote& note);

struct ArrivalHooks {
    /// The GPU that the session is to come to. `now`: the one that an earlier attempt was given,
    /// which stays: its guest may be here already.
    std::function<Result<engine::HostGpu>(std::optional<DeviceNumber> now)> choose;
    std::function<Result<void>(const engine::SessionNeeds&, DeviceNumber)> reserve;
    std::function<Result<std::shared_ptr<Worker>>(const SessionInfo&, engine::PartId, DeviceNumber)>
        launch;
    std::function<void()> discard;
    std::function<void(std::function<void(engine::DomainReport)>)> query_domain;
    std::function<void(Epoch)> arrived;
    std::function<void(engine::Outcome, const Error&)> ended;
    MoveLog log = {};
};

class Arrival : public std::enable_shared_from_this<Arrival> {
public:
    using Connect =
        std::function<std::unique_ptr<transport::TargetLink>(transport::TargetLinkHandlers)>;

    Arrival(ArrivalRequest request, const Config& config, WorkerStock& stock,
            engine::Settings settings, EpochStore& store, ArrivalHooks hooks);
    ~Arrival();

    /// Dials and begins the first attempt.
    Result<void> begin(const Connect& connect);
    /// After a restart of gantryd: the workers that are left were adopted. `owned`: the disk's
    /// record of the epoch that this attempt was granted, if it was. Without `complete` and `owned`
    /// the session goes back to the source.
    void resume(const Connect& connect, const std::optional<engine::DurableRecord>& owned,
                engine::MigrationId migration, const std::optional<engine::FreezeToken>& complete);
    /// Begins another attempt (the guest is here already).
    Result<void> begin_again();
    void feed(engine::TargetEvent event);
    void on_worker_lost(engine::PartId part, const std::string& how);
    /// The guest's calls, which waited, get hard errors from now on.
    void disown_guest();
    /// A person's word that the source host is down and stays down.
    void confirm_source_fenced();
    [[nodiscard]] bool source_fenced() const;
    /// Waits until the hook may end. kDeadlineExceeded: not yet decided.
    Result<void> wait_admitted(std::chrono::milliseconds timeout);
    void stop();

    Result<std::optional<engine::FreezeToken>> complete_token() { return sink_.complete_token(); }
    [[nodiscard]] const ArrivalRequest& request() const { return request_; }
    [[nodiscard]] const std::shared_ptr<Session>& session() const { return session_; }
    /// Its progress is that of all attempts together.
    [[nodiscard]] TargetStatus status() const;
    [[nodiscard]] std::vector<std::string> alerts() const;
    /// The guest is here, and the source has been silent for long.
    [[nodiscard]] bool has_waited_in_vain() const;
    [[nodiscard]] bool ended() const;
    /// It ended without the session, and nobody knew where the guest is.
    [[nodiscard]] bool left_guest_unknown() const;
    /// A further attempt would end in the same way.
    [[nodiscard]] bool is_hopeless() const;

private:
    TargetHooks target_hooks();
    WorkersSink::Hooks sink_hooks();
    Result<void> activate(const std::shared_ptr<Worker>& worker, Epoch epoch);
    void connect_link(const Connect& connect);
    Result<engine::TargetCapabilities> choose(std::optional<DeviceNumber> now);
    void write_note();
    void on_domain(const engine::DomainReport& report);
    void settle(std::optional<Error> refusal);
    [[nodiscard]] std::shared_ptr<TargetRunner> driver() const;
    [[nodiscard]] std::shared_ptr<transport::TargetLink> link() const;
    std::shared_ptr<TargetRunner> make_driver();

    const ArrivalRequest request_;
    const Config& config_;
    engine::Settings settings_;
    EpochStore& store_;
    ArrivalHooks hooks_;
    std::shared_ptr<Session> session_;
    WorkersSink sink_;

    /// Local programs: the link was fetched from the other gantryd, or made. Only in activate().
    bool has_guest_link_ = false;

    mutable Mutex mutex_;
    CondVar settled_;
    bool is_settled_ GANTRY_GUARDED_BY(mutex_) = false;
    bool is_ended_ GANTRY_GUARDED_BY(mutex_) = false;
    engine::Outcome outcome_ GANTRY_GUARDED_BY(mutex_) = engine::Outcome::kNone;
    bool source_fenced_ GANTRY_GUARDED_BY(mutex_) = false;
    std::optional<Error> refusal_ GANTRY_GUARDED_BY(mutex_);
    std::vector<std::string> alerts_ GANTRY_GUARDED_BY(mutex_);
    bool has_silent_source_ GANTRY_GUARDED_BY(mutex_) = false;

    /// What libvirt said last about the guest on this host; told again to a new attempt.
    std::optional<engine::TargetEvent> guest_state_ GANTRY_GUARDED_BY(mutex_);
    std::shared_ptr<TargetRunner> driver_ GANTRY_GUARDED_BY(mutex_);
    engine::Progress progress_before_
        GANTRY_GUARDED_BY(mutex_);  ///< Of the attempts that have failed.
    /// Held beside this only while it is used: its calls may wait for threads that ask driver().
    std::shared_ptr<transport::TargetLink> link_ GANTRY_GUARDED_BY(mutex_);
};

}  // namespace gantry::supervisor
