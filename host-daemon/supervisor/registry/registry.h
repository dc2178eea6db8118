// Registry: every session of this host, from the first claim or arrival to its end.
//
// It wires the parts, each with its own state and its own plain mutex, and owns what happens
// between them: opening a session, its end, an arrival that becomes a session, a restart of
// gantryd.
//
//   part            state                                          called by
//   SessionTable    who is here, who is on the way here            all threads
//   DeviceBook      devices, promised device memory                all threads
//   EndingSessions  local programs, sessions that end, waiters     attaching programs,
//   housekeeping_ HostStatus      history of moves; what operators are told      operators, moves'
//   executors VmEvents        VMs that are here without their session        libvirt's thread,
//   housekeeping_ VmSaves     VMs that libvirt saves and restores            as VmEvents; hooks
//
// Order of locks: SessionTable, then DeviceBook, EndingSessions or a Session's own. The others are
// never held together. Hooks of moves and arrivals, which run on their executors, take one part's
// lock at a time.
//
// Threads: public methods from any. `housekeeping_` runs what would wait for itself otherwise (the
// end of a session asked for by its own driver, starting workers for new claims).
#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "host-daemon/sharing/share_broker.h"
#include "host-daemon/supervisor/registry/device_book.h"
#include "host-daemon/supervisor/registry/ending_sessions.h"
#include "host-daemon/supervisor/registry/hypervisor.h"
#include "host-daemon/supervisor/registry/session_table.h"
#include "host-daemon/supervisor/registry/status.h"
#include "host-daemon/supervisor/registry/vm_events.h"
#include "host-daemon/supervisor/registry/vm_saves.h"
#include "host-daemon/supervisor/sessions/arrival.h"
#include "host-daemon/supervisor/sessions/guest_listener.h"
#include "host-daemon/supervisor/sessions/handover.h"
#include "host-daemon/supervisor/sessions/region_watcher.h"
#include "host-daemon/supervisor/sessions/session.h"
#include "host-daemon/supervisor/share/gpu_shares.h"
#include "host-daemon/supervisor/snapshots/replacement_job.h"
#include "host-daemon/supervisor/workers/worker_stock.h"
#include "migration/transport/peer_server.h"
#include "proto/base/serial_executor.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::supervisor {

class Registry final : public transport::PeerBackend {
public:
    Registry(const Config& config, EpochStore& store, Hypervisor& hypervisor);
    ~Registry() override;

    /// Asks the driver what devices there are, adopts running workers, begins to listen.
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
    /// The `restore begin` and `started begin` hooks. An error refuses the VM's start, and what
    /// libvirt saved stays.
    Result<control::StartingReply> starting(const control::StartingRequest& request);
    Result<control::PreflightReply> preflight(const control::PreflightRequest& request);
    Result<std::string> abort(const std::string& name);
    Result<std::string> force_complete(const std::string& name);
    Result<void> fenced(const std::string& name);
    Result<void> discard(const std::string& name);
    /// Empty name: all. `ended_after`: also sessions that have left this host by a move that ended
    /// after this serial number of the history.
    control::ListSessionsReply list(const std::string& name,
                                    std::optional<std::uint64_t> ended_after = std::nullopt);
    [[nodiscard]] HostStatus& status() { return status_; }
    [[nodiscard]] SaveCounters saves() const { return saves_.counters(); }
    [[nodiscard]] const MoveRecords& records() const { return records_; }
    /// Nothing: this host has no hypervisor.
    [[nodiscard]] std::optional<bool> hypervisor_connected() const {
        return config_.vm.libvirt_uri.empty() ? std::nullopt : std::optional{vms_.is_connected()};
    }
    [[nodiscard]] const std::optional<transport::TlsMaterial>& tls() const { return tls_; }
    Result<control::InspectReply> inspect(const std::string& name);
    Result<control::AccountReply> account(const std::string& name);
    Result<control::ProfileReply> profile(const control::ProfileRequest& request);
    /// Who has which GPU; changes what is asked for first.
    Result<control::SchedReply> sched(const control::SchedRequest& request);
    /// Of all sessions; empty where workers do not account.
    std::vector<control::AccountReply> accounts();
    /// The session by id or VM name, or kNotFound with those that there are.
    Result<std::shared_ptr<Session>> find(const std::string& name);

    // PeerBackend
    Result<std::vector<engine::HostGpu>> capabilities() override;
    Result<engine::SessionNeeds> needs(const std::string& session_id) override;
    void receive(const std::string& session_id, engine::Message message, const std::string& peer,
                 std::shared_ptr<transport::MessageLink> link) override;
    std::shared_ptr<BulkQueue> bulk(const std::string& session_id, engine::MigrationId migration,
                                    const std::string& peer) override;
    void turned_away(const std::string& peer, const std::string& address) override;
    Result<control::MoveRecord> share_record(const control::MoveRecord& record,
                                             const std::string& peer) override;

    /// Certificates for peers; empty when this host takes part in no migration.
    void set_tls(std::optional<transport::TlsMaterial> tls) { tls_ = std::move(tls); }

private:
    // registry.cc
    Result<void> lock_run_directory(const std::string& run);
    std::shared_ptr<Session> open_session(const SessionInfo& info, Epoch epoch, bool is_fresh,
                                          DeviceNumber device);
    /// Its end goes on by itself (ending_). Nothing when it is not the one of its id any more.
    void close_session(const std::shared_ptr<Session>& session, wire::WorkerState how);
    void end_session(wire::WorkerState how, SessionTable::Taken taken);
    /// What may take long does not hold up housekeeping_, which starts it.
    void run_aside(std::function<void()> errand);
    std::shared_ptr<SourceRunner> make_driver(const std::shared_ptr<Session>& session, Epoch epoch);
    /// The part of a GPU that its VM's metadata gives it.
    void take_share(const SessionInfo& info);
    void watch_region(const std::shared_ptr<Session>& session, const std::vector<Claim>& seen = {});
    Result<Epoch> epoch_for_new_life(const std::string& id);
    WorkerHandlers handlers_for(const std::string& id);
    std::string sharing_group(const std::string& id);
    void on_worker_lost(const std::string& id, engine::PartId part, const std::string& how);
    /// Tells the guest and forgets the worker; on housekeeping_ only.
    void drop_worker(const std::shared_ptr<Session>& session, engine::PartId part,
                     const std::string& how);
    void on_worker_event(const std::string& id, engine::PartId part, const control::Event& event);
    /// Of sessions of which nobody knows another: the first that is served.
    [[nodiscard]] DeviceNumber usual_device() const { return devices_.served().front(); }
    /// Which GPUs are served; asked of the driver again while it did not answer.
    void find_devices();
    /// Promises the session its memory on the GPU that it begins on.
    Result<DeviceNumber> place(const SessionInfo& info);
    [[nodiscard]] PlacementPolicy policy() const {
        return placement_policy(config_.placement.policy);
    }
    [[nodiscard]] engine::HostGpu no_gpu() const;
    [[nodiscard]] std::vector<engine::HostGpu> gpus_for(const std::string& id,
                                                        const libvirt::GpuWish& wish);
    SourceHooks source_hooks(const std::shared_ptr<Session>& session);
    void look_after_logs();
    [[nodiscard]] std::set<std::string> worker_sockets() const;
    void renew_ticket(const std::weak_ptr<Session>& whose, Epoch epoch);
    [[nodiscard]] bool waits_itself(const std::string& id) const;
    bool awaits_earlier_life(const libvirt::DomainInfo& domain);
    void open_vm(const libvirt::DomainInfo& domain, VmLife life);
    VmHooks vm_hooks();
    Result<control::DeviceDescription> ask_device(DeviceNumber device);
    /// What is promised to `session` itself counts as free.
    engine::TargetCapabilities capabilities_of(DeviceNumber device, const std::string& session);
    engine::Settings settings() const;
    transport::PeerIdentity identity() const;

    // restart.cc
    Result<void> adopt_all();
    void adopt_session(const SessionInfo& info, std::optional<DeviceNumber> device,
                       const std::vector<WorkerRecord>& workers,
                       const std::optional<Suspension>& suspended, const Ticket& ticket);
    void adopt_arrival(const ArrivalNote& note, std::optional<DeviceNumber> device,
                       const std::vector<WorkerRecord>& workers);
    void restore_granted(const std::string& id);

    // arrival.cc
    /// What a session of a VM with our metadata starts from.
    SessionInfo vm_session_info(const libvirt::DomainInfo& domain) const;
    ArrivalRequest arrival_request(const libvirt::DomainInfo& domain) const;
    ArrivalHooks arrival_hooks(const ArrivalRequest& request);
    Result<engine::HostGpu> choose_gpu(const ArrivalRequest& request,
                                       std::optional<DeviceNumber> now);
    Result<std::shared_ptr<Arrival>> begin_arrival(ArrivalRequest request);
    void on_arrived(const std::string& id, Epoch epoch);
    void on_arrival_ended(const std::string& id, engine::Outcome outcome, const Error& error);
    void remove_arrival(const std::string& id);
    void forget_arrival_note(const std::string& id);
    void look_after_guest(const std::shared_ptr<Arrival>& arrival);
    void exchange_records(const ArrivalRequest& request, const std::string& migration_id);
    Result<GuestLink> give_guest(const HandoverRequest& request);

    // starting.cc
    SaveHooks save_hooks();
    Result<void> check_save(Session& session);
    Result<void> await_end(const libvirt::DomainInfo& domain);
    Result<control::StartingReply> give_state(const libvirt::DomainInfo& domain);
    Result<void> restore_vm(const SessionInfo& info, const SavedState& state);
    void on_restored(const libvirt::DomainInfo& domain);
    void forget_start(const std::string& id);
    Error why_without_state(const std::string& id);

    // snapshot.cc
    Result<control::RestoreReply> restore_session(const std::shared_ptr<Session>& session,
                                                  const std::string& path);
    Result<void> admit(const SessionInfo& info, const engine::SessionNeeds& needs,
                       DeviceNumber device);
    ReplacementHooks replacement_hooks(const std::shared_ptr<Session>& session);
    WorkerStock::Awaited suspended_counts();
    Result<void> spare_suspended(const std::string& path);
    void drop_ended_guests();
    void look_after_guests();

    const Config& config_;
    EpochStore& store_;
    Hypervisor& hypervisor_;
    WorkerStock stock_;
    DeviceBook devices_;
    std::optional<transport::TlsMaterial> tls_;
    std::unique_ptr<sharing::ShareBroker> broker_;
    GpuShares shares_;

    SessionTable sessions_;
    EndingSessions ending_;
    MoveRecords records_;
    HostStatus status_;
    control::UniqueFd lock_;
    std::unique_ptr<HandoverServer> handover_;
    std::vector<std::future<void>> errands_;                 ///< housekeeping_.
    SerialExecutor::Clock::time_point next_look_at_logs_{};  ///< housekeeping_.
    SerialExecutor housekeeping_{[this] {
        vms_.retry_stranded();
        vms_.compare_when_due();
        look_after_logs();
        look_after_guests();
    }};
    VmSaves saves_;
    VmEvents vms_;
    Mutex finding_mutex_;
    bool are_found_ GANTRY_GUARDED_BY(finding_mutex_) = false;  ///< The GPUs that are served.
    Mutex starting_mutex_;
    std::set<std::string> restoring_ GANTRY_GUARDED_BY(starting_mutex_);  ///< By VM.
    /// Why a restored VM is about to run without the state of its GPU.
    std::map<std::string, Error> without_state_ GANTRY_GUARDED_BY(starting_mutex_);
};

}  // namespace gantry::supervisor
