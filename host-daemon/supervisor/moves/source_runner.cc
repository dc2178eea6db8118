#include "host-daemon/supervisor/moves/source_runner.h"

#include <spdlog/spdlog.h>
#include <sys/random.h>

#include <cstdlib>

namespace gantry::supervisor {

using engine::ActionKind;
using engine::SourceEventKind;

engine::TimePoint engine_now() {
    return std::chrono::duration_cast<std::chrono::microseconds>(
        SerialExecutor::Clock::now().time_since_epoch());
}

SerialExecutor::Clock::time_point to_clock(engine::TimePoint at) {
    return SerialExecutor::Clock::time_point{at};
}

namespace {

std::pair<std::uint64_t, std::uint64_t> random_pair() {
    std::uint64_t words[2];
    const ssize_t got = ::getrandom(words, sizeof words, 0);
    GANTRY_ASSERT(got == sizeof words, "getrandom gave %zd bytes", got);
    return {words[0], words[1]};
}

engine::SourceEvent event_of(SourceEventKind kind) {
    engine::SourceEvent event;
    event.kind = kind;
    return event;
}

engine::SourceEvent error_event(SourceEventKind kind, const Error& error) {
    engine::SourceEvent event = event_of(kind);
    event.error = error;
    return event;
}

}  // namespace

engine::Seed random_seed() {
    const auto [low, high] = random_pair();
    return {low, high};
}

engine::MigrationId random_migration() {
    const auto [low, high] = random_pair();
    return {low, high};
}

SourceRunner::SourceRunner(std::string session_id, Epoch epoch, engine::Settings settings,
                           std::string compression, std::uint64_t bandwidth_bytes_s,
                           EpochStore& store, WorkersSource& source, SourceHooks hooks)
    : session_id_(session_id),
      store_(store),
      source_(source),
      hooks_(std::move(hooks)),
      machine_(session_id, epoch, settings),
      compression_(std::move(compression)),
      bandwidth_bytes_s_(bandwidth_bytes_s),
      main_([this] { step(event_of(SourceEventKind::kTimer)); }) {
    status_.epoch = epoch;
}

void SourceRunner::stop() {
    is_stopped_ = true;
    main_.stop();  // First: it orders no round any more, and makes no queue.
    ++cut_serial_;
    if (auto bulk = current_bulk()) {
        bulk->close();
    }
    slow_.stop();
}

void SourceRunner::feed(engine::SourceEvent event) {
    main_.post([this, event = std::move(event)] { step(event); });
}

void SourceRunner::receive(engine::Message message, std::shared_ptr<MessageLink> link) {
    main_.post([this, message = std::move(message), link = std::move(link)]() mutable {
        spdlog::trace("{}: received {}", session_id_, engine::message_name(message));
        link_ = {message.migration, std::move(link)};
        engine::SourceEvent event = event_of(SourceEventKind::kMessage);
        event.message = std::move(message);
        event.seed = random_seed();
        step(event);
    });
}

std::shared_ptr<BulkQueue> SourceRunner::bulk(engine::MigrationId migration) {
    const std::lock_guard lock(mutex_);
    return bulk_migration_ == migration ? bulk_ : nullptr;
}

std::shared_ptr<BulkQueue> SourceRunner::current_bulk() const {
    const std::lock_guard lock(mutex_);
    return bulk_;
}

SourceStatus SourceRunner::status() const {
    const std::lock_guard lock(mutex_);
    return status_;
}

void SourceRunner::publish(bool ends) {
    const std::lock_guard lock(mutex_);
    status_.ends = status_.ends || ends;
    status_.state = machine_.state();
    status_.epoch = machine_.epoch();
    status_.serves = machine_.serves();
    status_.announced = machine_.announced();
    status_.awaits_attempt = machine_.awaits_attempt();
    status_.migration = machine_.migration();
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
                engine::SourceEvent event = error_event(
                    SourceEventKind::kRoundFailed,
                    {Code::kUnavailable, "stream.lost", "a bulk stream to the target broke"});
                event.round = round;
                feed(std::move(event));
            });
    }
}

void SourceRunner::step(const engine::SourceEvent& event) {
    const engine::SourceState before = machine_.state();
    const bool awaited_attempt = machine_.awaits_attempt();
    const bool was_moving = is_moving();
    engine::Actions actions = machine_.step(event, engine_now());
    const bool ends = was_moving && !is_moving();
    publish(ends);
    if (ends && awaited_attempt) {
        hooks_.given_up();
    }
    if (machine_.state() != before) {
        spdlog::info("session {}: {} -> {} ({})", session_id_, to_string(before),
                     to_string(machine_.state()), to_string(event.kind));
    }
    for (engine::Action& action : actions) {
        carry_out(std::move(action));
    }
    if (ends) {
        const std::lock_guard lock(mutex_);
        status_.ends = false;
    }
    const auto due = machine_.next_deadline();
    main_.set_timer(due ? std::optional{to_clock(*due)} : std::nullopt);
}

void SourceRunner::send(const engine::Message& message) {
    spdlog::trace("{}: sends {}", session_id_, engine::message_name(message));
    if (link_ && link_->first == message.migration) {
        link_->second->send(message);
    }
}

void SourceRunner::persist_grant(const engine::DurableRecord& record) {
    const SaveOutcome saved = store_.save(session_id_, record);
    switch (saved.failure) {
        case SaveFailure::kNone: step(event_of(SourceEventKind::kGrantDurable)); return;
        case SaveFailure::kProvenUnwritten:
            spdlog::error("session {}: {}", session_id_, saved.error.to_string());
            step(error_event(SourceEventKind::kGrantWriteFailed, saved.error));
            return;
        case SaveFailure::kUnknown:
            // Neither granted nor not: only the disk knows, and only after a restart.
            spdlog::critical("session {}: {}; ending to read the disk again", session_id_,
                             saved.error.to_string());
            std::_Exit(70);
    }
}

void SourceRunner::carry_out(engine::Action action) {
    switch (action.kind) {
        case ActionKind::kSend: send(*action.message); break;
        case ActionKind::kQueryDomain: hooks_.query_domain(); break;
        case ActionKind::kAlert:
            spdlog::warn("session {}: {}", session_id_, action.error.to_string());
            hooks_.alert(action.alert, action.error);
            break;
        case ActionKind::kReportProgress: hooks_.progress(*action.progress); break;
        case ActionKind::kFinished:
            spdlog::info("session {}: migration ended at its source: {} {}", session_id_,
                         to_string(action.outcome), action.error.text);
            hooks_.finished(action.outcome, action.error);
            break;
        case ActionKind::kDescribe:
            on_slow([this] {
                const auto announced = source_.announce();
                auto needs = announced ? source_.describe()
                                       : Result<engine::SessionNeeds>(announced.error());
                engine::SourceEvent event =
                    needs ? event_of(SourceEventKind::kDescribed)
                          : error_event(SourceEventKind::kDescribeFailed, needs.error());
                if (needs) {
                    event.needs = std::move(*needs);
                }
                feed(std::move(event));
            });
            break;
        case ActionKind::kBeginPrecopy:
            ++cut_serial_;
            on_slow([this, seed = action.seed] { begin_precopy(seed); });
            break;
        case ActionKind::kSendRound: order_round(action.round, false); break;
        case ActionKind::kResendRound:
            ++cut_serial_;  // the failed round, if it is still being sent
            order_round(action.round, true);
            break;
        case ActionKind::kFreeze:
            if (freezing_ == action.token) {
                break;  // Asked again meanwhile: a second one might end after the machine gave up.
            }
            freezing_ = action.token;
            ++cut_serial_;
            on_slow([this, token = action.token, deadline = action.deadline] {
                auto frozen = source_.freeze(token, deadline);
                engine::SourceEvent event =
                    frozen ? event_of(SourceEventKind::kFrozen)
                           : error_event(SourceEventKind::kFreezeFailed, frozen.error());
                event.token = token;
                main_.post([this, event = std::move(event)] {
                    if (freezing_ == event.token) {
                        freezing_.reset();
                    }
                    step(event);
                });
            });
            break;
        case ActionKind::kSendComplete:
            on_slow([this, token = action.token, round = action.round] {
                send_complete(token, round);
            });
            break;
        case ActionKind::kPersistGrant: persist_grant(*action.record); break;
        case ActionKind::kFence:
            on_slow([this, is_here = action.guest_is_here] {
                if (auto fenced = source_.fence(is_here); !fenced) {
                    spdlog::error("session {}: fencing failed: {}", session_id_,
                                  fenced.error().to_string());
                }
            });
            break;
        case ActionKind::kUnfence:
            on_slow([this, epoch = action.epoch] {
                if (auto done = source_.unfence(epoch); !done) {
                    spdlog::error("session {}: {}", session_id_, done.error().to_string());
                }
            });
            break;
        case ActionKind::kThaw:
            ++cut_serial_;
            on_slow([this] {
                if (auto thawed = source_.thaw(); !thawed) {
                    spdlog::error("session {}: thawing failed: {}", session_id_,
                                  thawed.error().to_string());
                    return;  // the machine asks again
                }
                feed(event_of(SourceEventKind::kThawed));
            });
            break;
        case ActionKind::kEndPrecopy:
            ++cut_serial_;
            on_slow([this] { source_.end_precopy(); });
            break;
        case ActionKind::kEndAnnouncement: on_slow([this] { source_.end_announcement(); }); break;
        case ActionKind::kRelease:
            on_slow([this] {
                (void)source_.release();
                feed(event_of(SourceEventKind::kReleased));
                main_.post([this] { hooks_.released(); });
            });
            break;
        case ActionKind::kAbortJob: hooks_.abort_job(); break;
        default: GANTRY_ASSERT(false, "the source machine asked for %s", to_string(action.kind));
    }
}

}  // namespace gantry::supervisor
