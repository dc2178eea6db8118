// Arbiter: whose turn it is on one GPU. Pure: it is told the time and the sessions' claims, and
// says what each may do and when it is to be asked again.
//
// PRIORITY. The session of the highest priority that has work holds the GPU; all below wait. One
// that is above all others is never limited. A holder whose work has ended keeps the GPU for
// `linger`: within a burst nobody gets in between.
//
// EQUALS take turns of a `quantum`: the one next that has had least for its weight. What a turn
// leaves at the driver is waited for, `drain_max` at most. One that comes back after a pause is
// owed no more than a turn of theirs, and ends the turn of one that had more for its weight: a
// program that waits for each batch gets what it weighs.
//
// WINDOWS. Whoever is not above all others has at most a window at the driver, whether it holds
// the GPU or nobody does: what is queued cannot be called back.
//
// STARVATION. Who has waited for `starvation` gets one window, one session at a time; precopy
// traffic, which nobody waits for, gets one every `precopy_every`.
//
// GAPS, with fills_gaps. A holder says how long it will have nothing. While it has nothing one
// other may launch what ends `fill_margin` before its return: of the highest priority the longest
// that fits, and nobody else before that has ended. It stops when the holder has work. Of whose
// launch no time is known does not fit. The holder keeps the GPU for `linger` beyond its gap; one
// whose gap is longer than `gap_max`, or that was mostly away for longer than `linger` and says
// nothing, does not linger. What runs on behind a gap, or leaves one unused, costs its session gaps
// for a time.
//
// TRUST. A session is charged for the time that it had the GPU by the clock that step() is told,
// not for what it says. A claim can end its own turn, and another's only for what its session is
// owed. Who says that its gap is long gives the GPU away; that it is short, keeps it for `linger`.
//
// Threads: one at a time. Cost: linear in the sessions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "host-daemon/scheduling/launch_times.h"
#include "host-daemon/scheduling/share.h"

namespace gantry::scheduling {

using ClientId = std::uint32_t;

class Arbiter {
public:
    explicit Arbiter(const Settings& settings) : settings_(settings) {}

    void add(ClientId id, Share share, Traffic traffic, Time now);
    void remove(ClientId id);
    void set_share(ClientId id, Share share);
    void set_claim(ClientId id, const Claim& claim, Time now);
    /// Off: everybody may do everything.
    void set_enabled(bool enabled) { is_enabled_ = enabled; }

    /// Decides anew. When to be asked again although no claim has changed; kNever: not.
    Time step(Time now);
    [[nodiscard]] Verdict verdict(ClientId id) const;

    struct Standing {  ///< For operators.
        Share share;
        Traffic traffic = Traffic::kLaunches;
        Claim claim;
        Verdict verdict;
        bool holds = false;
        Time charged{};                  ///< The GPU was its, by the clock.
        Time wait_max{};                 ///< Its longest wait.
        std::uint64_t windows_once = 0;  ///< That it got while another held the GPU.
        std::uint64_t fills = 0;         ///< Of others' gaps.
    };
    [[nodiscard]] std::optional<Standing> standing(ClientId id) const;

private:
    struct Client {
        Share share;
        Traffic traffic = Traffic::kLaunches;
        Claim claim;
        Verdict verdict;
        Time last_busy{};
        std::optional<Time> waits_since;
        std::optional<Time> came_back;  ///< When it had work again, since it held the GPU.
        double owed_order = 0;          ///< Time that it had, for its weight.
        Time charged{};
        Time wait_max{};
        std::uint64_t windows_once = 0;
        std::uint64_t fills = 0;
        Samples away;         ///< From its work's end until it had work again.
        Time fills_from{};    ///< It ran on behind a gap: no other before then.
        Time fill_penalty{};  ///< The last one.
        [[nodiscard]] bool busy() const { return claim.wants || claim.runs; }
        [[nodiscard]] bool launches() const { return traffic == Traffic::kLaunches; }
    };
    using Clients = std::map<ClientId, Client>;
    struct Once {  ///< The one window that is given while another holds the GPU.
        ClientId id = 0;
        Time given{};
        bool has_run = false;
    };

    struct Fill {  ///< The one that is in the holder's gap, or what it has left at the driver.
        ClientId id = 0;
        Time until{};
        Time given{};
        bool has_run = false;
        bool is_over = false;
    };

    [[nodiscard]] Client* find(ClientId id);
    void charge(Time now);
    void charge(Client& client, Time time) const;
    void note_return(ClientId id, Client& client, Time now);
    void begin_turn(ClientId id, Time now);
    [[nodiscard]] bool is_turn_over(const Client& held, const Client& next, Time now) const;
    void end_once(Time now);
    void end_fill(Time now);
    [[nodiscard]] bool another_runs(std::optional<ClientId> than) const;
    void give_fill(Time now);
    [[nodiscard]] Time gap_end(const Client& held) const;
    [[nodiscard]] Time linger_of(const Client& held) const;
    void choose_holder(Time now);
    [[nodiscard]] const Clients::value_type* next_holder() const;
    [[nodiscard]] bool is_above_all(const Clients::value_type& one) const;
    [[nodiscard]] bool may_go_now(const Clients::value_type& one) const;
    void give_once(Time now);
    [[nodiscard]] std::optional<ClientId> most_starved(Time now) const;
    [[nodiscard]] std::optional<ClientId> best_fit(Time now) const;
    void set_verdicts(Time now);
    [[nodiscard]] Time patience_of(const Client& client) const;
    [[nodiscard]] Time next_time(Time now) const;

    Settings settings_;
    Clients clients_;
    std::optional<ClientId> holder_;
    Time turn_begun_{};
    std::optional<ClientId> draining_;  ///< Whose turn has ended, and has work at the driver.
    Time drain_until_{};
    std::optional<Once> once_;
    std::optional<Fill> fill_;
    std::uint32_t serial_ = 0;
    Time charged_until_{};
    bool is_enabled_ = true;
};

}  // namespace gantry::scheduling
