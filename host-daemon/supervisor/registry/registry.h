// Registry: every session of this host, from the first claim or arrival to its end.
//
// It opens sessions for local programs and for VMs that libvirt tells of, starts arrivals when the
// hook (or an operator) asks for a VM, turns an arrival into a session when the grant has come, and
// finds all of it again after a restart of gantryd. It keeps the books of promised device memory.
// Threads: public methods from any. `housekeeping_` runs what would wait for itself otherwise (the
// end of a session asked for by its own driver, starting workers for new claims).
#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "host-daemon/sharing/share_broker.h"
#include "host-daemon/supervisor/moves/move_history.h"
#include "host-daemon/supervisor/registry/device_book.h"
#include "host-daemon/supervisor/registry/hypervisor.h"
#include "host-daemon/supervisor/sessions/arrival.h"
#include "host-daemon/supervisor/sessions/guest_listener.h"
#include "host-daemon/supervisor/sessions/handover.h"
#include "host-daemon/supervisor/sessions/region_watcher.h"
#include "host-daemon/supervisor/sessions/session.h"
#include "host-daemon/supervisor/snapshots/replacement_job.h"
#include "host-daemon/supervisor/workers/worker_stock.h"
#include "migration/transport/peer_server.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::supervisor {

class Registry final : public transport::PeerBackend {
public:
    Registry(const Config& config, EpochStore& store, Hypervisor& hypervisor);
    ~Registry() override;

    /// Asks the driver what device there is, adopts running workers, begins to listen.
    Result<void> start();
    /// Leaves the workers running; afterwards nothing happens any more.
    void stop();

    Result<void> open_local(GuestRequest request, GuestLink link);
    /// Programs that wait for others' memory are refused from now on.
    void end_waits();
    /// A channel for a process that proves that it is of a VM of this host.
    Result<RelayedGuest> attach_vm(const wire::VmAttachRequest& request);
    /// The guest of a link that was moved here; kUnavailable while it may still come.
    Result<RelayedGuest> resume_guest(const MirrorName& name);

    /// Begins to bring a VM's session here and waits until the hook may end. `ours` false: no
    /// metadata.
    Result<control::AdmitReply> admit(const control::AdmitRequest& request);
    Result<void> pull(const control::PullRequest& request);
    /// Saves a session to a file; with `suspend` its GPU is free afterwards.
    Result<control::SnapshotReply> snapshot(const control::SnapshotRequest& request,
                                            const std::function<bool()>& is_cancelled);
    /// Goes on with a suspended session from its file.
    Result<control::RestoreReply> restore(const control::RestoreRequest& request);
    /// Fresh workers for a session's programs, under them.
    Result<control::ReplaceWorkersReply> replace_workers(
        const control::ReplaceWorkersRequest& request);
    /// The same on another device of this host, where the session is from then on.
    Result<control::ReplaceWorkersReply> reassign(const control::ReassignRequest& request);
    /// The `release end` hook: the VM is not on this host (any more).
    void released(const control::ReleasedRequest& request);
    Result<control::PreflightReply> preflight(const control::PreflightRequest& request);
    Result<std::string> abort(const std::string& name);
    Result<void> fenced(const std::string& name);
    Result<void> discard(const std::string& name);
    /// Empty name: all. `ended_after`: also sessions that have left this host by a move that ended
    /// after this serial number of the history.
    control::ListSessionsReply list(const std::string& name,
                                    std::optional<std::uint64_t> ended_after = std::nullopt);
    [[nodiscard]] std::uint64_t history_serial() const;
    /// True when a move of that session (empty: of any) ended after this serial number.
    [[nodiscard]] bool has_ended(const std::string& name, std::uint64_t after) const;
    Result<control::InspectReply> inspect(const std::string& name);
    /// The session by id or VM name, or kNotFound with those that there are.
    Result<std::shared_ptr<Session>> find(const std::string& name);
    /// Its state while it arrives, serves or has been given away.
    Result<control::SessionStatus> status(const std::string& name);

    // PeerBackend
    Result<engine::TargetCapabilities> capabilities() override;
    Result<engine::SessionNeeds> needs(const std::string& session_id) override;
    void receive(const std::string& session_id, engine::Message message,
                 std::shared_ptr<transport::MessageLink> link) override;
    std::shared_ptr<BulkQueue> bulk(const std::string& session_id,
                                    engine::MigrationId migration) override;

    /// Certificates for peers; empty when this host takes part in no migration.
    void set_tls(std::optional<transport::TlsMaterial> tls) { tls_ = std::move(tls); }

private:
    struct Entry {
        std::shared_ptr<Session> session;
        std::shared_ptr<SourceRunner> driver;
        std::unique_ptr<RegionWatcher> watcher;
        std::vector<std::string> alerts;
        SerialExecutor::Clock::time_point
            peer_heard;                      ///< A target's last message, see local_report().
        std::optional<Error> attempt_error;  ///< Of the last attempt, while another may come.
        std::optional<engine::MigrationId> pull_ended;  ///< What it says now counts no more.
    };

    struct LocalGuest {
        std::uint32_t uid = 0;
        control::UniqueFd process;  ///< As GuestRequest's.
        bool is_waited_for = true;  ///< Once its end has taken too long, no more.
    };

    struct Closing {
        std::uint32_t sessions = 0;
        bool is_waited_for = true;                     ///< As in LocalGuest.
        std::optional<libvirt::DomainInfo> next_life;  ///< Opened when they have ended.
    };

    // registry.cc
    Result<void> lock_run_directory(const std::string& run);
    std::shared_ptr<Session> open_session(const SessionInfo& info, Epoch epoch, bool is_fresh);
    /// Its end goes on by itself (closing_). Nothing when it is not the one of its id any more.
    void close_session(const std::shared_ptr<Session>& session, wire::WorkerState how);
    void end_session(wire::WorkerState how, Entry entry);
    /// What may take long does not hold up housekeeping_, which starts it.
    void run_aside(std::function<void()> errand);
    std::shared_ptr<SourceRunner> make_driver(const std::shared_ptr<Session>& session, Epoch epoch);
    void watch_region(const std::string& id);
    Result<Epoch> epoch_for_new_life(const std::string& id);
    WorkerHandlers handlers_for(const std::string& id);
    std::string sharing_group(const std::string& id);
    void on_worker_lost(const std::string& id, engine::PartId part, const std::string& how);
    /// Tells the guest and forgets the worker; on housekeeping_ only.
    void drop_worker(const std::shared_ptr<Session>& session, engine::PartId part,
                     const std::string& how);
    void on_worker_event(const std::string& id, engine::PartId part, const control::Event& event);
    /// Without the lock.
    /// The one that programs begin on, unless their session was reassigned.
    [[nodiscard]] DeviceNumber usual_device() const {
        return static_cast<DeviceNumber>(config_.worker.device);
    }
    Result<control::DeviceDescription> ask_device(DeviceNumber device);
    engine::TargetCapabilities capabilities_of(DeviceNumber device);
    engine::Settings settings() const;
    transport::PeerIdentity identity() const;

    // local.cc
    std::set<std::string> ending_sessions();
    Result<void> reserve_when_free(const std::string& id, std::uint64_t bytes,
                                   const control::UniqueFd& process);
    bool await_close(std::unique_lock<std::recursive_mutex>& lock);
    void await_end(std::set<std::string> sessions);

    // restart.cc
    Result<void> adopt_all();
    void adopt_session(const SessionInfo& info, std::optional<DeviceNumber> device,
                       const std::vector<WorkerRecord>& workers,
                       const std::optional<Suspension>& suspended);
    void adopt_arrival(const ArrivalNote& note, const std::vector<WorkerRecord>& workers);
    void restore_granted(const std::string& id);

    // vm.cc
    void on_domain_event(const libvirt::DomainEvent& event);
    void on_domain_here(const libvirt::DomainEvent& event, bool is_fresh);
    bool awaits_earlier_life(const libvirt::DomainInfo& domain);
    void open_vm(const libvirt::DomainInfo& domain, bool is_fresh);
    void feed_source(const std::string& id, const libvirt::DomainEvent& event);
    void feed_target(const std::string& id, const libvirt::DomainEvent& event);
    void query_domain(const std::string& id, std::function<void(engine::DomainReport)> answer);
    engine::DomainReport local_report(const std::string& id);
    void stamp_owner(const std::string& id, Epoch epoch);
    std::string own_address() const;
    void take_up_guest(const libvirt::DomainInfo& domain);
    void on_taken_up(const libvirt::DomainInfo& domain,
                     const Result<std::shared_ptr<Arrival>>& arrival);
    void retry_stranded();
    void find_session(const std::string& id);
    void on_guest_came(const std::string& id);
    [[nodiscard]] bool is_concerned(const std::string& id) const;

    // arrival.cc
    /// What a session of a VM with our metadata starts from.
    SessionInfo vm_session_info(const libvirt::DomainInfo& domain) const;
    ArrivalRequest arrival_request(const libvirt::DomainInfo& domain) const;
    ArrivalHooks arrival_hooks(const ArrivalRequest& request);
    Result<std::shared_ptr<Arrival>> begin_arrival(ArrivalRequest request);
    void on_arrived(const std::string& id, Epoch epoch);
    void on_arrival_ended(const std::string& id, engine::Outcome outcome, const Error& error);
    void remove_arrival(const std::string& id);
    void forget_arrival_note(const std::string& id);
    void look_after_guest(const std::shared_ptr<Arrival>& arrival);
    Result<GuestLink> give_guest(const HandoverRequest& request);

    // snapshot.cc
    Result<void> admit(const SessionInfo& info, const engine::SessionNeeds& needs,
                       DeviceNumber device);
    ReplacementHooks replacement_hooks(const std::shared_ptr<Session>& session);
    std::size_t suspended_count();
    Result<void> spare_suspended(const std::string& path);
    void drop_ended_guests();
    void look_after_guests();

    // status.cc
    /// Both without the workers.
    control::SessionStatus describe(const std::string& id, const Entry& entry);
    control::SessionStatus describe(const Arrival& arrival);
    /// `workers`: of the first sessions of the reply, in its order; those that follow have none.
    control::ListSessionsReply list_without_workers(
        const std::string& name, std::optional<std::uint64_t> ended_after,
        std::vector<std::vector<std::shared_ptr<Worker>>>* workers);
    void note_source_ended(const std::string& id, engine::Outcome outcome, const Error& error);
    void note_target_ended(const std::string& id, engine::Outcome outcome, const Error& error);

    const Config& config_;
    EpochStore& store_;
    Hypervisor& hypervisor_;
    WorkerStock stock_;
    DeviceBook book_;
    std::optional<transport::TlsMaterial> tls_;
    std::unique_ptr<sharing::ShareBroker> broker_;

    mutable std::recursive_mutex mutex_;  // all below
    std::map<std::string, Entry> sessions_;
    std::map<std::string, std::shared_ptr<Arrival>> arrivals_;
    std::map<std::string, LocalGuest> local_guests_;  ///< Of local sessions opened here.
    std::map<std::string, Closing> closing_;          ///< Sessions that end, out of sessions_.
    std::uint64_t closed_count_ = 0;
    bool waits_end_ = false;
    std::condition_variable_any session_closed_;
    MoveHistory history_;
    bool stopping_ = false;

    control::UniqueFd lock_;
    std::unique_ptr<HandoverServer> handover_;
    std::vector<std::future<void>> errands_;  ///< housekeeping_.
    std::set<std::string> stranded_;  ///< VMs that are here without their session; housekeeping_.
    SerialExecutor housekeeping_{[this] {
        retry_stranded();
        look_after_guests();
    }};
};

}  // namespace gantry::supervisor
