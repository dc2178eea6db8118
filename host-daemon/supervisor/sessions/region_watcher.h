// Looks at a VM's region for programs that come and go, by polling the guest's claims.
//
// One thread a VM: a poll is one or two preads. It polls every `interval` while a program runs and
// for kLively after, else every kIdleInterval: a VM that does nothing costs next to nothing. A
// claim is acted on once per generation. While the session does not serve (frozen, granted,
// arriving) claims are left alone.
//
// What a guest writes starts no more workers, and makes no more lines in the log, than a few at
// once and then some a second; who comes above that waits.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "host-daemon/supervisor/base/token_bucket.h"
#include "host-daemon/supervisor/sessions/session.h"

namespace gantry::supervisor {

class RegionWatcher {
public:
    static constexpr std::chrono::milliseconds kIdleInterval{100};
    static constexpr std::chrono::seconds kLively{1};
    static constexpr double kStartsAtOnce = 16;
    static constexpr double kStartsPerSecond = 2;
    static constexpr double kLinesAtOnce = 10;
    static constexpr double kLinesPerSecond = 1;

    /// `seen`: claims that are none of its business, beside those of the session's workers.
    RegionWatcher(std::shared_ptr<Session> session, std::chrono::milliseconds interval,
                  WorkerHandlers handlers, const std::vector<Claim>& seen = {});
    ~RegionWatcher();
    RegionWatcher(const RegionWatcher&) = delete;
    RegionWatcher& operator=(const RegionWatcher&) = delete;

private:
    void run();
    void poll();
    /// Whether a program runs or one came or went a moment ago.
    [[nodiscard]] bool is_lively();
    void complain(const Error& error);
    void close_ended(const std::vector<Claim>& claims);
    void open_new(const std::vector<Claim>& claims);

    std::shared_ptr<Session> session_;
    const std::chrono::milliseconds interval_;
    WorkerHandlers handlers_;
    std::map<std::uint32_t, std::uint64_t> seen_;    ///< Newest generation acted on, by channel.
    std::map<std::uint32_t, std::uint64_t> closed_;  ///< ... and newest one said to be closed.
    std::string last_error_;
    TokenBucket starts_{kStartsAtOnce, kStartsPerSecond};
    TokenBucket lines_{kLinesAtOnce, kLinesPerSecond};
    std::chrono::steady_clock::time_point lively_until_{};
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace gantry::supervisor
