#include "host-daemon/scheduling/arbiter.h"

#include <algorithm>

namespace gantry::scheduling {
namespace {

/// Time of a client of `weight` as its equals' is counted.
double weighed(Time time, std::uint32_t weight) {
    return static_cast<double>(time.count()) / weight;
}

constexpr int kOwedPart = 4;  // Of a quantum: owed that much, it ends another's turn.

// Whoever runs on behind a gap gets none for so long; twice as long each time, up to a bound.
constexpr Time kPenalty = std::chrono::milliseconds{20};
constexpr Time kPenaltyMax = std::chrono::seconds{1};
constexpr std::uint64_t kAwayKnown = 4;  // Samples of being away that say something.

}  // namespace

Arbiter::Client* Arbiter::find(ClientId id) {
    const auto found = clients_.find(id);
    return found != clients_.end() ? &found->second : nullptr;
}

void Arbiter::add(ClientId id, Share share, Traffic traffic, Time now) {
    Client client;
    client.share = share;
    client.traffic = traffic;
    client.last_busy = now - settings_.linger;
    clients_.insert_or_assign(id, client);
}

void Arbiter::remove(ClientId id) {
    clients_.erase(id);
    if (holder_ == id) {
        holder_.reset();
    }
    if (draining_ == id) {
        draining_.reset();
    }
    if (once_ && once_->id == id) {
        once_.reset();
    }
    if (fill_ && fill_->id == id) {
        fill_.reset();
    }
}

void Arbiter::set_share(ClientId id, Share share) {
    if (Client* const client = find(id)) {
        client->share = share;
    }
}

void Arbiter::set_claim(ClientId id, const Claim& claim, Time now) {
    Client* const client = find(id);
    if (client == nullptr) {
        return;
    }
    charge(now);  // What has passed has passed with the old claim.
    const bool was_busy = client->busy();
    client->claim = claim;
    if (was_busy && !client->busy()) {
        client->last_busy = now;
    } else if (!was_busy && client->busy()) {
        note_return(id, *client, now);
    }
}

/// It was not there: of what the others had meanwhile it is owed a turn of theirs at most.
void Arbiter::note_return(ClientId id, Client& client, Time now) {
    client.came_back = now;
    client.away.add(now - client.last_busy);
    std::optional<double> least;
    for (const auto& [other_id, other] : clients_) {
        if (other_id != id && other.busy() && other.share.priority == client.share.priority) {
            const std::uint32_t weight = std::min(other.share.weight, client.share.weight);
            const double owed = other.owed_order - weighed(settings_.quantum, weight);
            least = std::min(least.value_or(owed), owed);
        }
    }
    client.owed_order = std::max(client.owed_order, least.value_or(client.owed_order));
}

void Arbiter::charge(Client& client, Time time) const {
    client.charged += time;
    client.owed_order += weighed(time, client.share.weight);
}

/// What a turn has left at the driver is still its own.
void Arbiter::charge(Time now) {
    const Time time = now - charged_until_;
    charged_until_ = now;
    std::optional<ClientId> who = draining_ ? draining_ : holder_;
    if (!draining_ && fill_ && find(fill_->id)->busy()) {
        who = fill_->id;  // The holder has left it the GPU.
    }
    if (Client* const client = who ? find(*who) : nullptr) {
        charge(*client, time);
    }
    if (once_ && once_->id != who) {
        charge(*find(once_->id), time);
    }
}

bool Arbiter::is_above_all(const Clients::value_type& one) const {
    return one.second.launches() &&
           std::all_of(clients_.begin(), clients_.end(), [&](const Clients::value_type& other) {
               return other.first == one.first || !other.second.launches() ||
                      other.second.share.priority < one.second.share.priority;
           });
}

/// Of those with work: of the highest priority the one that had least for its weight.
const Arbiter::Clients::value_type* Arbiter::next_holder() const {
    const Clients::value_type* best = nullptr;
    for (const Clients::value_type& one : clients_) {
        const Client& client = one.second;
        if (!client.launches() || !client.busy()) {
            continue;
        }
        if (best == nullptr || client.share.priority > best->second.share.priority ||
            (client.share.priority == best->second.share.priority &&
             client.owed_order < best->second.owed_order)) {
            best = &one;
        }
    }
    return best;
}

void Arbiter::begin_turn(ClientId id, Time now) {
    holder_ = id;
    turn_begun_ = now;
    find(id)->came_back.reset();
}

/// Of `next`, which has work and no more priority.
bool Arbiter::is_turn_over(const Client& held, const Client& next, Time now) const {
    if (next.share.priority < held.share.priority) {
        return false;
    }
    const bool is_owed = held.owed_order > next.owed_order + weighed(settings_.quantum / kOwedPart,
                                                                     next.share.weight);
    return now >= turn_begun_ + settings_.quantum ||
           (next.came_back && *next.came_back > turn_begun_ && is_owed);
}

void Arbiter::choose_holder(Time now) {
    if (draining_ && (!find(*draining_)->claim.runs || now >= drain_until_)) {
        draining_.reset();
        turn_begun_ = now;
    }
    Client* const held = holder_ ? find(*holder_) : nullptr;
    const bool lingers =
        held != nullptr && !held->busy() && now < held->last_busy + linger_of(*held);
    if (held != nullptr && !held->busy() && !lingers) {
        holder_.reset();
    }
    const Clients::value_type* const next = next_holder();
    if (next == nullptr || next->first == holder_) {
        if (holder_ && now >= turn_begun_ + settings_.quantum) {
            turn_begun_ = now;  // Nobody is owed more: another turn.
        }
        return;
    }
    if (!holder_) {
        begin_turn(next->first, now);
    } else if (next->second.share.priority > held->share.priority) {
        begin_turn(next->first, now);  // What is below it has a window at the driver, no more.
        draining_.reset();
    } else if (is_turn_over(*held, next->second, now)) {
        if (held->claim.runs) {
            draining_ = holder_;
            drain_until_ = now + settings_.drain_max;
        }
        begin_turn(next->first, now);
    }
}

/// When the holder is expected back; before its last work's end where nothing says so.
Time Arbiter::gap_end(const Client& held) const {
    return held.last_busy + std::min(held.claim.gap, settings_.gap_max);
}

Time Arbiter::linger_of(const Client& held) const {
    if (!settings_.fills_gaps) {
        return settings_.linger;
    }
    if (held.claim.gap > settings_.gap_max) {
        return Time{};
    }
    if (held.claim.gap > Time{}) {
        return held.claim.gap > settings_.fill_margin ? held.claim.gap + settings_.linger
                                                      : settings_.linger;
    }
    const bool is_mostly_longer =
        held.away.count() >= kAwayKnown && *held.away.mostly_at_least() > settings_.linger;
    return is_mostly_longer ? Time{} : settings_.linger;
}

void Arbiter::end_fill(Time now) {
    if (!fill_) {
        return;
    }
    Client& filler = *find(fill_->id);
    const Client* const held = holder_ ? find(*holder_) : nullptr;
    if (held == nullptr || held == &filler) {
        fill_.reset();  // It has the GPU, or nobody has, and it need not hide.
        return;
    }
    fill_->has_run = fill_->has_run || filler.claim.runs;
    const bool is_unused = !fill_->has_run && now >= fill_->given + settings_.fill_margin;
    const bool fits = !filler.claim.wants || filler.claim.runs ||
                      (filler.claim.next != Time{} && filler.claim.next <= fill_->until - now);
    fill_->is_over = fill_->is_over || once_ || draining_ || held->busy() || is_unused || !fits ||
                     now >= fill_->until || another_runs(fill_->id) ||
                     (!filler.busy() && best_fit(now));
    if (!fill_->is_over || (filler.claim.runs && now < fill_->until + settings_.fill_margin)) {
        return;  // Also what it has left at the driver.
    }
    const bool has_misled = filler.claim.runs || (is_unused && filler.claim.wants);
    filler.fill_penalty =
        has_misled ? std::clamp(filler.fill_penalty * 2, kPenalty, kPenaltyMax) : Time{};
    filler.fills_from = now + filler.fill_penalty;
    fill_.reset();
}

bool Arbiter::another_runs(std::optional<ClientId> than) const {
    return std::any_of(clients_.begin(), clients_.end(), [&](const Clients::value_type& one) {
        return one.first != than && one.second.claim.runs;
    });
}

void Arbiter::give_fill(Time now) {
    if (fill_ || once_ || draining_) {
        return;
    }
    if (const std::optional<ClientId> to = best_fit(now)) {
        fill_ = Fill{*to, gap_end(*find(*holder_)) - settings_.fill_margin, now};
        ++serial_;
        ++find(*to)->fills;
    }
}

void Arbiter::end_once(Time now) {
    if (!once_) {
        return;
    }
    const Client& client = *find(once_->id);
    once_->has_run = once_->has_run || client.claim.runs;
    const bool has_ended = once_->has_run && !client.claim.runs;
    const bool is_given_up = !client.busy() || now >= once_->given + settings_.drain_max;
    if (has_ended || is_given_up || holder_ == once_->id) {
        once_.reset();
    }
}

Time Arbiter::patience_of(const Client& client) const {
    return client.launches() ? settings_.starvation : settings_.precopy_every;
}

std::optional<ClientId> Arbiter::most_starved(Time now) const {
    std::optional<ClientId> most;
    Time longest{};
    for (const auto& [id, client] : clients_) {
        if (!client.waits_since) {
            continue;
        }
        const Time over = now - *client.waits_since - patience_of(client);
        if (over >= Time{} && (!most || over > longest)) {
            most = id;
            longest = over;
        }
    }
    return most;
}

std::optional<ClientId> Arbiter::best_fit(Time now) const {
    const auto held = holder_ ? clients_.find(*holder_) : clients_.end();
    if (!settings_.fills_gaps || held == clients_.end() || held->second.busy()) {
        return std::nullopt;
    }
    const Time room = gap_end(held->second) - settings_.fill_margin - now;
    if (another_runs(std::nullopt)) {
        return std::nullopt;  // One at a time.
    }
    const Client* best = nullptr;
    std::optional<ClientId> id_of_best;
    for (const auto& [id, client] : clients_) {
        if (!client.waits_since || client.claim.next == Time{} || client.claim.next > room ||
            now < client.fills_from) {
            continue;
        }
        if (best == nullptr || client.share.priority > best->share.priority ||
            (client.share.priority == best->share.priority &&
             client.claim.next > best->claim.next)) {
            best = &client;
            id_of_best = id;
        }
    }
    return id_of_best;
}

void Arbiter::give_once(Time now) {
    if (once_) {
        return;
    }
    if (const std::optional<ClientId> to = most_starved(now)) {
        once_ = Once{*to, now, false};
        ++serial_;
        Client& client = *find(*to);
        ++client.windows_once;
        client.wait_max = std::max(client.wait_max, now - *client.waits_since);
        client.waits_since.reset();
    }
}

bool Arbiter::may_go_now(const Clients::value_type& one) const {
    return holder_ ? holder_ == one.first && !draining_ : !draining_;
}

void Arbiter::set_verdicts(Time now) {
    for (Clients::value_type& one : clients_) {
        Client& client = one.second;
        if (is_above_all(one)) {
            client.verdict = {Permit::kTold, 0, {}};
        } else if (once_ && once_->id == one.first) {
            client.verdict = {Permit::kOnce, serial_, {}};
        } else if (fill_ && fill_->id == one.first && !fill_->is_over && !once_) {
            client.verdict = {Permit::kFill, serial_, fill_->until};
        } else {
            client.verdict = {may_go_now(one) ? Permit::kWindow : Permit::kHold, 0, {}};
        }
        // Who may fill a gap has waited on until it does.
        const bool is_kept = client.verdict.permit == Permit::kHold ||
                             (client.verdict.permit == Permit::kFill && !client.claim.runs);
        const bool waits = is_kept && client.claim.wants;
        if (!waits) {
            if (client.waits_since) {
                client.wait_max = std::max(client.wait_max, now - *client.waits_since);
            }
            client.waits_since.reset();
        } else if (!client.waits_since) {
            client.waits_since = now;
        }
    }
}

Time Arbiter::next_time(Time now) const {
    Time next = kNever;
    const auto at = [&](Time time) { next = std::min(next, std::max(time, now + Time{1})); };
    const auto held = holder_ ? clients_.find(*holder_) : clients_.end();
    if (held != clients_.end()) {
        held->second.busy() ? at(turn_begun_ + settings_.quantum)
                            : at(held->second.last_busy + linger_of(held->second));
    }
    if (draining_) {
        at(drain_until_);
    }
    if (fill_) {
        at(fill_->is_over ? fill_->until + settings_.fill_margin : fill_->until);
    }
    if (once_) {
        at(once_->given + settings_.drain_max);
        return next;
    }
    for (const auto& [id, client] : clients_) {
        if (client.waits_since) {
            at(*client.waits_since + patience_of(client));
        }
    }
    return next;
}

Time Arbiter::step(Time now) {
    charge(now);
    if (!is_enabled_ || clients_.size() < 2) {
        holder_.reset();
        draining_.reset();
        once_.reset();
        fill_.reset();
        for (auto& [id, client] : clients_) {
            client.verdict = {};
            client.waits_since.reset();
        }
        return kNever;
    }
    choose_holder(now);
    end_once(now);
    end_fill(now);
    set_verdicts(now);  // Who waits, and since when.
    give_once(now);
    give_fill(now);
    set_verdicts(now);
    return next_time(now);
}

Verdict Arbiter::verdict(ClientId id) const {
    const auto found = clients_.find(id);
    return found != clients_.end() ? found->second.verdict : Verdict{};
}

std::optional<Arbiter::Standing> Arbiter::standing(ClientId id) const {
    const auto found = clients_.find(id);
    if (found == clients_.end()) {
        return std::nullopt;
    }
    const Client& client = found->second;
    return Standing{client.share,    client.traffic,      client.claim,
                    client.verdict,  holder_ == id,       client.charged,
                    client.wait_max, client.windows_once, client.fills};
}

}  // namespace gantry::scheduling
