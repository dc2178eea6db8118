// Session: what this host serves for one VM (or one local program): its workers, its region, and
// the source machine that arbitrates who owns it.
//
// Invariant: a worker is in `workers()` exactly while it serves a channel of the region (or holds a
// session that is about to be served); each one's record lies in the run directory as long.
// Threads: open_channel, close_channel and on_worker_* from any; they are serialised by a lock that
// is held while a worker starts. Failure: a worker that dies leaves WorkerState::kDead in its
// channel, and nobody else notices.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "host-daemon/scheduling/share.h"
#include "host-daemon/supervisor/moves/source_runner.h"
#include "host-daemon/supervisor/parts/worker_state.h"
#include "host-daemon/supervisor/sessions/region.h"
#include "host-daemon/supervisor/workers/worker_stock.h"
#include "migration/libvirt/domain_info.h"
#include "proto/base/mutex.h"

namespace gantry::supervisor {

enum class SessionKind { kLocal, kVm };

struct SessionInfo {
    std::string id;  ///< The VM's UUID, or "local-PID-RANDOM".
    SessionKind kind = SessionKind::kLocal;
    std::string vm_name;
    std::uint64_t quota_bytes = 0;
    engine::ComputeCapability cc_min;
    std::optional<scheduling::Share> share;  ///< Of a GPU that it shares; nothing: the usual.
    libvirt::GpuWish wish;                   ///< Of the GPUs of a host: those that it may be on.
    std::string region_path;                 ///< VMs: the ivshmem file.
    std::uint64_t region_bytes = 0;
    /// Hex; not empty for a VM whose programs are over TCP: its region is then gantryd's to make,
    /// and gantry-relay's to use.
    std::string guest_key;
};

nlohmann::json to_json(const SessionInfo& info);
Result<SessionInfo> session_info_from_json(const nlohmann::json& json);

/// Where a local guest is reached.
struct GuestLink {
    Region region;
    control::UniqueFd socket;
};

/// What gantry-relay gets for a guest over TCP that was moved here.
struct RelayedGuest {
    control::UniqueFd region;
    std::uint64_t region_bytes = 0;
    std::uint32_t channel_count = 1;
    std::uint32_t channel_index = 0;
    std::uint64_t generation = 0;
    control::UniqueFd guest_end;  ///< Of the worker's socket; none of a VM's.
};

/// Names the one file that a suspended session can go on from.
struct Suspension {
    engine::Seed seed;  ///< Of the file's header: drawn at random for it.
    std::string path;   ///< Where it was written, for people; it may have been moved since.
};

class Session : public std::enable_shared_from_this<Session> {
public:
    Session(SessionInfo info, const Config& config, WorkerStock& stock);
    ~Session();

    [[nodiscard]] const SessionInfo& info() const { return info_; }
    [[nodiscard]] WorkerSet& workers() { return workers_; }
    [[nodiscard]] WorkersSource& source() { return source_; }
    /// The arbiter; absent while the session is still arriving.
    [[nodiscard]] std::shared_ptr<SourceRunner> driver() const;
    void own(std::shared_ptr<SourceRunner> driver);
    /// The GPU that new programs of it begin on. Its workers are there too, but while it is being
    /// reassigned.
    [[nodiscard]] DeviceNumber device() const { return device_.load(); }
    /// Waits until no program is being opened on the one before.
    void set_device(DeviceNumber device);
    /// True while new programs may begin: owned, not frozen, granted or suspended.
    [[nodiscard]] bool serves() const;
    /// True while its workers must stay as they are: not served here, being moved, or a VM that a
    /// hypervisor may be copying, of which a new worker does not know what was missed.
    [[nodiscard]] bool is_moving(const SourceStatus& status) const;

    /// Starts a worker for a claim and tells the guest. Local guests: `link` has socket and region.
    Result<void> open_channel(const Claim& claim, const WorkerHandlers& handlers,
                              std::optional<GuestLink> link, std::uint64_t table_hash);
    /// The guest process has ended: ends its worker, if there is one, and frees the channel.
    void close_channel(engine::PartId part);
    /// The worker died: tells its guest.
    void on_worker_lost(engine::PartId part, const std::string& how);

    /// After its state lies whole in the file `into`: takes the guests back from the frozen workers
    /// and ends these, which gives the GPU back. The guests' calls wait from now on.
    Result<void> suspend(const Suspension& into);
    [[nodiscard]] std::optional<Suspension> suspended() const;
    /// Held while it is being saved.
    [[nodiscard]] Mutex& saving() { return saving_; }
    /// The guests are served by restored workers again.
    void resume();
    /// False once the program that waits in a suspended session of this host itself has ended.
    [[nodiscard]] bool guest_waits() const;

    /// Attaches a restored worker to the guest that waits in the region, as `epoch`. `before`:
    /// called when nothing is left to do but to ask the worker.
    Result<void> activate(
        const std::shared_ptr<Worker>& worker, Epoch epoch,
        const std::function<void()>& before = [] {});
    /// Until end_replacement() a loss of the part's worker is not this session's to act on, and the
    /// fresh worker is in the record beside it.
    void begin_replacement(std::shared_ptr<Worker> fresh);
    /// `is_fresh`: the fresh worker is the part's now.
    void end_replacement(bool is_fresh);
    [[nodiscard]] bool is_replacing(engine::PartId part) const;
    /// Local guests that arrive from another gantryd of this host.
    void set_link(GuestLink link);
    /// Makes a region and a socket for a guest over TCP that is about to be served here; its
    /// relay asks for them.
    Result<void> make_link();
    /// A channel for a process of a VM over TCP, emptied, under a generation of its own.
    Result<RelayedGuest> give_channel(std::uint32_t pid);
    /// kNotFound: it is not this session's. kUnavailable: it is, and must not be served here.
    Result<RelayedGuest> meet_relay(const MirrorName& name);
    /// True while it is waited for the relay. A guest that did not come within as long as
    /// gantry-guest dials will not: its worker is told that it has ended.
    bool awaits_relay();
    /// A local program's end while its session was frozen or on its way: it is closed by whoever
    /// serves it next.
    void note_program_ended() { program_ended_.store(true); }
    [[nodiscard]] bool has_program_ended() const { return program_ended_.load(); }
    /// The region's channels as the guest laid them out; opens the region's file when needed.
    Result<std::vector<Claim>> claims();
    /// Empties a VM's region: the guest has just booted, what lies there is of an earlier life.
    Result<void> clear_region();
    /// Tells the guest why a claim is not served.
    void refuse(const Claim& claim, const Error& why);

    /// Ends every worker. `how`: what the guest is told; nullopt: the region is not touched.
    void end(std::optional<wire::WorkerState> how);
    /// Forgets the workers without ending them: gantryd is being restarted.
    void leave();
    /// Does nothing once it has been removed: what is told late must not bring it back.
    Result<void> write_record();
    /// What the record says besides, while the session is still arriving: see Arrival. Null:
    /// nothing.
    void set_arrival_note(std::string json);
    /// What the record says of the VM's ticket, for a restart.
    void set_ticket(const Ticket& ticket);
    void remove_record();
    /// What a record says of a session that was suspended when gantryd ended.
    void set_suspended(const Suspension& into);
    /// Its device; before any other use.
    void begin_on(DeviceNumber device) { device_.store(device); }
    /// Finds the workers of a record again; `served`: those that have ended are told to their
    /// guests.
    std::size_t adopt_workers(const std::vector<WorkerRecord>& records,
                              const WorkerHandlers& handlers, bool served);

private:
    Result<void> open_region();
    Result<RelayedGuest> relayed(std::uint32_t channel) GANTRY_REQUIRES(mutex_);
    Result<void> take_guests_back();
    Result<void> serve(const std::shared_ptr<Worker>& worker, const Claim& claim,
                       std::uint64_t table_hash);
    [[nodiscard]] std::string record_path() const;

    const SessionInfo info_;
    const Config& config_;
    WorkerStock& stock_;
    WorkerSet workers_;
    WorkersSource source_;
    mutable Mutex mutex_;
    Mutex recording_ GANTRY_ACQUIRED_BEFORE(mutex_);  // one writer of the record at a time
    bool is_record_removed_ GANTRY_GUARDED_BY(recording_) = false;
    Mutex saving_;
    Mutex opening_ GANTRY_ACQUIRED_BEFORE(mutex_);  // one channel at a time is opened or closed
    std::shared_ptr<SourceRunner> driver_ GANTRY_GUARDED_BY(mutex_);
    std::optional<Region> region_ GANTRY_GUARDED_BY(mutex_);
    control::UniqueFd socket_ GANTRY_GUARDED_BY(mutex_);
    control::UniqueFd guest_end_ GANTRY_GUARDED_BY(mutex_);  ///< For the relay.
    std::chrono::steady_clock::time_point guest_end_made_ GANTRY_GUARDED_BY(mutex_);
    std::atomic<bool> program_ended_{false};
    std::atomic<DeviceNumber> device_{0};
    std::uint32_t channel_count_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::string arrival_note_ GANTRY_GUARDED_BY(mutex_);
    Ticket ticket_ GANTRY_GUARDED_BY(mutex_);
    std::optional<Suspension> suspended_ GANTRY_GUARDED_BY(mutex_);
    std::shared_ptr<Worker> replacement_
        GANTRY_GUARDED_BY(mutex_);  ///< Takes a part over just now.
};

/// CUDA's numbers for what a refused guest is told.
inline constexpr std::uint32_t kCudaErrorOutOfMemory = 2;
inline constexpr std::uint32_t kCudaErrorNoDevice = 100;
inline constexpr std::uint32_t kCudaErrorSystemNotReady = 802;
inline constexpr std::uint32_t kCudaErrorSystemDriverMismatch = 803;
std::uint32_t cuda_error_of(const Error& error);

}  // namespace gantry::supervisor
