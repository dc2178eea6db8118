// Looks at a VM's region for programs that come and go, by polling the guest's claims.
//
// One thread a VM: a poll is one or two preads. A claim is acted on once per generation. While the
// session does not serve (frozen, granted, arriving) claims are left alone.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "host-daemon/supervisor/sessions/session.h"

namespace gantry::supervisor {

class RegionWatcher {
public:
    RegionWatcher(std::shared_ptr<Session> session, std::chrono::milliseconds interval,
                  WorkerHandlers handlers);
    ~RegionWatcher();
    RegionWatcher(const RegionWatcher&) = delete;
    RegionWatcher& operator=(const RegionWatcher&) = delete;

private:
    void run();
    void close_ended(const std::vector<Claim>& claims);
    void open_new(const std::vector<Claim>& claims);

    std::shared_ptr<Session> session_;
    const std::chrono::milliseconds interval_;
    WorkerHandlers handlers_;
    std::map<std::uint32_t, std::uint64_t> seen_;    ///< Newest generation acted on, by channel.
    std::map<std::uint32_t, std::uint64_t> closed_;  ///< ... and newest one said to be closed.
    std::string last_error_;
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace gantry::supervisor
