#include "host-daemon/supervisor/moves/target_runner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace gantry::supervisor {

namespace target_event = engine::target_event;

TargetRunner::TargetRunner(std::string session_id, engine::Settings settings, RecordStore& store,
                           SessionSink& sink, TargetHooks hooks, Runtime& runtime)
    : session_id_(session_id),
      runtime_(runtime),
      store_(store),
      sink_(sink),
      hooks_(std::move(hooks)),
      machine_(session_id, settings),
      batches_changed_(runtime.make_condition()),
      slow_(runtime.make_executor({})),
      main_(runtime.make_executor([this] { step(target_event::Timer{}); })) {}

void TargetRunner::stop() {
    main_->stop();
    slow_->stop();
}

void TargetRunner::begin(engine::MigrationId migration, engine::TargetCapabilities capabilities,
                         const Ticket& ticket) {
    feed(target_event::AdmissionAsked{migration, std::move(capabilities), ticket});
}

void TargetRunner::feed(engine::TargetEvent event) {
    main_->post([this, event = std::move(event)] { step(event); });
}

void TargetRunner::receive(engine::Message message) {
    spdlog::trace("{}: received {}", session_id_, engine::message_name(message));
    main_->post(
        [this, message = std::move(message), at_us = to_microseconds(runtime_.now())]() mutable {
            const engine::MigrationId migration = message.migration;
            const engine::MessageTime time = message.time;
            step(target_event::Received{std::move(message)});
            if (machine_.migration() == migration) {
                hooks_.log.note_heard(migration, time, at_us);
            }
        });
}

TargetStatus TargetRunner::status() const {
    const MutexLock lock(mutex_);
    return status_;
}

void TargetRunner::publish() {
    const MutexLock lock(mutex_);
    status_.state = machine_.state();
    status_.epoch = machine_.epoch();
    status_.migration = machine_.migration();
    const std::uint64_t content = status_.progress.bytes_content;
    const std::uint64_t wire = status_.progress.bytes_sent;
    const double percent = status_.progress.percent;
    status_.progress = machine_.progress();
    status_.progress.bytes_content = content;
    status_.progress.bytes_sent = wire;
    status_.progress.percent = std::max(status_.progress.percent, percent);
    count_remaining();
}

/// The source tells it now and then; in the first round it is what has not come.
void TargetRunner::count_remaining() {
    engine::Progress& progress = status_.progress;
    if (progress.round == 0) {
        const std::uint64_t come = std::min(progress.bytes_content, progress.bytes_total);
        progress.bytes_remaining = progress.bytes_total - come;
    }
}

struct TargetRunner::Carrier {
    TargetRunner& runner;

    void operator()(const engine::action::Send& send) const {
        spdlog::trace("{}: sends {}", runner.session_id_, engine::message_name(send.message));
        engine::Message stamped = send.message;
        stamped.time = runner.hooks_.log.stamp_message(stamped.migration);
        runner.hooks_.send(stamped);
    }
    void operator()(const engine::action::QueryDomain& /*query*/) const {
        runner.hooks_.query_domain();
    }
    void operator()(const engine::action::Alert& alert) const {
        spdlog::warn("session {} (arriving): {}", runner.session_id_, alert.error.to_string());
        note({"alert", alert.error.to_string()});
        runner.hooks_.alert(alert.kind, alert.error);
    }
    void operator()(const engine::action::ReportProgress& report) const {
        runner.hooks_.log.sample(runner.machine_.migration(), runner.status().progress);
        runner.hooks_.progress(report.progress);
    }
    void operator()(const engine::action::Finished& finished) const {
        spdlog::info("session {}: migration ended at its target: {} {}", runner.session_id_,
                     to_string(finished.outcome), finished.error.text);
        runner.hooks_.finished(finished.outcome, finished.error);
    }
    void operator()(engine::action::Reserve& reserve) const {
        runner.slow_->post([&to = runner, needs = std::move(reserve.needs), seed = reserve.seed] {
            to.reserve(needs, seed);
        });
    }
    void operator()(const engine::action::Admit& /*admit*/) const {
        note({"admitted"});
        runner.hooks_.admit();
    }
    void operator()(const engine::action::RefuseAdmission& refuse) const {
        note({"refused", refuse.error.to_string()});
        runner.hooks_.refuse(refuse.error);
    }
    void operator()(const engine::action::AwaitRound& await) const {
        runner.await_round(await.round, await.batch_count);
    }
    void operator()(engine::action::ApplyComplete& apply) const {
        note({"apply", "", apply.token.count});
        runner.order_apply(apply.token, std::move(apply.parts));
    }
    void operator()(const engine::action::UnmarkComplete& /*unmark*/) const {
        // The source thawed: a restart must not trust the note.
        runner.slow_->post([&to = runner] { (void)to.sink_.mark_complete({}); });
    }
    void operator()(const engine::action::PersistOwned& persist) const {
        runner.persist_owned(persist.record);
    }
    void operator()(const engine::action::Activate& activate) const {
        note({"activate"});
        runner.slow_->post([&to = runner, epoch = activate.epoch] { to.activate(epoch); });
    }
    void operator()(const engine::action::Retract& /*retract*/) const {
        note({"retract"});
        runner.slow_->post([&to = runner] { to.retract(); });
    }
    void operator()(const engine::action::Discard& /*discard*/) const {
        runner.slow_->post([&to = runner] { (void)to.sink_.discard(); });
    }

private:
    void note(MoveStamp stamp) const {
        runner.hooks_.log.note(runner.machine_.migration(), std::move(stamp));
    }
};

struct TargetRunner::Stamps {
    std::optional<MoveStamp> operator()(const target_event::Received& event) const {
        return std::visit(*this, event.message.body);
    }
    std::optional<MoveStamp> operator()(const target_event::Reserved&) const {
        return MoveStamp{"reserved"};
    }
    std::optional<MoveStamp> operator()(const target_event::RoundApplied& event) const {
        return MoveStamp{"round_applied", "", event.round};
    }
    std::optional<MoveStamp> operator()(const target_event::Applied&) const {
        return MoveStamp{"complete"};
    }
    std::optional<MoveStamp> operator()(const target_event::Activated&) const {
        return MoveStamp{"activated"};
    }
    std::optional<MoveStamp> operator()(const engine::MsgOffer&) const {
        return MoveStamp{"offered"};
    }
    std::optional<MoveStamp> operator()(const engine::MsgConverged& message) const {
        return MoveStamp{"converged", "", 0, message.remaining_bytes};
    }
    std::optional<MoveStamp> operator()(const engine::MsgGrant&) const {
        return MoveStamp{"grant_came"};
    }
    template <typename Other>
    std::optional<MoveStamp> operator()(const Other&) const {
        return std::nullopt;
    }
};

void TargetRunner::record(const engine::TargetEvent& event, engine::TargetState before) {
    const auto* received = std::get_if<target_event::Received>(&event);
    const bool is_of_another =
        received != nullptr && received->message.migration != machine_.migration();
    if (auto stamp = std::visit(Stamps{}, event); stamp && !is_of_another) {
        hooks_.log.note(machine_.migration(), std::move(*stamp));
    }
    if (machine_.state() != before) {
        hooks_.log.note(machine_.migration(), {"state", to_string(machine_.state())});
    }
}

void TargetRunner::step(const engine::TargetEvent& event) {
    const engine::TargetState before = machine_.state();
    engine::TargetActions actions = machine_.step(event, to_engine(runtime_.now()));
    record(event, before);
    publish();
    if (machine_.state() != before) {
        spdlog::info("session {} (arriving): {} -> {} ({})", session_id_, to_string(before),
                     to_string(machine_.state()), engine::event_name(event));
    }
    for (engine::TargetAction& action : actions) {
        std::visit(Carrier{*this}, action);
    }
    if (const auto outcome = std::exchange(outcome_, std::nullopt)) {
        step(*outcome);
        return;
    }
    const auto due = machine_.next_deadline();
    main_->set_timer(due ? std::optional{to_clock(*due)} : std::nullopt);
}

void TargetRunner::order_apply(engine::FreezeToken token, std::vector<engine::FinalPart> parts) {
    {
        const MutexLock lock(mutex_);
        if (applying_ == token) {
            return;  // asked again while it is being done
        }
        applying_ = token;
    }
    slow_->post([this, token, parts = std::move(parts)]() mutable {
        apply_complete(token, std::move(parts));
    });
}

void TargetRunner::persist_owned(const engine::DurableRecord& record) {
    // This host may have granted the same epoch away since: the newer fact on disk wins.
    const auto known = store_.load(session_id_);
    const bool is_known = known.ok() && *known && (*known)->epoch >= record.epoch;
    if (!is_known) {
        const SaveOutcome saved = store_.save(session_id_, record);
        if (!saved.ok()) {
            // Owned or not is settled by the source's record; ours only tells a later restart.
            // Ending here and reading the disk again is the only honest way on.
            spdlog::critical("session {}: {}; ending to read the disk again", session_id_,
                             saved.error.to_string());
            runtime_.end_process(70);
        }
    }
    outcome_ = target_event::OwnedDurable{};
}

void TargetRunner::reserve(const engine::SessionNeeds& needs, engine::Seed seed) {
    {
        const MutexLock lock(mutex_);
        seed_ = seed;
    }
    if (auto reserved = sink_.reserve(needs); !reserved) {
        feed(target_event::ReserveFailed{reserved.error()});
        return;
    }
    open_bulk();
    feed(target_event::Reserved{});
}

void TargetRunner::open_bulk() {
    std::optional<engine::MigrationId> migration;
    {
        const MutexLock lock(mutex_);
        migration = bulk_of_ == status_.migration ? std::nullopt : status_.migration;
        bulk_of_ = status_.migration;
    }
    if (migration) {
        hooks_.open_bulk(*migration);
    }
}

void TargetRunner::tell_of_round(engine::RoundGate::Verdict verdict, std::uint64_t round,
                                 const Error& why) {
    if (verdict == engine::RoundGate::Verdict::kApplied) {
        feed(target_event::RoundApplied{round});
    } else if (verdict == engine::RoundGate::Verdict::kLost) {
        feed(target_event::RoundLost{round, why});
    }
}

void TargetRunner::await_round(std::uint64_t round, std::uint64_t batch_count) {
    open_bulk();  // After a restart with the complete state, which has turned out to be void.
    const auto verdict = [&] {
        const MutexLock lock(mutex_);
        return gate_.await(round, batch_count);
    }();
    tell_of_round(verdict, round,
                  {Code::kAborted, "stream.dropped", "batches came while complete state was held"});
}

/// When it is known what is to become of it.
engine::RoundGate::Entry TargetRunner::begin_batch(std::uint64_t round, std::uint64_t batch) {
    MutexLock lock(mutex_);
    auto entry = engine::RoundGate::Entry::kWait;
    while (true) {
        entry = gate_.begin(round, batch, status_.state == engine::TargetState::kReceiving);
        if (entry != engine::RoundGate::Entry::kWait) {
            break;
        }
        batches_changed_->wait(lock);
    }
    return entry;
}

void TargetRunner::count_bytes(const control::BulkDown& batch) {
    std::uint64_t blocks = 0;
    for (const control::BatchRun& run : batch.blocks().runs()) {
        blocks += run.count();
    }
    const MutexLock lock(mutex_);
    status_.progress.bytes_content += blocks * engine::kBlockBytes;
    status_.progress.bytes_sent += batch.ByteSizeLong();
    status_.progress.percent = std::max(
        status_.progress.percent,
        engine::first_round_percent(status_.progress.bytes_content, status_.progress.bytes_total));
    count_remaining();
}

void TargetRunner::end_batch(const control::BulkDown& batch, const Result<void>& applied) {
    const auto verdict = [&] {
        const MutexLock lock(mutex_);
        return gate_.end(batch.round(), applied.ok());
    }();
    batches_changed_->notify_all();
    tell_of_round(verdict, batch.round(), applied.ok() ? Error{} : applied.error());
}

Result<void> TargetRunner::apply_graph(engine::PartId part, const control::GraphBatch& graph) {
    engine::Seed seed;
    {
        MutexLock lock(mutex_);
        while (is_preparing_) {
            batches_changed_->wait(lock);
        }
        is_preparing_ = true;
        seed = seed_;
    }
    if (!graph.images().empty()) {
        sink_.add_images(part, graph.images());
    }
    const Result<void> prepared = sink_.prepare(part, seed, graph.graph());
    {
        const MutexLock lock(mutex_);
        is_preparing_ = false;
    }
    batches_changed_->notify_all();
    return prepared;
}

Result<void> TargetRunner::apply_content(const control::BulkDown& batch) {
    const engine::PartId part{batch.part_id()};
    if (batch.has_graph()) {
        return apply_graph(part, batch.graph());
    }
    engine::BlockBatch out{
        {}, batch.blocks().content(), batch.blocks().lz4(), batch.blocks().content_bytes()};
    for (const control::BatchRun& run : batch.blocks().runs()) {
        if (run.space() < static_cast<std::uint32_t>(engine::MemorySpace::kDevice) ||
            run.space() > static_cast<std::uint32_t>(engine::MemorySpace::kArray)) {
            return Error{Code::kInvalidArgument, "stream.batch",
                         "the source names memory space " + std::to_string(run.space())};
        }
        out.runs.push_back({{static_cast<engine::MemorySpace>(run.space()), run.first()},
                            run.count(),
                            run.zero()});
    }
    return sink_.apply_batch(part, out);
}

Result<void> TargetRunner::apply(const control::BulkDown& batch) {
    count_bytes(batch);
    const auto entry = begin_batch(batch.round(), batch.batch());
    if (entry == engine::RoundGate::Entry::kUnwanted) {
        return Error{Code::kAborted, "stream.dropped",
                     "a batch came while complete state was held"};
    }
    if (entry != engine::RoundGate::Entry::kApply) {
        return {};
    }
    const Result<void> applied = apply_content(batch);
    if (!applied) {
        spdlog::warn("session {}: batch {} of round {}: {}", session_id_, batch.batch(),
                     batch.round(), applied.error().to_string());
    }
    end_batch(batch, applied);
    return applied;
}

void TargetRunner::bulk_lost(const Error& why) {
    std::uint64_t round = 0;
    {
        const MutexLock lock(mutex_);
        round = gate_.round();
    }
    if (round != 0) {
        feed(target_event::RoundLost{round, why});
    }
}

Result<void> TargetRunner::apply_parts(const std::vector<engine::FinalPart>& parts) {
    std::vector<engine::PartId> named;
    for (const engine::FinalPart& part : parts) {
        named.push_back(part.part);
    }
    sink_.keep_only(named);
    engine::BlockSetDigest all;
    for (const engine::FinalPart& part : parts) {
        GANTRY_TRY(sink_.apply_final(part));
        GANTRY_ASSIGN(const engine::BlockSetDigest digest, sink_.digest(part.part));
        if (digest != part.digest) {
            return Error{Code::kDataLoss, "migration.digest",
                         "part " + std::to_string(part.part.value) + " has " +
                             std::to_string(digest.block_count) + " blocks here and " +
                             std::to_string(part.digest.block_count) +
                             " at the source, or other bytes in them"};
        }
        all.merge(digest);
    }
    const MutexLock lock(mutex_);
    status_.digest = all;
    return {};
}

void TargetRunner::apply_complete(engine::FreezeToken token, std::vector<engine::FinalPart> parts) {
    Result<void> applied = apply_parts(parts);
    if (applied) {
        applied = sink_.mark_complete(token);
    }
    {
        const MutexLock lock(mutex_);
        applying_.reset();
    }
    if (applied) {
        feed(target_event::Applied{token});
    } else {
        feed(target_event::ApplyFailed{token, applied.error()});
    }
}

void TargetRunner::activate(Epoch epoch) {
    const Result<void> activated = sink_.activate(epoch);
    if (!activated) {
        spdlog::error("session {}: taking it into service failed: {}", session_id_,
                      activated.error().to_string());
        feed(target_event::ActivateFailed{activated.error()});
        return;
    }
    hooks_.activated(epoch);
    feed(target_event::Activated{});
}

void TargetRunner::retract() {
    main_->post([this, may_have_served = sink_.retract()] {
        if (!may_have_served) {  // a restart must not take the epoch for one that was served
            const auto known = store_.load(session_id_);
            if (known.ok() && *known && !(*known)->granted && (*known)->epoch == machine_.epoch()) {
                if (const Result<void> removed = store_.remove(session_id_); !removed) {
                    // The source waits, and its program with it: no reason to hold them up.
                    spdlog::error(
                        "session {}: {}; it goes back to its source all the same. Remove "
                        "the file before gantryd is started again",
                        session_id_, removed.error().to_string());
                }
            }
        }
        step(target_event::Retracted{may_have_served});
    });
}

}  // namespace gantry::supervisor
