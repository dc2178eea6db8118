// ShareSeat: a worker's place at the arbiter of its GPU (proto/control/arbiter_page.h).
//
// Invariant: the verdict's page is mapped for reading only. Threads: one; the verdict, any.
// Failure: `worker.arbiter_page`; a worker without a seat launches as it likes. Cost: a load for
// the verdict; a store and a fence for a claim that has changed, and a system call where the
// arbiter sleeps.
#pragma once

#include <memory>
#include <optional>

#include "host-daemon/scheduling/launch_times.h"
#include "host-daemon/scheduling/launch_window.h"
#include "host-daemon/scheduling/share.h"
#include "proto/base/result.h"
#include "proto/control/arbiter_page.h"
#include "proto/control/unique_fd.h"

namespace gantry::worker {

class ShareSeat {
public:
    static Result<std::unique_ptr<ShareSeat>> join(std::uint32_t slot,
                                                   const control::UniqueFd& page,
                                                   const control::UniqueFd& claim,
                                                   control::UniqueFd bell);
    ~ShareSeat();
    ShareSeat(const ShareSeat&) = delete;
    ShareSeat& operator=(const ShareSeat&) = delete;

    [[nodiscard]] const std::atomic<std::uint32_t>& word() const { return *verdict_; }
    [[nodiscard]] bool is_open() const { return verdict_->load(std::memory_order_relaxed) == 0; }
    [[nodiscard]] scheduling::Verdict verdict() const;
    /// Until the verdict is another one than `seen`, or for so long.
    void wait(const scheduling::Verdict& seen, scheduling::Time at_most) const;
    void tell(const scheduling::Claim& claim);
    [[nodiscard]] scheduling::Time window() const;
    [[nodiscard]] scheduling::Time patience() const;

private:
    ShareSeat() = default;

    const control::ArbiterPage* page_ = nullptr;
    control::ClaimPage* claim_ = nullptr;
    const std::atomic<std::uint32_t>* verdict_ = nullptr;
    const std::atomic<std::uint64_t>* until_ = nullptr;
    control::UniqueFd bell_;
    scheduling::Claim told_;
};

/// LaunchTurn: whether a worker may give its next launch to the driver now, and what it claims.
/// Threads: one.
class LaunchTurn {
public:
    explicit LaunchTurn(ShareSeat& seat) : seat_(seat), window_(seat.window()) {}

    /// `cost`: of the launch, if it is known. False: it is asked again, soon or after
    /// ShareSeat::wait(). Who has waited for too long for any verdict launches until there is one.
    bool may_launch(std::optional<scheduling::Time> cost, scheduling::Time now);
    void launched(std::optional<scheduling::Time> cost);
    void ended(std::optional<scheduling::Time> cost);
    /// Nothing waits to be launched any more.
    void has_no_more();
    /// For how long nothing comes when what was launched has ended; 0: not known.
    void expects(scheduling::Time gap) { claim_.gap = gap; }
    [[nodiscard]] bool waits() const { return claim_.wants; }

private:
    bool is_let_through(const scheduling::Verdict& verdict, std::optional<scheduling::Time> cost,
                        scheduling::Time now);

    ShareSeat& seat_;
    scheduling::LaunchWindow window_;
    scheduling::Claim claim_;
    scheduling::Verdict last_;
    scheduling::Time waits_since_{};
    std::uint32_t serial_in_use_ = 0;
    bool has_given_up_ = false;  ///< For as long as the verdict stays.
};

}  // namespace gantry::worker
