// EndingSessions: programs of this host whose sessions are open, sessions that end, and who waits
// for them.
//
// A process that ends natively has given its device memory back before its parent hears of its end.
// Here it is given back by a worker that ends a little later, so a program that starts meanwhile
// waits for it: `a && b`, each with most of the GPU, runs. A session is noted here from the moment
// at which it leaves the SessionTable until its workers have ended.
//
// Threads: any; await() and try_while_ending() block. The lock is a leaf: functions that are given
// are called without it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "migration/libvirt/domain_info.h"
#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/control/unique_fd.h"

namespace gantry::supervisor {

class EndingSessions {
public:
    /// True of a local session whose memory does not come free with its program: suspended, or
    /// waiting for the end of a migration.
    using WaitsItself = std::function<bool(const std::string& id)>;

    // Programs of this host.
    struct GuestLimits {
        std::size_t of_user = 0;
        std::size_t of_all = 0;
    };
    /// `guest.sessions` where there are as many already, those of which the workers end included.
    Result<void> add_guest(const std::string& id, std::uint32_t uid, const GuestLimits& limits);
    /// It may begin: its end is known by `process` from now on.
    void admit_guest(const std::string& id, control::UniqueFd process);
    void forget_guest(const std::string& id);
    [[nodiscard]] std::optional<std::uint32_t> user_of(const std::string& id) const;

    // Sessions that end.
    /// It is out of the table, and its workers are about to be ended.
    void begin(const std::string& id);
    /// It has ended. The VM to be opened now, if it was the last of its id.
    std::optional<libvirt::DomainInfo> end(const std::string& id);
    /// The VM runs again: it is to be opened when its earlier sessions have ended. False: there is
    /// none.
    bool set_next_life(const libvirt::DomainInfo& domain);
    /// It has ended meanwhile.
    void cancel_next_life(const std::string& id);
    [[nodiscard]] bool is_ending(const std::string& id) const;
    [[nodiscard]] bool has_next_life(const std::string& id) const;

    // Waiting.
    /// Those whose memory will soon be free. A program over TCP is one of gantry-relay's: known
    /// once its worker has ended.
    [[nodiscard]] std::set<std::string> soon_free(const WaitsItself& waits_itself) const;
    /// Until they have ended. One that takes too long is not waited for again: a child of its
    /// program may have its socket, and the worker serves on.
    void await(std::set<std::string> sessions);
    /// Attempts again as long as that may help: while something ends, and `process` runs.
    Result<void> try_while_ending(const control::UniqueFd& process,
                                  const std::function<Result<void>()>& attempt,
                                  const WaitsItself& waits_itself);
    /// Nobody waits any more.
    void end_waits();

private:
    struct Guest {
        std::uint32_t uid = 0;
        control::UniqueFd process;  ///< As GuestRequest's; none before it is admitted.
        bool is_waited_for = true;  ///< Once its end has taken too long, no more.
    };
    struct Closing {
        std::uint32_t sessions = 0;
        std::optional<std::uint32_t> uid{};  ///< Of a program of this host.
        bool is_waited_for = true;           ///< As in Guest.
        std::optional<libvirt::DomainInfo> next_life;
    };

    [[nodiscard]] bool is_waited_for(const std::string& id) const GANTRY_REQUIRES(mutex_);
    bool await_close(MutexLock& lock, std::uint64_t before) GANTRY_REQUIRES(mutex_);
    std::uint64_t closed_count() const;

    mutable Mutex mutex_;
    CondVar closed_;
    std::map<std::string, Guest> guests_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::string, Closing> closing_ GANTRY_GUARDED_BY(mutex_);
    std::uint64_t closed_count_ GANTRY_GUARDED_BY(mutex_) = 0;
    bool waits_end_ GANTRY_GUARDED_BY(mutex_) = false;
};

}  // namespace gantry::supervisor
