#include "host-daemon/supervisor/moves/source_runner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/base/random.h"

namespace gantry::supervisor {

namespace source_event = engine::source_event;

engine::TimePoint to_engine(Runtime::Clock::time_point at) {
    return std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch());
}

std::uint64_t to_microseconds(Runtime::Clock::time_point at) {
    return static_cast<std::uint64_t>(to_engine(at).count());
}

Runtime::Clock::time_point to_clock(engine::TimePoint at) { return Runtime::Clock::time_point{at}; }

engine::MigrationId random_migration() {
    const auto [low, high] = random_bits();
    return {low, high};
}

Ticket random_ticket() {
    const auto [low, high] = random_bits();
    Ticket::Bytes bytes{};
    std::memcpy(bytes.data(), &low, sizeof low);
    std::memcpy(bytes.data() + sizeof low, &high, sizeof high);
    return Ticket(bytes);
}

SourceRunner::SourceRunner(std::string session_id, Epoch epoch, engine::Settings settings,
                           std::string compression, std::uint64_t bandwidth_bytes_s,
                           RecordStore& store, SessionSource& source, SourceHooks hooks,
                           Runtime& runtime)
    : session_id_(session_id),
      runtime_(runtime),
      store_(store),
      source_(source),
      hooks_(std::move(hooks)),
      machine_(session_id, epoch, settings),
      compression_(std::move(compression)),
      bandwidth_bytes_s_(bandwidth_bytes_s),
      slow_(runtime.make_executor({})),
      main_(runtime.make_executor([this] { step(source_event::Timer{}); })) {
    status_.epoch = epoch;
}

void SourceRunner::stop() {
    is_stopped_ = true;
    main_->stop();  // First: it orders no round any more, and makes no queue.
    ++cut_serial_;
    if (auto bulk = current_bulk()) {
        bulk->close();
    }
    slow_->stop();
}

void SourceRunner::feed(engine::SourceEvent event) {
    main_->post([this, event = std::move(event)] { step(event); });
}

void SourceRunner::receive(engine::Message message, std::string peer,
                           std::shared_ptr<MessageLink> link) {
    main_->post([this, message = std::move(message), peer = std::move(peer), link = std::move(link),
                 at_us = to_microseconds(runtime_.now())]() mutable {
        spdlog::trace("{}: received {} from {}", session_id_, engine::message_name(message), peer);
        const engine::MigrationId migration = message.migration;
        const engine::MessageTime time = message.time;
        remember_link(migration, peer, std::move(link));
        const auto [low, high] = runtime_.random_bits();
        step(source_event::Received{std::move(message), {low, high}, peer});
        if (machine_.migration() == migration && machine_.peer() == peer) {
            hooks_.log.note_peer(migration, peer);
            hooks_.log.note_heard(migration, time, at_us);
        }
    });
}

/// Others ask too, and must neither take away the answers of the migration under way nor get them.
void SourceRunner::remember_link(engine::MigrationId migration, const std::string& peer,
                                 std::shared_ptr<MessageLink> link) {
    constexpr std::size_t kLinksMax = 8;
    const auto known =
        std::ranges::find_if(links_, [&](const Link& one) { return one.migration == migration; });
    if (known != links_.end()) {
        if (known->peer == peer) {
            known->link = std::move(link);
        }
        return;
    }
    if (links_.size() == kLinksMax) {
        links_.erase(std::ranges::find_if(
            links_, [&](const Link& one) { return one.migration != machine_.migration(); }));
    }
    links_.push_back({migration, peer, std::move(link)});
}

std::shared_ptr<BulkQueue> SourceRunner::bulk(engine::MigrationId migration,
                                              const std::string& peer) {
    const MutexLock lock(mutex_);
    return bulk_migration_ == migration && status_.peer == peer ? bulk_ : nullptr;
}

std::shared_ptr<BulkQueue> SourceRunner::current_bulk() const {
    const MutexLock lock(mutex_);
    return bulk_;
}

SourceStatus SourceRunner::status() const {
    const MutexLock lock(mutex_);
    return status_;
}

void SourceRunner::publish(bool ends) {
    const MutexLock lock(mutex_);
    status_.ends = status_.ends || ends;
    status_.state = machine_.state();
    status_.epoch = machine_.epoch();
    status_.serves = machine_.serves();
    status_.announced = machine_.announced();
    status_.awaits_attempt = machine_.awaits_attempt();
    status_.migration = machine_.migration();
    if (!machine_.peer().empty()) {
        status_.peer = machine_.peer();
    }
    status_.progress = machine_.progress();
    if (status_.migration != bulk_migration_) {
        if (bulk_) {
            bulk_->close();
        }
        bulk_migration_ = status_.migration;
        if (bulk_migration_) {
            status_.last_migration = *bulk_migration_;
            status_.digest = {};
        }
        bulk_ =
            !bulk_migration_ ? nullptr : std::make_shared<BulkQueue>([this](std::uint64_t round) {
                feed(source_event::RoundFailed{
                    round,
                    {Code::kUnavailable, "stream.lost", "a bulk stream to the target broke"}});
            });
    }
}

void SourceRunner::send(const engine::Message& message) {
    spdlog::trace("{}: sends {}", session_id_, engine::message_name(message));
    engine::Message stamped = message;
    stamped.time = hooks_.log.stamp_message(message.migration);
    for (const Link& one : links_) {
        if (one.migration == message.migration) {
            one.link->send(stamped);
        }
    }
    const auto* refused = std::get_if<engine::MsgRefused>(&message.body);
    if (refused != nullptr) {
        log_refusal(message.migration, engine::refusal_text(refused->findings));
    }
}

/// Bounded: whoever asks decides how often.
void SourceRunner::log_refusal(engine::MigrationId migration, const std::string& why) {
    if (!refusal_lines_.take(runtime_.now())) {
        return;
    }
    const auto asker =
        std::ranges::find_if(links_, [&](const Link& one) { return one.migration == migration; });
    spdlog::warn("session {}: {} asks for it and is refused: {}", session_id_,
                 asker == links_.end() ? "a host" : asker->peer, why);
}

void SourceRunner::persist_grant(const engine::DurableRecord& record) {
    const SaveOutcome saved = store_.save(session_id_, record);
    switch (saved.failure) {
        case SaveFailure::kNone: outcome_ = source_event::GrantDurable{}; return;
        case SaveFailure::kProvenUnwritten:
            spdlog::error("session {}: {}", session_id_, saved.error.to_string());
            outcome_ = source_event::GrantWriteFailed{saved.error};
            return;
        case SaveFailure::kUnknown:
            // Neither granted nor not: only the disk knows, and only after a restart.
            spdlog::critical("session {}: {}; ending to read the disk again", session_id_,
                             saved.error.to_string());
            runtime_.end_process(70);
    }
}

struct SourceRunner::Carrier {
    SourceRunner& runner;

    void operator()(const engine::action::Send& send) const { runner.send(send.message); }
    void operator()(const engine::action::QueryDomain& /*query*/) const {
        runner.hooks_.query_domain();
    }
    void operator()(const engine::action::Alert& alert) const {
        spdlog::warn("session {}: {}{}", runner.session_id_, alert.error.to_string(),
                     runner.about_peer());
        runner.hooks_.log.note(runner.machine_.migration(), {"alert", alert.error.to_string()});
        runner.hooks_.alert(alert.kind, alert.error);
    }
    void operator()(const engine::action::ReportProgress& report) const {
        runner.hooks_.log.sample(runner.machine_.migration(), report.progress);
        runner.hooks_.progress(report.progress);
    }
    void operator()(const engine::action::Finished& finished) const {
        spdlog::info("session {}: migration ended at its source: {} {}{}", runner.session_id_,
                     to_string(finished.outcome), finished.error.text, runner.about_peer());
        runner.hooks_.finished(finished.outcome, finished.error);
    }
    void operator()(const engine::action::Describe& /*describe*/) const {
        runner.on_slow([&to = runner] { to.describe(); });
    }
    void operator()(const engine::action::BeginPrecopy& begin) const {
        ++runner.cut_serial_;
        runner.on_slow([&to = runner, seed = begin.seed] { to.begin_precopy(seed); });
    }
    void operator()(const engine::action::SendRound& send) const {
        runner.hooks_.log.note(runner.machine_.migration(), {"round_begun", "", send.round});
        runner.order_round(send.round, false);
    }
    void operator()(const engine::action::ResendRound& resend) const {
        runner.hooks_.log.note(runner.machine_.migration(), {"round_begun", "again", resend.round});
        ++runner.cut_serial_;  // the failed round, if it is still being sent
        runner.order_round(resend.round, true);
    }
    void operator()(const engine::action::Freeze& freeze) const {
        runner.hooks_.log.note(freeze.token.migration, {"freeze", "", freeze.token.count});
        runner.freeze(freeze.token, freeze.deadline);
    }
    void operator()(const engine::action::SendComplete& send) const {
        runner.on_slow([&to = runner, token = send.token, round = send.round] {
            to.send_complete(token, round);
        });
    }
    void operator()(const engine::action::PersistGrant& persist) const {
        runner.persist_grant(persist.record);
    }
    void operator()(const engine::action::Fence& fence) const {
        runner.on_slow([&to = runner, is_here = fence.guest_is_here] {
            if (auto fenced = to.source_.fence(is_here); !fenced) {
                spdlog::error("session {}: fencing failed: {}", to.session_id_,
                              fenced.error().to_string());
            }
        });
    }
    void operator()(const engine::action::Unfence& unfence) const {
        runner.on_slow([&to = runner, epoch = unfence.epoch] {
            if (auto done = to.source_.unfence(epoch); !done) {
                spdlog::error("session {}: {}", to.session_id_, done.error().to_string());
            }
        });
    }
    void operator()(const engine::action::Thaw& /*thaw*/) const {
        ++runner.cut_serial_;
        runner.on_slow([&to = runner] { to.thaw(); });
    }
    void operator()(const engine::action::EndPrecopy& /*end*/) const {
        ++runner.cut_serial_;
        runner.on_slow([&to = runner] { to.source_.end_precopy(); });
    }
    void operator()(const engine::action::EndAnnouncement& /*end*/) const {
        runner.on_slow([&to = runner] { to.source_.end_announcement(); });
    }
    void operator()(const engine::action::Release& /*release*/) const {
        runner.on_slow([&to = runner] { to.release(); });
    }
    void operator()(const engine::action::AbortJob& /*abort*/) const {
        runner.hooks_.log.note(runner.machine_.migration(), {"abort_job"});
        runner.hooks_.abort_job();
    }
    void operator()(const engine::action::RenewTicket& /*renew*/) const {
        runner.hooks_.renew_ticket(runner.machine_.epoch());
    }
};

/// main_ only; a status of the last attempt names the host that it went to.
std::string SourceRunner::about_peer() const {
    const std::string peer = status().peer;
    return peer.empty() ? "" : "; target " + peer;
}

struct SourceRunner::Stamps {
    std::optional<MoveStamp> operator()(const source_event::Received& event) const {
        return std::visit(*this, event.message.body);
    }
    std::optional<MoveStamp> operator()(const source_event::RoundSent& event) const {
        return MoveStamp{"round_sent", "", event.round, event.stats.bytes_content};
    }
    std::optional<MoveStamp> operator()(const source_event::RoundFailed& event) const {
        return MoveStamp{"round_failed", event.error.to_string(), event.round};
    }
    std::optional<MoveStamp> operator()(const source_event::Frozen& event) const {
        return MoveStamp{"frozen", "", event.token.count};
    }
    std::optional<MoveStamp> operator()(const source_event::GrantDurable&) const {
        return MoveStamp{"granted"};
    }
    std::optional<MoveStamp> operator()(const source_event::Thawed&) const {
        return MoveStamp{"thawed"};
    }
    std::optional<MoveStamp> operator()(const source_event::Released&) const {
        return MoveStamp{"released"};
    }
    std::optional<MoveStamp> operator()(const engine::MsgPrepare& message) const {
        return MoveStamp{"asked", message.capabilities.host};
    }
    std::optional<MoveStamp> operator()(const engine::MsgRoundAck& message) const {
        return MoveStamp{"round_acked", "", message.round};
    }
    std::optional<MoveStamp> operator()(const engine::MsgVerified&) const {
        return MoveStamp{"verified"};
    }
    std::optional<MoveStamp> operator()(const engine::MsgGrantRequest&) const {
        return MoveStamp{"grant_asked"};
    }
    std::optional<MoveStamp> operator()(const engine::MsgActivated&) const {
        return MoveStamp{"served_there"};
    }
    template <typename Other>
    std::optional<MoveStamp> operator()(const Other&) const {
        return std::nullopt;
    }
};

void SourceRunner::record(const engine::SourceEvent& event, const Before& before) {
    const auto migration = machine_.migration() ? machine_.migration() : before.migration;
    const std::string& peer = machine_.migration() ? machine_.peer() : before.peer;
    const auto* received = std::get_if<source_event::Received>(&event);
    const bool is_of_another =
        received != nullptr && (received->message.migration != migration || received->peer != peer);
    if (auto stamp = std::visit(Stamps{}, event); stamp && !is_of_another) {
        hooks_.log.note(migration, std::move(*stamp));
    }
    if (machine_.state() != before.state) {
        hooks_.log.note(migration, {"state", to_string(machine_.state())});
    }
}

void SourceRunner::describe() {
    if (const auto announced = source_.announce(); !announced) {
        feed(source_event::DescribeFailed{announced.error()});
    } else if (auto needs = source_.describe(); !needs) {
        feed(source_event::DescribeFailed{needs.error()});
    } else {
        feed(source_event::Described{std::move(*needs)});
    }
}

void SourceRunner::freeze(engine::FreezeToken token, engine::Duration deadline) {
    if (freezing_ == token) {
        return;  // Asked again meanwhile: a second one might end after the machine gave up.
    }
    freezing_ = token;
    ++cut_serial_;
    on_slow([this, token, deadline] {
        const auto frozen = source_.freeze(token, deadline);
        engine::SourceEvent event = source_event::Frozen{token};
        if (!frozen) {
            event = source_event::FreezeFailed{frozen.error()};
        }
        main_->post([this, token, event = std::move(event)] {
            if (freezing_ == token) {
                freezing_.reset();
            }
            step(event);
        });
    });
}

void SourceRunner::thaw() {
    if (auto thawed = source_.thaw(); !thawed) {
        spdlog::error("session {}: thawing failed: {}", session_id_, thawed.error().to_string());
        return;  // the machine asks again
    }
    feed(source_event::Thawed{});
}

void SourceRunner::release() {
    (void)source_.release();
    feed(source_event::Released{});
    main_->post([this] { hooks_.released(); });
}

void SourceRunner::step(const engine::SourceEvent& event) {
    const Before before{machine_.state(), machine_.migration(), machine_.peer()};
    const bool awaited_attempt = machine_.awaits_attempt();
    const bool was_moving = is_moving();
    const engine::SourceActions actions = machine_.step(event, to_engine(runtime_.now()));
    record(event, before);
    const bool ends = was_moving && !is_moving();
    publish(ends);
    if (ends && awaited_attempt) {
        hooks_.given_up();
    }
    if (machine_.state() != before.state) {
        spdlog::info("session {}: {} -> {} ({}){}", session_id_, to_string(before.state),
                     to_string(machine_.state()), engine::event_name(event), about_peer());
    }
    for (const engine::SourceAction& action : actions) {
        std::visit(Carrier{*this}, action);
    }
    if (ends) {
        const MutexLock lock(mutex_);
        status_.ends = false;
    }
    if (const auto outcome = std::exchange(outcome_, std::nullopt)) {
        step(*outcome);
        return;
    }
    const auto due = machine_.next_deadline();
    main_->set_timer(due ? std::optional{to_clock(*due)} : std::nullopt);
}

}  // namespace gantry::supervisor
