// Registry: sessions of programs of this host.
//
// A process that ends natively has given its device memory back before its parent hears of its end.
// Here it is given back by a worker that ends a little later, so a program that starts meanwhile
// waits for it: `a && b`, each with most of the GPU, runs.
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "host-daemon/supervisor/registry.h"

namespace gantry::supervisor {
namespace {

/// A worker that is asked to end is killed after 5 s (Worker::end).
constexpr std::chrono::seconds kEndAwaited{6};

bool has_exited(const control::UniqueFd& process) {
    pollfd entry{process.get(), POLLIN, 0};
    return process.valid() && ::poll(&entry, 1, 0) == 1;
}

}  // namespace

/// Those whose memory will soon be free. Not one whose end waits for a migration's, nor a suspended
/// one, which has none.
std::set<std::string> Registry::ending_sessions() {
    const std::lock_guard lock(mutex_);
    std::set<std::string> out = closing_;
    for (const auto& [id, guest] : local_guests_) {
        const auto found = sessions_.find(id);
        if (found != sessions_.end() && has_exited(guest.process) &&
            !found->second.session->suspended() && found->second.driver->status().serves) {
            out.insert(id);
        }
    }
    return out;
}

/// A program whose worker does not notice its end (a child has inherited its socket) is waited for
/// once only.
void Registry::await_end(const std::set<std::string>& sessions) {
    std::unique_lock lock(mutex_);
    const auto is_here = [this](const std::string& id) {
        return sessions_.contains(id) || closing_.contains(id);
    };
    if (session_closed_.wait_for(lock, kEndAwaited, [&] {
            return std::none_of(sessions.begin(), sessions.end(), is_here);
        })) {
        return;
    }
    for (const std::string& id : sessions) {
        if (const auto guest = local_guests_.find(id); guest != local_guests_.end()) {
            spdlog::warn("session {}: its program has ended, its worker serves on", id);
            guest->second.process.reset();
        }
    }
}

Result<void> Registry::open_local(const GuestRequest& request, GuestLink link) {
    SessionInfo info;
    info.id = "local-" + std::to_string(request.pid) + "-" +
              std::to_string(random_seed().low % 1'000'000);
    info.kind = SessionKind::kLocal;
    info.quota_bytes = static_cast<std::uint64_t>(config_.guest.memory_mib) << 20;
    info.region_bytes = link.region.bytes();
    const std::set<std::string> ending = ending_sessions();
    if (auto reserved = reserve_memory(info.id, info.quota_bytes); !reserved) {
        if (ending.empty()) {
            return reserved;
        }
        await_end(ending);
        GANTRY_TRY(reserve_memory(info.id, info.quota_bytes));
    }
    const auto give_up = [&](const Error& error) {
        const std::lock_guard lock(mutex_);
        promised_bytes_.erase(info.id);
        return error;
    };
    const auto epoch = epoch_for_new_life(info.id);
    if (!epoch) {
        return give_up(epoch.error());
    }
    {
        const std::lock_guard lock(mutex_);
        local_guests_[info.id] = {request.uid, control::UniqueFd{static_cast<int>(::syscall(
                                                   SYS_pidfd_open, request.pid, 0))}};
    }
    const auto session = open_session(info, *epoch, true);
    const Claim claim{0, wire::ClaimState::kOpen, request.pid, 1};
    auto opened = session->open_channel(claim, handlers_for(info.id), std::move(link),
                                        request.table_hash);
    if (!opened) {
        housekeeping_.post([this, id = info.id] { close_session(id, wire::WorkerState::kNone); });
        return give_up(opened.error());
    }
    await_end(ending);  // Most of it passed while the worker started.
    return {};
}

}  // namespace gantry::supervisor
