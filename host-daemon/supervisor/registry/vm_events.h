// VmEvents: what libvirt tells of this host's VMs, and which of it concerns which machine.
//
// Hints go to the source machine of a session that is here or to the target machine of one on its
// way. A VM that is here without its session, since this gantryd was away when it came, has it
// fetched from the gantryd that the stamp in its XML names.
//
// A session whose VM has ended is closed at libvirt's word, whichever way it comes: by the event,
// or, where a move or a lost connection came between, by asking (close_if_ended(), compare()).
//
// Threads: on_event() on libvirt's thread; query(), stamp_owner(), feed_target() and
// close_if_ended() from any; the rest, and the hooks but `run_aside`'s errands, on `housekeeping`
// only. No lock of its own.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "host-daemon/supervisor/registry/ending_sessions.h"
#include "host-daemon/supervisor/registry/hypervisor.h"
#include "host-daemon/supervisor/registry/session_table.h"
#include "proto/base/serial_executor.h"

namespace gantry::supervisor {

/// How a VM came to run here that has no session.
enum class VmLife : std::uint8_t {
    kBooted,    ///< Just now: what lies in its region is of an earlier life.
    kRestored,  ///< With the memory that libvirt had saved.
    kRunning,   ///< Not known.
};

struct VmHooks {
    /// A VM of ours runs here and has no session, or a new life.
    std::function<void(const libvirt::DomainInfo&, VmLife)> open;
    /// It has been stopped for good.
    std::function<void(const std::shared_ptr<Session>&)> close;
    /// The same, with its memory in a file.
    std::function<void(const std::shared_ptr<Session>&)> saved;
    /// Every event of a VM; on libvirt's thread.
    std::function<void(const libvirt::DomainEvent&)> heard;
    /// Begins to bring its session here from its owner; may wait for the owner's host.
    std::function<Result<std::shared_ptr<Arrival>>(const libvirt::DomainInfo&)> fetch;
    /// Runs what may take long beside `housekeeping`.
    std::function<void(std::function<void()>)> run_aside;
    /// For the record of the session's move.
    std::function<void(const std::string& id, MoveStamp)> note;
};

class VmEvents {
public:
    VmEvents(const Config& config, Hypervisor& hypervisor, SessionTable& sessions,
             EndingSessions& ending, SerialExecutor& housekeeping, VmHooks hooks);

    void on_event(const libvirt::DomainEvent& event);
    void feed_target(const std::string& id, const libvirt::DomainEvent& event);
    /// The hypervisor's word about a VM, on a thread of its own; about a local program this
    /// gantryd's, at once.
    void query(const std::string& id, std::function<void(engine::DomainReport)> answer);
    /// Writes into the VM's XML that this gantryd owns its session, and with which ticket it goes
    /// on from here. Without peers nothing is written, and `done` not called.
    void stamp_owner(const std::string& id, Epoch epoch, const Ticket& ticket,
                     std::function<void(Result<void>)> done);
    /// If libvirt still has the VM, and it is another gantryd's, its session is asked for.
    void find_session(const std::string& id);
    /// The system lacked what its session needs: `hooks.open` is called again in a moment.
    void open_later(const libvirt::DomainInfo& domain);
    void retry_stranded();
    /// Closes the session when libvirt says that its VM does not run here (any more), and nothing
    /// of a move stands against it. A move from here has just ended, or the VM has in mid-move.
    void close_if_ended(const std::string& id);
    /// The same for every VM's session, once a minute and after each connection to libvirt: what
    /// happened meanwhile has no event.
    void compare_when_due();

    /// What the VMs that are served here are stamped with.
    [[nodiscard]] std::string own_address() const;

    /// The hypervisor answered last.
    [[nodiscard]] bool is_connected() const { return is_connected_; }

private:
    std::atomic<bool> is_connected_{false};
    void on_domain_here(const libvirt::DomainEvent& event, VmLife life);
    void on_reset(const std::string& id);
    void on_guest_came(const std::string& id);
    void feed_source(const std::string& id, const libvirt::DomainEvent& event);
    void compare();
    void on_absent(const std::shared_ptr<Session>& session);
    engine::DomainReport local_report(const std::string& id);
    void take_up_guest(const libvirt::DomainInfo& domain);
    void on_taken_up(const libvirt::DomainInfo& domain,
                     const Result<std::shared_ptr<Arrival>>& arrival);

    const Config& config_;
    Hypervisor& hypervisor_;
    SessionTable& sessions_;
    EndingSessions& ending_;
    SerialExecutor& housekeeping_;
    const VmHooks hooks_;
    // housekeeping
    std::set<std::string> stranded_;  ///< VMs that are here without their session.
    std::vector<libvirt::DomainInfo> to_open_;
    std::set<std::string> to_look_at_;  ///< Their VM had ended, and their move had not.
    SerialExecutor::Clock::time_point next_comparison_{};
};

}  // namespace gantry::supervisor
