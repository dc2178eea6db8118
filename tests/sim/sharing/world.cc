#include "tests/sim/sharing/world.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <random>

#include "host-daemon/scheduling/launch_window.h"

namespace gantry::sharing_sim {
namespace {

using scheduling::Arbiter;
using scheduling::Claim;
using scheduling::ClientId;
using scheduling::LaunchWindow;
using scheduling::Permit;
using scheduling::Traffic;
using scheduling::Verdict;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Time kStep = microseconds{10};
constexpr Time kSlice = microseconds{1400};  // Of two processes' turns on an H100.
constexpr int kLateMax = 5;                  // Steps until the arbiter sees a claim.
constexpr std::size_t kDepth = 64;           // What a program queues at most.

class Session {
public:
    Session(const Load& load, const scheduling::Settings& settings, Mutation mutation)
        : load_(load),
          mutation_(mutation),
          window_(mutation == Mutation::kNoWindow ? Time{milliseconds{1000}} : settings.window) {}

    void step(Time now, Verdict verdict) {
        if (left_ == 0 && now >= next_burst_ && queue_.empty()) {
            left_ = load_.burst != 0 ? load_.burst : 1'000'000'000;
            burst_begun_ = now;
        }
        bool may_begin_window = verdict.serial != used_serial_;
        bool has_added = false;
        while (left_ != 0 && queue_.size() < kDepth) {
            if (!may(verdict, may_begin_window, has_added, now)) {
                break;
            }
            has_added = true;
            queue_.push_back(load_.kernel);
            window_.add(load_.kernel);
            --left_;
        }
        if (has_added && verdict.permit == Permit::kOnce) {
            used_serial_ = verdict.serial;
        }
        added_now = has_added;
        if (has_added || left_ == 0) {
            waits_since_ = now;
        }
        wait_max = std::max(wait_max, now - waits_since_);
    }

    /// The GPU works on it for so long; what it has not used.
    Time work(Time time, Time now) {
        while (!queue_.empty() && time > Time{}) {
            const Time part = std::min(time, queue_.front());
            queue_.front() -= part;
            time -= part;
            gpu_time += part;
            if (queue_.front() == Time{}) {
                queue_.pop_front();
                window_.end(load_.kernel);
                ++ended;
                if (queue_.empty() && left_ == 0) {
                    next_burst_ = now + load_.pause;
                    bursts.push_back(now + kStep - burst_begun_);
                }
            }
        }
        return time;
    }

    [[nodiscard]] Claim claim() const {
        Claim claim;
        claim.wants = left_ != 0 || load_.manner == Manner::kAlwaysWants;
        claim.runs = !queue_.empty() || load_.manner == Manner::kAlwaysRuns;
        claim.next = load_.manner == Manner::kLiesOfTimes ? Time{1} : load_.kernel;
        claim.gap = load_.manner == Manner::kLiesOfTimes ? Time{milliseconds{1000}} : load_.pause;
        return claim;
    }
    [[nodiscard]] bool has_queued() const { return !queue_.empty(); }
    [[nodiscard]] bool is_honest() const { return load_.manner == Manner::kHonest; }
    [[nodiscard]] Time queued() const { return window_.queued(); }
    [[nodiscard]] Time back_at() const { return next_burst_; }
    [[nodiscard]] const Load& load() const { return load_; }

    bool added_now = false;
    Time gpu_time{};
    Time wait_max{};
    std::uint64_t ended = 0;
    std::vector<Time> bursts;

private:
    [[nodiscard]] bool may(Verdict verdict, bool may_begin_window, bool has_added, Time now) const {
        if (load_.manner == Manner::kGreedy || mutation_ == Mutation::kNoHold) {
            return true;
        }
        switch (verdict.permit) {
            case Permit::kOpen:
            case Permit::kTold: return true;
            case Permit::kWindow: return window_.may_add(load_.kernel);
            case Permit::kOnce:
                return may_begin_window && (has_added || window_.empty()) &&
                       window_.may_add(load_.kernel);
            case Permit::kFill:
                if (load_.manner == Manner::kLiesOfTimes) {
                    return window_.empty();
                }
                return window_.may_add(load_.kernel) &&
                       (mutation_ == Mutation::kFillsBlindly ||
                        now + window_.queued() + load_.kernel <= verdict.until);
            case Permit::kHold: return false;
        }
        return false;
    }

    Load load_;
    Mutation mutation_;
    LaunchWindow window_;
    std::deque<Time> queue_;
    std::uint32_t left_ = 0;
    std::uint32_t used_serial_ = 0;
    Time next_burst_{};
    Time burst_begun_{};
    Time waits_since_{};
};

class World {
public:
    explicit World(const Schedule& what)
        : what_(what), random_(what.seed), arbiter_(settings_of(what)) {
        for (std::size_t i = 0; i < what.loads.size(); ++i) {
            sessions_.emplace_back(what.loads[i], what.settings, what.mutation);
            scheduling::Share share = what.loads[i].share;
            share.weight = what.mutation == Mutation::kNoWeights ? 100 : share.weight;
            arbiter_.add(static_cast<ClientId>(i), share, Traffic::kLaunches, Time{});
            seen_.emplace_back();
            due_.push_back(-1);
            busy_for_.push_back(0);
        }
        arbiter_.set_enabled(what.is_scheduled);
        arbiter_.step(Time{});
    }

    Outcome run() {
        Time next = Time{};
        for (Time now{}; now < what_.length && outcome_.violation.empty(); now += kStep) {
            for (std::size_t i = 0; i < sessions_.size(); ++i) {
                sessions_[i].step(now, arbiter_.verdict(static_cast<ClientId>(i)));
            }
            check(now);
            run_gpu(now);
            for (std::size_t i = 0; i < sessions_.size(); ++i) {
                busy_for_[i] = sessions_[i].has_queued() ? busy_for_[i] + 1 : 0;
            }
            if (tell_claims(now) || now >= next) {
                next = arbiter_.step(now);
            }
        }
        for (std::size_t i = 0; i < sessions_.size(); ++i) {
            outcome_.gpu_time.push_back(sessions_[i].gpu_time);
            outcome_.wait_max.push_back(sessions_[i].wait_max);
            outcome_.ended.push_back(sessions_[i].ended);
            outcome_.bursts.push_back(sessions_[i].bursts);
            outcome_.windows_once += arbiter_.standing(static_cast<ClientId>(i))->windows_once;
            outcome_.fills += arbiter_.standing(static_cast<ClientId>(i))->fills;
        }
        return outcome_;
    }

private:
    static scheduling::Settings settings_of(const Schedule& what) {
        scheduling::Settings settings = what.settings;
        if (what.mutation == Mutation::kNobodyStarves) {
            settings.starvation = milliseconds{1'000'000};
        }
        return settings;
    }

    bool tell_claims(Time now) {
        bool has_told = false;
        for (std::size_t i = 0; i < sessions_.size(); ++i) {
            const Claim claim = sessions_[i].claim();
            if (claim == seen_[i]) {
                due_[i] = -1;
                continue;
            }
            if (due_[i] < 0) {
                due_[i] = static_cast<int>(random_() % (kLateMax + 1));
            }
            if (due_[i]-- == 0) {
                seen_[i] = claim;
                arbiter_.set_claim(static_cast<ClientId>(i), claim, now);
                has_told = true;
            }
        }
        return has_told;
    }

    /// One process after the other, each for a slice while it has work.
    void run_gpu(Time now) {
        Time time = kStep;
        if (!sessions_[on_gpu_].has_queued() || now >= slice_ends_) {
            for (std::size_t i = 1; i <= sessions_.size(); ++i) {
                const std::size_t other = (on_gpu_ + i) % sessions_.size();
                if (sessions_[other].has_queued()) {
                    if (other != on_gpu_) {
                        switching_ = what_.settings.switch_cost;
                    }
                    on_gpu_ = other;
                    slice_ends_ = now + switching_ + kSlice;
                    break;
                }
            }
        }
        const Time lost = std::min(time, switching_);
        switching_ -= lost;
        sessions_[on_gpu_].work(time - lost, now);
    }

    void complain(Time now, std::size_t session, const std::string& what) {
        outcome_.violation = "at " + std::to_string(now / microseconds{1}) + " us session " +
                             std::to_string(session) + ": " + what;
    }

    /// By one that has had work for longer than the arbiter can have missed it.
    [[nodiscard]] bool is_outranked(const Session& session) const {
        for (std::size_t i = 0; i < sessions_.size(); ++i) {
            if (sessions_[i].load().share.priority > session.load().share.priority &&
                busy_for_[i] > kLateMax + 2) {
                return true;
            }
        }
        return false;
    }

    /// An honest one that fills launches nothing that outlasts an honest holder's absence.
    [[nodiscard]] bool outlasts_gap(const Session& session, Time now) const {
        for (std::size_t i = 0; i < sessions_.size(); ++i) {
            const bool holds = arbiter_.standing(static_cast<ClientId>(i))->holds;
            if (holds && sessions_[i].is_honest() && &sessions_[i] != &session &&
                now + session.queued() > sessions_[i].back_at()) {
                return true;
            }
        }
        return false;
    }

    void check(Time now) {
        int fillers = 0;
        for (std::size_t i = 0; i < sessions_.size(); ++i) {
            const Session& session = sessions_[i];
            const Permit permit = arbiter_.verdict(static_cast<ClientId>(i)).permit;
            outcome_.holds += permit == Permit::kHold ? 1 : 0;
            fillers += permit == Permit::kFill ? 1 : 0;
            if (fillers > 1) {
                return complain(now, i, "fills a gap beside another one");
            }
            if (!session.is_honest() || !what_.is_scheduled) {
                continue;
            }
            if (session.added_now && permit != Permit::kOnce && is_outranked(session)) {
                return complain(now, i, "launched while one above it had work");
            }
            if (session.added_now && permit == Permit::kFill && outlasts_gap(session, now)) {
                return complain(now, i, "fills more than the gap");
            }
            const bool is_limited =
                permit == Permit::kWindow || permit == Permit::kOnce || permit == Permit::kFill;
            if (is_limited && session.queued() > what_.settings.window + session.load().kernel) {
                return complain(now, i, "has more than a window queued");
            }
            if (session.wait_max > 2 * what_.settings.starvation) {
                return complain(now, i, "waited for more than twice the bound");
            }
        }
    }

    Schedule what_;
    std::mt19937_64 random_;
    Arbiter arbiter_;
    std::vector<Session> sessions_;
    std::vector<Claim> seen_;
    std::vector<int> due_;
    std::vector<int> busy_for_;  ///< Steps.
    std::size_t on_gpu_ = 0;
    Time slice_ends_{};
    Time switching_{};
    Outcome outcome_;
};

}  // namespace

Outcome run(const Schedule& what) { return World(what).run(); }

Schedule random_run(std::uint64_t seed, Mutation mutation) {
    std::mt19937_64 random(seed);
    const auto pick = [&](std::uint64_t low, std::uint64_t high) {
        return low + random() % (high - low + 1);
    };
    Schedule out;
    out.seed = seed;
    out.mutation = mutation;
    // Short times: more of everything in a run.
    out.length = milliseconds{pick(30, 90)};
    out.settings.starvation = milliseconds{pick(8, 15)};
    out.settings.quantum = milliseconds{pick(1, 3)};
    out.settings.linger = microseconds{pick(0, 5) * 100};
    out.settings.drain_max = milliseconds{2};
    out.settings.fills_gaps = pick(0, 1) == 0;
    const std::uint64_t count = pick(2, 4);
    for (std::uint64_t i = 0; i < count; ++i) {
        Load load;
        load.share.priority = static_cast<std::uint32_t>(pick(3, 5));
        load.share.weight = static_cast<std::uint32_t>(pick(1, 4) * 25);
        load.kernel = microseconds{pick(2, 50) * 10};
        load.burst = pick(0, 2) == 0 ? 0 : static_cast<std::uint32_t>(pick(1, 60));
        load.pause = microseconds{pick(0, 200) * 20};
        // The first is honest: somebody must have something to lose.
        load.manner = i == 0 || pick(0, 3) != 0 ? Manner::kHonest : static_cast<Manner>(pick(1, 4));
        out.loads.push_back(load);
    }
    return out;
}

}  // namespace gantry::sharing_sim
