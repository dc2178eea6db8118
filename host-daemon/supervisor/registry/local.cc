// Registry: sessions of programs of this host.
//
// A process that ends natively has given its device memory back before its parent hears of its end.
// Here it is given back by a worker that ends a little later, so a program that starts meanwhile
// waits for it: `a && b`, each with most of the GPU, runs.
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <set>

#include "host-daemon/supervisor/registry/registry.h"

namespace gantry::supervisor {
namespace {

/// Without any session's end: longer than Worker::end waits for one that does not end by itself.
constexpr std::chrono::seconds kEndAwaited{6};
/// A program waits for 20 s to be accepted (GANTRY_CONNECT_TIMEOUT_MS), for its worker too.
constexpr std::chrono::seconds kMostAwaited{12};

bool has_exited(const control::UniqueFd& process) {
    pollfd entry{process.get(), POLLIN, 0};
    return process.valid() && ::poll(&entry, 1, 0) == 1;
}

}  // namespace

/// Those whose memory will soon be free. Not one whose end waits for a migration's, nor a suspended
/// one, which has none. A program over TCP is one of gantry-relay's: known once its worker has
/// ended.
std::set<std::string> Registry::ending_sessions() {
    const std::lock_guard lock(mutex_);
    std::set<std::string> out;
    for (const auto& [id, closing] : closing_) {
        if (closing.is_waited_for) {
            out.insert(id);
        }
    }
    for (const auto& [id, guest] : local_guests_) {
        const auto found = sessions_.find(id);
        const bool waits_itself =
            found != sessions_.end() &&
            (found->second.session->suspended() || !found->second.driver->status().serves);
        if (has_exited(guest.process) && !waits_itself) {
            out.insert(id);
        }
    }
    return out;
}

/// False when no session has ended for so long, or gantryd ends.
bool Registry::await_close(std::unique_lock<std::recursive_mutex>& lock) {
    const std::uint64_t before = closed_count_;
    return session_closed_.wait_for(lock, kEndAwaited, [&] {
        return waits_end_ || closed_count_ != before;
    }) && !waits_end_;
}

/// Waits while that may help.
Result<void> Registry::reserve_when_free(const std::string& id, std::uint64_t bytes,
                                         const control::UniqueFd& process) {
    const auto deadline = std::chrono::steady_clock::now() + kMostAwaited;
    std::unique_lock lock(mutex_);
    for (;;) {
        if (has_exited(process)) {
            return Error{Code::kAborted, "guest.gone", "the program has ended"};
        }
        auto reserved = book_.reserve(id, usual_device(), bytes);
        if (reserved || ending_sessions().empty() || std::chrono::steady_clock::now() > deadline ||
            !await_close(lock)) {
            return reserved;
        }
    }
}

/// One that takes too long is not waited for again: a child of its program may have its socket, and
/// the worker serves on.
void Registry::await_end(std::set<std::string> sessions) {
    const auto deadline = std::chrono::steady_clock::now() + kMostAwaited;
    std::unique_lock lock(mutex_);
    for (;;) {
        std::erase_if(sessions, [this](const std::string& id) {
            const auto guest = local_guests_.find(id);
            const auto closing = closing_.find(id);
            return guest != local_guests_.end()
                       ? !guest->second.is_waited_for
                       : closing == closing_.end() || !closing->second.is_waited_for;
        });
        if (sessions.empty() || std::chrono::steady_clock::now() > deadline) {
            return;
        }
        if (!await_close(lock)) {
            break;
        }
    }
    for (const std::string& id : waits_end_ ? std::set<std::string>() : sessions) {
        spdlog::warn("session {}: its program has ended, its worker has not yet", id);
        if (const auto closing = closing_.find(id); closing != closing_.end()) {
            closing->second.is_waited_for = false;
        }
        if (const auto guest = local_guests_.find(id); guest != local_guests_.end()) {
            guest->second.is_waited_for = false;
        }
    }
}

void Registry::end_waits() {
    {
        const std::lock_guard lock(mutex_);
        waits_end_ = true;
    }
    session_closed_.notify_all();
}

Result<void> Registry::open_local(GuestRequest request, GuestLink link) {
    SessionInfo info;
    info.id = std::string(kLocalSession) + std::to_string(request.pid) + "-" +
              std::to_string(random_seed().low % 1'000'000);
    info.kind = SessionKind::kLocal;
    info.quota_bytes = static_cast<std::uint64_t>(config_.guest.memory_mib) << 20;
    info.region_bytes = link.region.bytes();
    const std::set<std::string> ending = ending_sessions();
    GANTRY_TRY(reserve_when_free(info.id, info.quota_bytes, request.process));
    {
        const std::lock_guard lock(mutex_);
        local_guests_[info.id] = {request.uid, std::move(request.process)};
    }
    const auto give_up = [&](const Error& error) {
        {
            const std::lock_guard lock(mutex_);
            book_.forget(info.id);
            local_guests_.erase(info.id);
        }
        session_closed_.notify_all();
        return error;
    };
    const auto epoch = epoch_for_new_life(info.id);
    if (!epoch) {
        return give_up(epoch.error());
    }
    const auto session = open_session(info, *epoch, true);
    const Claim claim{0, wire::ClaimState::kOpen, request.pid, 1};
    auto opened =
        session->open_channel(claim, handlers_for(info.id), std::move(link), request.table_hash);
    if (!opened) {
        housekeeping_.post([this, session] { close_session(session, wire::WorkerState::kNone); });
        return give_up(opened.error());
    }
    await_end(ending);  // Most of it passed while the worker started.
    return {};
}

}  // namespace gantry::supervisor
