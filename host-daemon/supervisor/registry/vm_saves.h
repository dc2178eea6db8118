// VmSaves: the GPU's part of what libvirt does when it writes a VM's memory into a file and starts
// a VM from one (proto/decisions/0036-saved-vms.md).
//
// SAVE. No hook of libvirt's runs before a save. Its event comes when the guest has just been
// paused; asking libvirt tells a save from an operator's pause. Then the session is frozen, the
// image of its region taken, its state written and its workers thawed again: what happens next is
// the VM's affair. It ends: the session is closed when all is written. It runs on (a snapshot, a
// save that was ended): it gets a new mark. What cannot be written ends libvirt's save, so that the
// VM runs on and nothing is lost.
//
// RESTORE. libvirt's hook asks when the guest's memory is loaded and the guest does not run. The
// mark in it names its state, and the sum of the guest's own pages must be what it was. Then the
// state is given out, once. A guest without its state runs, and its programs get a CUDA error.
//
// Threads: on_event() on libvirt's; find(), put_back(), is_saving(), note_restored() and counters()
// from any; the rest on `housekeeping`. The lock is a leaf.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host-daemon/supervisor/registry/hypervisor.h"
#include "host-daemon/supervisor/registry/session_table.h"
#include "host-daemon/supervisor/snapshots/saved_states.h"
#include "proto/base/serial_executor.h"

namespace gantry::supervisor {

struct SaveHooks {
    /// The VM has ended, and its session is not needed any more.
    std::function<void(const std::shared_ptr<Session>&)> close;
    /// The VM boots, and its earlier life has been saved.
    std::function<void(const libvirt::DomainInfo&)> open;
    /// Whether its programs can go into a file at all.
    std::function<Result<void>(Session&)> check;
    /// Runs what may take long beside `housekeeping`.
    std::function<void(std::function<void()>)> run_aside;
};

struct SaveCounters {
    std::uint64_t saved = 0;
    std::uint64_t refused = 0;  ///< libvirt's save was ended, and the VM runs on.
    std::uint64_t lost = 0;     ///< The VM's file has no state of its GPU.
    std::uint64_t restored = 0;
    std::uint64_t started_without = 0;  ///< Programs of a restored VM got CUDA errors.
    std::uint64_t start_refused = 0;    ///< The state fits and cannot go on here now.
};

class VmSaves {
public:
    VmSaves(const std::string& state_directory, Hypervisor& hypervisor, SessionTable& sessions,
            SerialExecutor& housekeeping, SaveHooks hooks);

    void on_event(const libvirt::DomainEvent& event);
    /// libvirt's save has ended well, and with it the VM's life.
    void on_saved(const std::shared_ptr<Session>& session);
    /// Before a session is closed whose VM has ended. True: it is being saved, and closed by this
    /// when that is done.
    bool closes_later(const std::shared_ptr<Session>& session);
    /// Before a VM that boots gets its session: the same.
    bool opens_later(const libvirt::DomainInfo& domain);
    /// A new mark for a VM that is served.
    void renew_mark(const std::shared_ptr<Session>& session);
    /// A restored VM runs: the state that it was given is given to nobody else.
    void on_running(const std::shared_ptr<Session>& session);

    [[nodiscard]] bool is_saving(const std::string& id) const;
    /// The state that belongs to the memory of a VM that is about to run.
    [[nodiscard]] Result<SavedState> find(const SessionInfo& info) const;
    [[nodiscard]] std::string snapshot_path(const std::string& id,
                                            const wire::SaveMark& mark) const;
    /// The host's pages as they were, into the region of a guest that does not run.
    Result<void> put_back(const SessionInfo& info, const SavedState& state) const;
    /// Workers have the state; or, nullopt, none of that VM has been given out.
    void note_restored(const std::string& id, std::optional<wire::SaveMark> mark);
    void note_start_refused();
    /// Workers have a state for a guest that has not run yet.
    [[nodiscard]] bool is_given(const std::string& id) const;
    /// Programs that a host has served and that have no worker here get CUDA errors; none has one
    /// without a session. All claims of programs that have been answered.
    std::vector<Claim> lose_programs(const SessionInfo& info, Session* session, const Error& why);
    [[nodiscard]] SaveCounters counters() const;

private:
    struct Save {
        std::shared_ptr<Session> session;
        wire::SaveMark mark;
        bool is_written = false;  ///< Or has failed.
        bool has_failed = false;
        bool has_ended = false;    ///< The VM, by libvirt's save or otherwise.
        bool has_resumed = false;  ///< The VM.
        bool is_complete = false;  ///< libvirt has all of the memory.
        bool comes_again = false;  ///< It was paused once more.
        std::optional<libvirt::DomainInfo> next_life;
    };

    void begin(const std::string& id, bool has_ended);
    Result<void> write(const std::string& id, const std::shared_ptr<Session>& session,
                       const wire::SaveMark& mark);
    void on_written(const std::string& id, const Result<void>& written);
    void on_resumed(const std::string& id);
    void settle(const std::string& id);
    void tell(const std::string& id, const std::string& text);
    [[nodiscard]] bool is_cancelled(const std::string& id) const;

    SavedStates states_;
    Hypervisor& hypervisor_;
    SessionTable& sessions_;
    SerialExecutor& housekeeping_;
    const SaveHooks hooks_;
    mutable Mutex mutex_;
    std::map<std::string, Save> saves_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::string, wire::SaveMark> marks_ GANTRY_GUARDED_BY(mutex_);  ///< In the regions.
    std::map<std::string, wire::SaveMark> given_ GANTRY_GUARDED_BY(mutex_);  ///< Not yet running.
    SaveCounters counters_ GANTRY_GUARDED_BY(mutex_);
};

}  // namespace gantry::supervisor
