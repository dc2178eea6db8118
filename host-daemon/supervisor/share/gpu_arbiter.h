// GpuArbiter: decides for the workers of one GPU (host-daemon/scheduling), by shared memory.
//
// A session may have several workers: they are one client of the policy, which has work when one
// of them has, and all get its verdict. The thread sleeps until a claim changes or the policy is
// due; while several sessions have work it looks every kLook instead, and nobody has to wake it.
//
// As long as no session here was given a share of its own everybody is open.
//
// Owner: gantryd, one for each GPU. Threads: any. Failure: `arbiter.page`; a worker without a seat
// launches as it likes. Cost: nothing while fewer than two sessions are here.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "host-daemon/scheduling/arbiter.h"
#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/control/arbiter_page.h"
#include "proto/control/unique_fd.h"

namespace gantry::supervisor {

class GpuArbiter {
public:
    static Result<std::unique_ptr<GpuArbiter>> start(const scheduling::Settings& settings);
    ~GpuArbiter();
    GpuArbiter(const GpuArbiter&) = delete;
    GpuArbiter& operator=(const GpuArbiter&) = delete;

    /// What a worker gets.
    struct Seat {
        std::uint32_t slot = 0;
        control::UniqueFd page;
        control::UniqueFd claim;
        control::UniqueFd bell;
    };
    /// For a worker of the session.
    Result<Seat> join(const std::string& session);
    /// The worker has ended.
    void leave(std::uint32_t slot);
    /// The session's own share; nothing: it has none. Also of one that has no worker yet.
    void set_share(const std::string& session, std::optional<scheduling::Share> share);
    /// The kill switch.
    void set_enabled(bool enabled);

    struct Standing {
        std::string session;
        scheduling::Arbiter::Standing standing;
    };
    struct Status {
        bool is_enabled = true;
        bool arbitrates = false;  ///< There is something to decide.
        std::vector<Standing> sessions;
    };
    [[nodiscard]] Status status();

private:
    struct Place {
        std::string session;
        control::ClaimPage* claim = nullptr;
        std::shared_ptr<control::UniqueFd> bell;  ///< Also of the thread while it sleeps.
    };
    struct Client {
        scheduling::ClientId id = 0;
        std::uint32_t places = 0;
    };
    using Places = std::map<std::uint32_t, Place>;  // By slot.

    explicit GpuArbiter(const scheduling::Settings& settings)
        : settings_(settings), policy_(settings) {}
    Result<void> make_page();
    void run();
    void sleep(scheduling::Time until);
    void look(scheduling::Time now) GANTRY_REQUIRES(mutex_);
    void publish() GANTRY_REQUIRES(mutex_);
    [[nodiscard]] bool is_contended() const GANTRY_REQUIRES(mutex_);
    [[nodiscard]] bool arbitrates() const GANTRY_REQUIRES(mutex_);
    [[nodiscard]] scheduling::Share share_of(const std::string& session) const
        GANTRY_REQUIRES(mutex_);
    void ring();

    const scheduling::Settings settings_;
    control::UniqueFd page_file_;
    control::ArbiterPage* page_ = nullptr;
    control::UniqueFd bell_;  ///< Of this gantryd's own changes.
    Mutex mutex_;
    scheduling::Arbiter policy_ GANTRY_GUARDED_BY(mutex_);
    Places places_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::string, Client> clients_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::string, scheduling::Share> shares_ GANTRY_GUARDED_BY(mutex_);
    scheduling::ClientId last_id_ GANTRY_GUARDED_BY(mutex_) = 0;
    bool is_enabled_ GANTRY_GUARDED_BY(mutex_) = true;
    bool is_stopping_ GANTRY_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace gantry::supervisor
