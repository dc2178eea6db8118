#include "host-daemon/supervisor/sessions/region_watcher.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace gantry::supervisor {

RegionWatcher::RegionWatcher(std::shared_ptr<Session> session, std::chrono::milliseconds interval,
                             WorkerHandlers handlers, const std::vector<Claim>& seen)
    : session_(std::move(session)), interval_(interval), handlers_(std::move(handlers)) {
    for (const auto& worker : session_->workers().all()) {
        const PartChannel at = channel_of(worker->part());
        seen_[at.channel] = std::max(seen_[at.channel], at.generation);
    }
    for (const Claim& claim : seen) {
        seen_[claim.channel] = std::max(seen_[claim.channel], claim.generation);
    }
    thread_ = std::thread([this] { run(); });
}

RegionWatcher::~RegionWatcher() {
    stopping_ = true;
    thread_.join();
}

void RegionWatcher::run() {
    while (!stopping_) {
        if (session_->serves()) {
            poll();
        }
        std::this_thread::sleep_for(is_lively() ? interval_ : std::max(interval_, kIdleInterval));
    }
}

bool RegionWatcher::is_lively() {
    const auto now = std::chrono::steady_clock::now();
    if (!session_->workers().empty()) {
        lively_until_ = now + kLively;
    }
    return now < lively_until_;
}

void RegionWatcher::poll() {
    const auto claims = session_->claims();
    if (claims) {
        // Whoever begins may want the memory of one that was killed.
        close_ended(*claims);
        open_new(*claims);
        last_error_.clear();
    } else if (claims.error().text != last_error_) {  // say it once, not every few ms
        last_error_ = claims.error().text;
        complain(claims.error());
    }
}

/// The text may have numbers in it that the guest writes, ever others.
void RegionWatcher::complain(const Error& error) {
    if (!lines_.take()) {
        return;
    }
    const std::uint64_t left_out = lines_.take_refused();
    spdlog::warn("session {}: {}{}", session_->info().id, error.to_string(),
                 left_out == 0 ? "" : fmt::format(" ({} such lines were left out)", left_out));
}

void RegionWatcher::close_ended(const std::vector<Claim>& claims) {
    for (const Claim& claim : claims) {
        if (stopping_) {
            return;
        }
        if (claim.state == wire::ClaimState::kClosing && claim.generation != 0 &&
            claim.generation != closed_[claim.channel]) {
            // Also one whose process ended on the way here: what the other host wrote about it has
            // not come along, and nobody may take the channel before it is said.
            session_->close_channel(part_of({claim.channel, claim.generation}));
            seen_[claim.channel] = claim.generation;
            closed_[claim.channel] = claim.generation;
        }
    }
}

void RegionWatcher::open_new(const std::vector<Claim>& claims) {
    for (const Claim& claim : claims) {
        if (stopping_) {
            return;
        }
        const bool is_new = claim.generation != 0 && claim.generation != seen_[claim.channel];
        if (claim.state == wire::ClaimState::kOpen && is_new) {
            if (session_->source().is_frozen()) {
                continue;  // Whoever serves the session next finds the claim.
            }
            if (!starts_.take()) {
                return;  // It waits; the next look finds it again.
            }
            lively_until_ = std::chrono::steady_clock::now() + kLively;
            // The process that held the channel before has gone, if it did not say so.
            session_->close_channel(part_of({claim.channel, seen_[claim.channel]}));
            const auto opened = session_->open_channel(claim, handlers_, std::nullopt, 0);
            if (!opened && opened.error().reason == kSessionFrozen) {
                continue;  // Meanwhile.
            }
            spdlog::info("session {}: process {} of the guest opens channel {}",
                         session_->info().id, claim.guest_pid, claim.channel);
            seen_[claim.channel] = claim.generation;
            if (!opened) {
                spdlog::error("session {}: {}", session_->info().id, opened.error().to_string());
                session_->refuse(claim, opened.error());
            }
        }
    }
}

}  // namespace gantry::supervisor
