// Carries out a target machine's actions, as gantryd does, against the simulated worker.
#include <algorithm>

#include "tests/sim/engine_carriers.h"

namespace gantry::sim {
namespace {

void tell_of_round(World& world, int index, std::uint64_t round,
                   engine::RoundGate::Verdict became) {
    if (became == engine::RoundGate::Verdict::kOpen) {
        return;
    }
    world.hosts[index].awaited_round.reset();
    if (became == engine::RoundGate::Verdict::kApplied) {
        world.target_step(index, target_event::RoundApplied{round});
    } else {
        world.target_step(index, target_event::RoundLost{round, {}});
    }
}

bool receives(const Host& host, const Bulk& bulk) {
    return host.target && host.target->migration() == bulk.migration && host.worker &&
           !host.worker->serves_role && host.worker->receiving == bulk.migration;
}

void apply_bulk(World& world, int to, const Bulk& bulk, bool is_counted) {
    Host& host = world.hosts[to];
    const bool is_there = receives(host, bulk);
    if (is_there) {
        for (const auto& [block, word] : bulk.blocks) {
            host.worker->device[block] = word;
        }
        host.worker->complete.reset();  // apply_blocks voids mark_complete
    }
    if (is_counted) {
        tell_of_round(world, to, bulk.round, host.gate.end(bulk.round, is_there));
    }
    for (const Bulk& waited : std::exchange(host.waiting, {})) {
        world.carriers->deliver_bulk(world, to, waited);
    }
}

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
        tell_of_round(world, index, await.round, host.gate.await(await.round, await.batch_count));
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
    void operator()(const action::Alert& alert) const { world.target_alert(index, alert.error); }
    void operator()(const action::ReportProgress& report) const {
        world.target_progress(index, report.progress);
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

void EngineCarriers::make_target(World& world, int index) {
    Host& host = world.hosts[index];
    host.target = std::make_unique<EngineTarget>(engine::TargetMachine("vm", world.settings));
    host.target_timer.reset();
    host.gate = {};
    host.waiting.clear();
    host.awaited_round.reset();
    ++host.target_attempt;
}

void EngineCarriers::target_step(World& world, int index, const engine::TargetEvent& event) {
    Host& host = world.hosts[index];
    if (!host.target || !host.daemon_up) {
        return;
    }
    const engine::TargetState before = host.target->state();
    const std::uint64_t attempt = host.target_attempt;
    const std::uint64_t life = host.life;
    engine::TargetActions actions = machine_of(*host.target).step(event, world.now);
    if (world.options.trace) {
        world.trace("host %d target: %s %s  %s -> %s", index, engine::event_name(event),
                    message_of(event), to_string(before), to_string(host.target->state()));
    }
    if (world.options.mutation == Mutation::kActivateBeforeGrant) {
        for (engine::TargetAction& one : actions) {
            if (const auto* sent = std::get_if<action::Send>(&one);
                sent != nullptr &&
                std::holds_alternative<engine::MsgGrantRequest>(sent->message.body)) {
                one = action::Activate{host.target->epoch()};
            }
        }
    }
    for (const engine::TargetAction& one : actions) {
        std::visit(TargetCarrier{world, index}, one);
        if (world.random.chance(world.crash_per_step)) {
            world.crash_daemon(index);
        }
        if (host.target_attempt != attempt || host.life != life) {
            return;
        }
    }
    const engine::TargetState state = host.target->state();
    const bool is_taking =
        state == engine::TargetState::kRequesting || state == engine::TargetState::kActivating;
    if (is_taking && state != before && world.random.chance(world.taker_crash)) {
        world.after(world.delay(0, 60'000), [&world, index] { world.crash_worker(index); });
    }
    if (state == engine::TargetState::kServing && !host.source && host.worker) {
        world.start_source(index, host.target->epoch());  // from here on this host is the arbiter
        world.source_step(index, source_event::Opened{});
        if (host.life != life) {
            return;
        }
    }
    const auto due = machine_of(*host.target).next_deadline();
    if (due && due != host.target_timer) {
        host.target_timer = due;
        world.at(*due, [&world, index, attempt, life, due] {
            Host& then = world.hosts[index];
            if (then.daemon_up && then.life == life && then.target_attempt == attempt &&
                then.target_timer == due) {
                then.target_timer.reset();
                world.target_step(index, target_event::Timer{});
            }
        });
    } else if (!due) {
        host.target_timer.reset();
    }
}

void EngineCarriers::deliver_bulk(World& world, int to, const Bulk& bulk) {
    Host& host = world.hosts[to];
    if (!receives(host, bulk)) {
        return;
    }
    const auto entry =
        host.gate.begin(bulk.round, bulk.batch, machine_of(*host.target).accepts_blocks());
    if (entry == engine::RoundGate::Entry::kWait) {
        host.waiting.push_back(bulk);
        return;
    }
    const bool is_counted = entry == engine::RoundGate::Entry::kApply;
    if (!is_counted && world.options.mutation != Mutation::kApplyStaleBatches) {
        return;
    }
    // Now and then longer than the target waits for a round, which is sent again meanwhile.
    const bool is_slow = world.now < world.heal_at && world.applying.chance(0.02);
    world.after(Duration{world.applying.between(10, is_slow ? 4'000'000 : 5'000)},
                [&world, to, bulk,
                 is_counted = is_counted && world.options.mutation != Mutation::kCountEarly,
                 life = host.life, attempt = host.target_attempt] {
                    if (world.hosts[to].life == life && world.hosts[to].target_attempt == attempt) {
                        apply_bulk(world, to, bulk, is_counted);
                    }
                });
    if (is_counted && world.options.mutation == Mutation::kCountEarly) {
        tell_of_round(world, to, bulk.round, host.gate.end(bulk.round, true));
    }
}

std::unique_ptr<Carriers> make_engine_carriers() { return std::make_unique<EngineCarriers>(); }

}  // namespace gantry::sim
