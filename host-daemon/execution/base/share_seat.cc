#include "host-daemon/execution/base/share_seat.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proto/wire/wait.h"

namespace gantry::worker {
namespace {

using control::ArbiterPage;
using control::ClaimPage;
using scheduling::Permit;
using scheduling::Time;
using scheduling::Verdict;

Result<void*> map(const control::UniqueFd& file, int protection) {
    void* const mapped =
        mmap(nullptr, control::kArbiterPageBytes, protection, MAP_SHARED, file.get(), 0);
    if (mapped == MAP_FAILED) {
        return Error{Code::kInternal, "worker.arbiter_page", std::strerror(errno)};
    }
    return mapped;
}

std::uint32_t word_of(const Verdict& verdict) {
    return (verdict.serial << ArbiterPage::kPermitBits) |
           static_cast<std::uint32_t>(verdict.permit);
}

}  // namespace

Result<std::unique_ptr<ShareSeat>> ShareSeat::join(std::uint32_t slot,
                                                   const control::UniqueFd& page,
                                                   const control::UniqueFd& claim,
                                                   control::UniqueFd bell) {
    if (slot >= ArbiterPage::kSlots) {
        return Error{Code::kInvalidArgument, "worker.protocol", "no slot of the arbiter page"};
    }
    std::unique_ptr<ShareSeat> seat(new ShareSeat());
    GANTRY_ASSIGN(const void* const verdicts, map(page, PROT_READ));
    seat->page_ = static_cast<const ArbiterPage*>(verdicts);
    GANTRY_ASSIGN(void* const claims, map(claim, PROT_READ | PROT_WRITE));
    seat->claim_ = static_cast<ClaimPage*>(claims);
    seat->verdict_ = &seat->page_->slots[slot].verdict;
    seat->until_ = &seat->page_->slots[slot].until_ns;
    seat->bell_ = std::move(bell);
    return seat;
}

ShareSeat::~ShareSeat() {
    if (claim_ != nullptr) {
        munmap(claim_, control::kArbiterPageBytes);
    }
    if (page_ != nullptr) {
        munmap(const_cast<ArbiterPage*>(page_), control::kArbiterPageBytes);
    }
}

Verdict ShareSeat::verdict() const {
    const std::uint32_t word = verdict_->load(std::memory_order_acquire);
    const std::uint32_t permit = word & ((1U << ArbiterPage::kPermitBits) - 1);
    return {permit <= static_cast<std::uint32_t>(Permit::kFill) ? static_cast<Permit>(permit)
                                                                : Permit::kHold,
            word >> ArbiterPage::kPermitBits,
            Time{static_cast<Time::rep>(until_->load(std::memory_order_relaxed))}};
}

void ShareSeat::wait(const Verdict& seen, Time at_most) const {
    wire::futex_wait(verdict_, word_of(seen), static_cast<std::uint64_t>(at_most.count()));
}

Time ShareSeat::window() const {
    return Time{static_cast<Time::rep>(page_->window_ns.load(std::memory_order_relaxed))};
}

Time ShareSeat::patience() const {
    return Time{static_cast<Time::rep>(page_->patience_ns.load(std::memory_order_relaxed))};
}

void ShareSeat::tell(const scheduling::Claim& claim) {
    if (claim == told_) {
        return;
    }
    told_ = claim;
    claim_->next_ns.store(static_cast<std::uint64_t>(claim.next.count()),
                          std::memory_order_relaxed);
    claim_->gap_ns.store(static_cast<std::uint64_t>(claim.gap.count()), std::memory_order_relaxed);
    claim_->state.store((claim.wants ? ClaimPage::kWants : 0) |
                        (claim.runs ? ClaimPage::kRuns : 0));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (page_->sleeps.load() != 0) {
        const std::uint64_t one = 1;
        (void)!::write(bell_.get(), &one, sizeof(one));
    }
}

bool LaunchTurn::is_let_through(const Verdict& verdict, std::optional<Time> predicted, Time now) {
    const Time cost = window_.cost_of(predicted);
    switch (verdict.permit) {
        case Permit::kOpen:
        case Permit::kTold: return true;
        case Permit::kWindow: return window_.may_add(cost);
        case Permit::kOnce:
            if (verdict.serial != serial_in_use_ && window_.empty()) {
                serial_in_use_ = verdict.serial;  // Its window begins with this launch.
                return true;
            }
            // What has been added to the window stays in it until all has ended.
            return verdict.serial == serial_in_use_ && !window_.empty() && window_.may_add(cost);
        case Permit::kFill:
            return predicted && window_.may_add(cost) &&
                   cost <= verdict.until - now - window_.queued();
        case Permit::kHold: return false;
    }
    return false;
}

bool LaunchTurn::may_launch(std::optional<Time> cost, Time now) {
    const Verdict verdict = seat_.verdict();
    has_given_up_ = has_given_up_ && verdict == last_;
    if (has_given_up_ || is_let_through(verdict, cost, now)) {
        claim_.wants = false;
        return true;
    }
    if (!claim_.wants || verdict != last_) {
        waits_since_ = now;
    }
    last_ = verdict;
    claim_.wants = true;
    claim_.next = cost.value_or(Time{});
    seat_.tell(claim_);
    // Held, and nobody has decided anything: whoever should is gone.
    has_given_up_ = verdict.permit == Permit::kHold && now - waits_since_ > seat_.patience();
    return has_given_up_;
}

void LaunchTurn::launched(std::optional<Time> cost) {
    window_.add(window_.cost_of(cost));
    claim_.runs = true;
    if (!seat_.is_open()) {
        seat_.tell(claim_);
    }
}

void LaunchTurn::ended(std::optional<Time> cost) {
    window_.end(window_.cost_of(cost));
    claim_.runs = !window_.empty();
    if (!claim_.runs) {
        seat_.tell(claim_);
    }
}

void LaunchTurn::has_no_more() {
    claim_.wants = false;
    seat_.tell(claim_);
}

}  // namespace gantry::worker
