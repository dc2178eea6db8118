#include "host-daemon/supervisor/registry/ending_sessions.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>

#include <chrono>

namespace gantry::supervisor {
namespace {

using Clock = std::chrono::steady_clock;

/// Without any session's end: longer than Worker::end waits for one that does not end by itself.
constexpr std::chrono::seconds kEndAwaited{6};
/// A program waits for 20 s to be accepted (GANTRY_CONNECT_TIMEOUT_MS), for its worker too.
constexpr std::chrono::seconds kMostAwaited{12};

bool has_exited(const control::UniqueFd& process) {
    pollfd entry{process.get(), POLLIN, 0};
    return process.valid() && ::poll(&entry, 1, 0) == 1;
}

}  // namespace

Result<void> EndingSessions::add_guest(const std::string& id, std::uint32_t uid,
                                       const GuestLimits& limits) {
    const MutexLock lock(mutex_);
    std::size_t of_user = 0;
    std::size_t of_all = guests_.size();
    for (const auto& [other, guest] : guests_) {
        of_user += guest.uid == uid ? 1 : 0;
    }
    for (const auto& [other, closing] : closing_) {
        of_user += closing.uid == uid ? 1 : 0;
        of_all += closing.uid ? 1 : 0;
    }
    if (of_user >= limits.of_user || of_all >= limits.of_all) {
        const bool is_users = of_user >= limits.of_user;
        return Error{Code::kUnavailable, "guest.sessions",
                     fmt::format("{} programs{} are served here, as many as {} allows",
                                 is_users ? of_user : of_all,
                                 is_users ? fmt::format(" of user {}", uid) : std::string(),
                                 is_users ? "guest.sessions_of_user" : "guest.sessions_max")};
    }
    guests_[id] = {uid, {}};
    return {};
}

void EndingSessions::admit_guest(const std::string& id, control::UniqueFd process) {
    const MutexLock lock(mutex_);
    if (const auto guest = guests_.find(id); guest != guests_.end()) {
        guest->second.process = std::move(process);
    }
}

void EndingSessions::forget_guest(const std::string& id) {
    const MutexLock lock(mutex_);
    guests_.erase(id);
}

std::optional<std::uint32_t> EndingSessions::user_of(const std::string& id) const {
    const MutexLock lock(mutex_);
    const auto guest = guests_.find(id);
    return guest == guests_.end() ? std::nullopt : std::optional(guest->second.uid);
}

void EndingSessions::begin(const std::string& id) {
    const MutexLock lock(mutex_);
    Closing& closing = closing_[id];
    ++closing.sessions;
    if (const auto guest = guests_.find(id); guest != guests_.end()) {
        closing.uid = guest->second.uid;
        guests_.erase(guest);
    }
}

std::optional<libvirt::DomainInfo> EndingSessions::end(const std::string& id) {
    std::optional<libvirt::DomainInfo> next_life;
    {
        const MutexLock lock(mutex_);
        const auto closing = closing_.find(id);
        if (--closing->second.sessions == 0) {
            next_life = std::move(closing->second.next_life);
            closing_.erase(closing);
        }
        ++closed_count_;
    }
    closed_.notify_all();
    return next_life;
}

bool EndingSessions::set_next_life(const libvirt::DomainInfo& domain) {
    const MutexLock lock(mutex_);
    const auto closing = closing_.find(domain.uuid);
    if (closing == closing_.end()) {
        return false;
    }
    closing->second.next_life = domain;
    return true;
}

void EndingSessions::cancel_next_life(const std::string& id) {
    const MutexLock lock(mutex_);
    if (const auto closing = closing_.find(id); closing != closing_.end()) {
        closing->second.next_life.reset();
    }
}

bool EndingSessions::is_ending(const std::string& id) const {
    const MutexLock lock(mutex_);
    return closing_.contains(id);
}

bool EndingSessions::has_next_life(const std::string& id) const {
    const MutexLock lock(mutex_);
    const auto closing = closing_.find(id);
    return closing != closing_.end() && closing->second.next_life.has_value();
}

std::set<std::string> EndingSessions::soon_free(const WaitsItself& waits_itself) const {
    std::set<std::string> out;
    std::set<std::string> exited;
    {
        const MutexLock lock(mutex_);
        for (const auto& [id, closing] : closing_) {
            if (closing.is_waited_for) {
                out.insert(id);
            }
        }
        for (const auto& [id, guest] : guests_) {
            if (has_exited(guest.process)) {
                exited.insert(id);
            }
        }
    }
    std::erase_if(exited, waits_itself);
    out.merge(exited);
    return out;
}

std::uint64_t EndingSessions::closed_count() const {
    const MutexLock lock(mutex_);
    return closed_count_;
}

/// False when no session has ended for so long, or gantryd ends.
bool EndingSessions::await_close(MutexLock& lock, std::uint64_t before) {
    return closed_.wait_for(lock, kEndAwaited, [&]() GANTRY_REQUIRES(mutex_) {
        return waits_end_ || closed_count_ != before;
    }) && !waits_end_;
}

Result<void> EndingSessions::try_while_ending(const control::UniqueFd& process,
                                              const std::function<Result<void>()>& attempt,
                                              const WaitsItself& waits_itself) {
    const auto deadline = Clock::now() + kMostAwaited;
    for (;;) {
        if (has_exited(process)) {
            return Error{Code::kAborted, "guest.gone", "the program has ended"};
        }
        const std::uint64_t before = closed_count();  // One that ends from here on is not missed.
        auto done = attempt();
        if (done || soon_free(waits_itself).empty() || Clock::now() > deadline) {
            return done;
        }
        MutexLock lock(mutex_);
        if (!await_close(lock, before)) {
            return done;
        }
    }
}

bool EndingSessions::is_waited_for(const std::string& id) const {
    if (const auto guest = guests_.find(id); guest != guests_.end()) {
        return guest->second.is_waited_for;
    }
    const auto closing = closing_.find(id);
    return closing != closing_.end() && closing->second.is_waited_for;
}

void EndingSessions::await(std::set<std::string> sessions) {
    const auto deadline = Clock::now() + kMostAwaited;
    MutexLock lock(mutex_);
    for (;;) {
        std::erase_if(sessions, [this](const std::string& id)
                                    GANTRY_REQUIRES(mutex_) { return !is_waited_for(id); });
        if (sessions.empty() || Clock::now() > deadline) {
            return;
        }
        if (!await_close(lock, closed_count_)) {
            break;
        }
    }
    for (const std::string& id : waits_end_ ? std::set<std::string>() : sessions) {
        spdlog::warn("session {}: its program has ended, its worker has not yet", id);
        if (const auto closing = closing_.find(id); closing != closing_.end()) {
            closing->second.is_waited_for = false;
        }
        if (const auto guest = guests_.find(id); guest != guests_.end()) {
            guest->second.is_waited_for = false;
        }
    }
}

void EndingSessions::end_waits() {
    {
        const MutexLock lock(mutex_);
        waits_end_ = true;
    }
    closed_.notify_all();
}

}  // namespace gantry::supervisor
