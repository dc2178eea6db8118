// Carries out a target machine's actions, as gantryd does, against the simulated worker.
#include <algorithm>

#include "tests/sim/world.h"

namespace gantry::sim {
namespace {

engine::TargetCapabilities capabilities() {
    engine::TargetCapabilities target;
    target.gpu_name = "sim";
    target.cc = {9, 0};
    target.memory_total_bytes = 1 << 24;
    target.memory_free_bytes = 1 << 24;
    return target;
}

}  // namespace

void World::start_target(int index) {
    Host& host = hosts[index];
    host.target = std::make_unique<engine::TargetMachine>("vm", settings);
    host.target_timer.reset();
    host.gate = {};
    host.waiting.clear();
    host.awaited_round.reset();
    ++host.target_attempt;
    target_step(index, target_event::AdmissionAsked{
                           {random.next(), random.next()}, capabilities(), host.brought});
    // A retried attempt is told what libvirt said before it began.
    if (host.guest_starting || (host.guest_came && guests[index].domain != Domain::kAbsent)) {
        target_step(index, target_event::GuestStarting{});
    }
    if (host.arrival) {
        target_step(index, *host.arrival);
    }
}

void World::tell_of_round(int index, std::uint64_t round, engine::RoundGate::Verdict became) {
    if (became == engine::RoundGate::Verdict::kOpen) {
        return;
    }
    hosts[index].awaited_round.reset();
    if (became == engine::RoundGate::Verdict::kApplied) {
        target_step(index, target_event::RoundApplied{round});
    } else {
        target_step(index, target_event::RoundLost{round, {}});
    }
}

namespace {

/// Carries out one action: one overload for each kind.
struct TargetCarrier {
    World& world;
    const int index;
    Host& host = world.hosts[index];
    const std::uint64_t life = host.life;
    const std::uint64_t attempt = host.target_attempt;

    [[nodiscard]] bool fails(double probability) const {
        return world.now < world.heal_at && world.random.chance(probability);
    }
    /// Unless gantryd has died meanwhile, or another attempt has begun.
    void later(Duration in, std::function<void()> work) const {
        world.after(in, [carrier = *this, work = std::move(work)] {
            if (carrier.host.daemon_up && carrier.is_current()) {
                work();
            }
        });
    }
    /// The calls to the sink, one after another.
    void call_sink(std::int64_t low_us, std::int64_t high_us, std::function<void()> work) const {
        host.sink_free_at = std::max(world.now, host.sink_free_at) + world.delay(low_us, high_us);
        later(host.sink_free_at - world.now, std::move(work));
    }
    [[nodiscard]] bool is_current() const {
        return host.life == life && host.target_attempt == attempt;
    }
    void feed(const engine::TargetEvent& event) const { world.target_step(index, event); }

    void operator()(const action::Send& send) const { world.send(index, send.message); }
    void operator()(const action::QueryDomain& /*query*/) const {
        later(world.delay(100, 3'000), [carrier = *this, report = world.domain_report(index)] {
            World& to = carrier.world;
            carrier.feed(target_event::Domain{
                to.random.chance(0.7) ? to.domain_report(carrier.index) : report});
        });
    }
    void operator()(const action::Reserve& /*reserve*/) const {
        const bool will_fail = fails(0.02) || host.worker != nullptr;
        later(world.delay(500, 100'000),
              [carrier = *this, will_fail] { carrier.reserve_worker(will_fail); });
    }
    void operator()(const action::Admit& /*admit*/) const { world.hook_ended(index, true); }
    void operator()(const action::RefuseAdmission& /*refuse*/) const {
        world.hook_ended(index, false);
    }
    void operator()(const action::AwaitRound& await) const {
        host.awaited_round = await.round;
        // What a broken stream is to the real driver: batches that do not come.
        later(Duration{2'000'000}, [carrier = *this, round = await.round] {
            if (carrier.host.awaited_round == round) {
                carrier.host.awaited_round.reset();
                carrier.feed(target_event::RoundLost{round, {}});
            }
        });
        world.tell_of_round(index, await.round, host.gate.await(await.round, await.batch_count));
    }
    void operator()(const action::ApplyComplete& apply) const {
        const bool will_fail = fails(0.03);
        later(world.delay(500, 80'000),
              [carrier = *this, token = apply.token, part = apply.parts.at(0), will_fail] {
                  carrier.apply_final(token, part, will_fail);
              });
    }
    void operator()(const action::UnmarkComplete& /*unmark*/) const {
        if (host.worker && !host.worker->serves_role) {
            host.worker->complete.reset();
        }
    }
    void operator()(const action::PersistOwned& persist) const {
        call_sink(100, 20'000, [carrier = *this, record = persist.record] {
            // A grant of the same epoch may have been written since: the newer fact wins.
            std::optional<engine::DurableRecord>& disk = carrier.host.disk;
            if (!disk || disk->epoch.value < record.epoch.value) {
                disk = record;
            }
            carrier.feed(target_event::OwnedDurable{});
        });
    }
    void operator()(const action::Activate& activate) const {
        call_sink(500, 50'000,
                  [carrier = *this, epoch = activate.epoch] { carrier.activate_worker(epoch); });
    }
    void operator()(const action::Retract& /*retract*/) const {
        call_sink(100, 20'000, [carrier = *this] { carrier.retract_worker(); });
    }
    void operator()(const action::Discard& /*discard*/) const {
        if (host.worker && host.worker->serves_role) {
            if (host.worker->executes() && host.worker->epoch == host.target->epoch()) {
                world.violate("the target discards a session that it serves");
            }
        } else {
            host.worker.reset();
            host.note.reset();
        }
    }
    void operator()(const action::Alert& alert) const {
        world.trace("host %d target alert: %s", index, alert.error.reason.c_str());
        if ((alert.error.reason == "migration.awaiting_source" ||
             alert.error.reason == "migration.peer_silent") &&
            !world.hosts[1 - index].powered) {
            // A person looks, sees that the source host is dead and fenced, and says so.
            world.fenced_by_operator = true;
            later(Duration{1'000'000},
                  [carrier = *this] { carrier.feed(target_event::OperatorFenced{}); });
        }
    }
    void operator()(const action::ReportProgress& report) const {
        if (host.progress_of[1] != host.target->migration()) {
            host.progress_of[1] = host.target->migration();
            host.percent[1] = 0.0;
        }
        if (report.progress.percent < host.percent[1]) {
            world.violate("the target's progress ran backwards");
        }
        host.percent[1] = report.progress.percent;
    }
    void operator()(const action::Finished& finished) const {
        world.target_finished(index, finished.outcome, finished.error);
    }

    void reserve_worker(bool will_fail) const;
    void apply_final(engine::FreezeToken token, const engine::FinalPart& part,
                     bool will_fail) const;
    void activate_worker(Epoch epoch) const;
    void retract_worker() const;
};

void TargetCarrier::reserve_worker(bool will_fail) const {
    if (host.target->state() != engine::TargetState::kReserving) {
        return;  // discarded meanwhile
    }
    if (will_fail) {
        feed(target_event::ReserveFailed{
            {Code::kResourceExhausted, "gpu.memory.in_use", "injected"}});
        return;
    }
    host.worker = std::make_unique<Worker>();
    host.has_served = false;
    host.worker->receiving = host.target->migration();
    host.note = {*host.target->migration(), host.target->epoch()};
    feed(target_event::Reserved{});
}

void TargetCarrier::apply_final(engine::FreezeToken token, const engine::FinalPart& part,
                                bool will_fail) const {
    if (!host.worker) {
        return;
    }
    engine::BlockSetDigest digest;
    for (std::size_t i = 0; i < kBlocks; ++i) {
        digest.add(1, i, {host.worker->device[i], 0});
    }
    const bool equal = digest == part.digest ||
                       world.options.mutation == Mutation::kApplyStaleBatches ||
                       world.options.mutation == Mutation::kCountEarly;
    if (!equal || will_fail) {
        feed(target_event::ApplyFailed{token,
                                       {Code::kDataLoss, "digest.differs", "digests differ"}});
        return;
    }
    host.worker->dead = part.graph == kDeadGraph;
    host.worker->next_seq = host.worker->dead ? 0 : std::stoull(part.graph);
    host.worker->complete = token;
    feed(target_event::Applied{token});
}

void TargetCarrier::activate_worker(Epoch epoch) const {
    const Host& other = world.hosts[1 - index];
    if (!host.worker && host.has_served) {  // the processes that are left are served
        feed(target_event::Activated{});
        return;
    }
    if (!host.worker) {
        feed(target_event::ActivateFailed{{Code::kUnavailable, "worker.gone", "injected"}});
        return;
    }
    const bool granted =
        other.disk && other.disk->granted && other.disk->epoch.value + 1 == epoch.value;
    if (!granted && !world.fenced_by_operator && !host.worker->serves_role) {
        world.violate("host " + std::to_string(index) + " takes up service as epoch " +
                      std::to_string(epoch.value) + " without a grant on the other's disk");
        return;
    }
    if (world.fenced_by_operator && host.worker->next_seq != world.executed) {
        // The guest's memory shows answers that this state never gave.
        world.worker_lost = true;
        feed(target_event::ActivateFailed{{Code::kDataLoss, "session.stale", "newer answers"}});
        return;
    }
    host.worker->serves_role = true;
    host.worker->epoch = epoch;
    host.has_served = true;
    host.note.reset();
    world.guests[index].told = host.worker->dead;
    host.sink_free_at += world.delay(0, 40'000);
    world.after(host.sink_free_at - world.now, [carrier = *this] {
        if (carrier.is_current()) {
            carrier.feed(target_event::Activated{});
        }
    });
}

void TargetCarrier::retract_worker() const {
    const bool may_have_served =
        host.has_served && world.options.mutation != Mutation::kReturnUnproven;
    if (!may_have_served) {
        const bool is_noted =
            host.disk && !host.disk->granted && host.disk->epoch == host.target->epoch();
        if (is_noted) {
            host.disk.reset();
        }
        if (host.worker && !host.worker->serves_role) {
            host.worker.reset();
        }
    }
    feed(target_event::Retracted{may_have_served});
}

const char* message_of(const engine::TargetEvent& event) {
    const auto* received = std::get_if<target_event::Received>(&event);
    return received == nullptr ? "" : message_name(received->message);
}

}  // namespace

void World::target_step(int index, const engine::TargetEvent& event) {
    Host& host = hosts[index];
    if (!host.target || !host.daemon_up) {
        return;
    }
    const engine::TargetState before = host.target->state();
    const std::uint64_t attempt = host.target_attempt;
    const std::uint64_t life = host.life;
    engine::TargetActions actions = host.target->step(event, now);
    if (options.trace) {
        trace("host %d target: %s %s  %s -> %s", index, engine::event_name(event),
              message_of(event), to_string(before), to_string(host.target->state()));
    }
    if (options.mutation == Mutation::kActivateBeforeGrant) {
        for (engine::TargetAction& one : actions) {
            if (const auto* sent = std::get_if<action::Send>(&one);
                sent != nullptr &&
                std::holds_alternative<engine::MsgGrantRequest>(sent->message.body)) {
                one = action::Activate{host.target->epoch()};
            }
        }
    }
    for (const engine::TargetAction& one : actions) {
        std::visit(TargetCarrier{*this, index}, one);
        if (random.chance(crash_per_step)) {
            crash_daemon(index);
        }
        if (host.target_attempt != attempt || host.life != life) {
            return;
        }
    }
    const engine::TargetState state = host.target->state();
    const bool is_taking =
        state == engine::TargetState::kRequesting || state == engine::TargetState::kActivating;
    if (is_taking && state != before && random.chance(taker_crash)) {
        after(delay(0, 60'000), [this, index] { crash_worker(index); });
    }
    if (state == engine::TargetState::kServing && !host.source && host.worker) {
        start_source(index, host.target->epoch());  // from here on this host is the arbiter
        source_step(index, source_event::Opened{});
        if (host.life != life) {
            return;
        }
    }
    const auto due = host.target->next_deadline();
    if (due && due != host.target_timer) {
        host.target_timer = due;
        at(*due, [this, index, attempt, life, due] {
            Host& then = hosts[index];
            if (then.daemon_up && then.life == life && then.target_attempt == attempt &&
                then.target_timer == due) {
                then.target_timer.reset();
                target_step(index, target_event::Timer{});
            }
        });
    } else if (!due) {
        host.target_timer.reset();
    }
}

/// Whoever is refused for good is told so and asks no more; whoever may have it asks once, and
/// waits.
void World::check_asking(int index, engine::Outcome outcome, const Error& why) {
    constexpr int kUnknownMax =
        6;  // Prepares are lost, and a job that is being cancelled takes 10 s
    constexpr int kRefusedMax = 2;  // the second when libvirt had not told where the guest is
    Host& host = hosts[index];
    const bool is_unknown =
        outcome == engine::Outcome::kRetry && why.reason == engine::kUnknownMigration;
    host.unknown_in_a_row = is_unknown ? host.unknown_in_a_row + 1 : 0;
    const bool is_refused = why.reason == engine::peer_refusal::kTicket ||
                            why.reason == engine::peer_refusal::kOtherTarget ||
                            why.reason == engine::peer_refusal::kNoJob;
    host.refused_by_name += is_refused ? 1 : 0;
    if (host.unknown_in_a_row > kUnknownMax || host.refused_by_name > kRefusedMax) {
        violate("the target asks without end: " + why.reason);
    }
}

void World::target_finished(int index, engine::Outcome outcome, const Error& why) {
    trace("host %d target finished: %s %s", index, to_string(outcome), why.reason.c_str());
    check_asking(index, outcome, why);
    const bool has_memory = !(job.active && job.to == index && job.postcopy_open);
    if (outcome == engine::Outcome::kMoved) {
        hosts[index].guest_came = false;
    } else if (outcome != engine::Outcome::kRetry && guests[index].domain == Domain::kRunning &&
               has_memory &&
               (hosts[index].target->guest_is_here() || outcome != engine::Outcome::kRolledBack)) {
        hosts[index].guest_came = false;  // refused for good
        guests[index].told = true;
    }
    if (outcome == engine::Outcome::kRetry) {
        const std::uint64_t life = hosts[index].life;
        const std::uint64_t attempt = hosts[index].target_attempt;
        after(delay(10'000, 200'000), [this, index, life, attempt] {
            if (hosts[index].life == life && hosts[index].target_attempt == attempt) {
                start_target(index);
            }
        });
    }
}

}  // namespace gantry::sim
