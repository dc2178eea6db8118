// Carries out a target machine's actions, as gantryd does, against the simulated worker.
#include <algorithm>

#include "tests/sim/world.h"

namespace gantry::sim {
namespace {

using engine::ActionKind;
using engine::TargetEvent;
using engine::TargetEventKind;

TargetEvent target_event(TargetEventKind kind) {
    TargetEvent event;
    event.kind = kind;
    return event;
}

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
    host.receiver = {};
    host.awaited_round.reset();
    ++host.target_attempt;
    TargetEvent event = target_event(TargetEventKind::kAdmissionAsked);
    event.migration = {random.next(), random.next()};
    event.capabilities = capabilities();
    target_step(index, event);
    // A retried attempt is told what libvirt said before it began.
    if (host.guest_starting || (host.guest_came && guests[index].domain != Domain::kAbsent)) {
        target_step(index, target_event(TargetEventKind::kGuestStarting));
    }
    if (host.arrival) {
        target_step(index, target_event(*host.arrival));
    }
}

void World::target_step(int index, const TargetEvent& event) {
    Host& host = hosts[index];
    if (!host.target || !host.daemon_up) {
        return;
    }
    const engine::TargetState before = host.target->state();
    const std::uint64_t attempt = host.target_attempt;
    const std::uint64_t life = host.life;
    engine::Actions actions = host.target->step(event, now);
    if (options.trace) {
        trace("host %d target: %s%s%s  %s -> %s", index, to_string(event.kind),
              event.message ? " " : "", event.message ? message_name(*event.message) : "",
              to_string(before), to_string(host.target->state()));
    }
    if (options.mutation == Mutation::kActivateBeforeGrant) {
        for (engine::Action& action : actions) {
            if (action.kind == ActionKind::kSend &&
                std::holds_alternative<engine::MsgGrantRequest>(action.message->body)) {
                action.kind = ActionKind::kActivate;
                action.epoch = host.target->epoch();
            }
        }
    }
    for (const engine::Action& action : actions) {
        target_act(index, action);
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
    }
    const auto due = host.target->next_deadline();
    if (due && due != host.target_timer) {
        host.target_timer = due;
        at(*due, [this, index, attempt, life, due] {
            Host& then = hosts[index];
            if (then.daemon_up && then.life == life && then.target_attempt == attempt &&
                then.target_timer == due) {
                then.target_timer.reset();
                target_step(index, target_event(TargetEventKind::kTimer));
            }
        });
    } else if (!due) {
        host.target_timer.reset();
    }
}

void World::check_round(int index) {
    Host& host = hosts[index];
    if (host.awaited_round && host.receiver.complete(*host.awaited_round)) {
        TargetEvent event = target_event(TargetEventKind::kRoundApplied);
        event.round = *host.awaited_round;
        host.awaited_round.reset();
        target_step(index, event);
    }
}

void World::target_act(int index, const engine::Action& action) {
    Host& host = hosts[index];
    const std::uint64_t life = host.life;
    const std::uint64_t attempt = host.target_attempt;
    const auto later = [this, index, life, attempt](Duration in, std::function<void()> work) {
        after(in, [this, index, life, attempt, work = std::move(work)] {
            const Host& then = hosts[index];
            if (then.daemon_up && then.life == life && then.target_attempt == attempt) {
                work();
            }
        });
    };
    const bool faulty = now < heal_at;
    switch (action.kind) {
        case ActionKind::kSend: send(index, *action.message); break;
        case ActionKind::kQueryDomain:
            later(delay(100, 3'000), [this, index, report = domain_report(index)] {
                TargetEvent event = target_event(TargetEventKind::kDomain);
                event.domain = random.chance(0.7) ? domain_report(index) : report;
                target_step(index, event);
            });
            break;
        case ActionKind::kReserve: {
            const bool fails = (faulty && random.chance(0.02)) || host.worker != nullptr;
            later(delay(500, 100'000), [this, index, fails] {
                Host& then = hosts[index];
                if (then.target->state() != engine::TargetState::kReserving) {
                    return;  // discarded meanwhile
                }
                TargetEvent event = target_event(fails ? TargetEventKind::kReserveFailed
                                                       : TargetEventKind::kReserved);
                if (fails) {
                    event.error = {Code::kResourceExhausted, "gpu.memory.in_use", "injected"};
                } else {
                    then.worker = std::make_unique<Worker>();
                    then.has_served = false;
                    then.worker->receiving = then.target->migration();
                    then.note = {*then.target->migration(), then.target->epoch()};
                }
                target_step(index, event);
            });
            break;
        }
        case ActionKind::kAdmit: hook_ended(index, true); break;
        case ActionKind::kRefuseAdmission: hook_ended(index, false); break;
        case ActionKind::kAwaitRound:
            host.receiver.end(action.round, action.batch_count);
            host.awaited_round = action.round;
            // What a broken stream is to the real driver: batches that do not come.
            later(Duration{2'000'000}, [this, index, round = action.round] {
                if (hosts[index].awaited_round == round) {
                    TargetEvent event = target_event(TargetEventKind::kRoundLost);
                    event.round = round;
                    hosts[index].awaited_round.reset();
                    target_step(index, event);
                }
            });
            check_round(index);
            break;
        case ActionKind::kApplyComplete: {
            const engine::FreezeToken token = action.token;
            const engine::FinalPart part = action.parts.at(0);
            const bool fails = faulty && random.chance(0.03);
            later(delay(500, 80'000), [this, index, token, part, fails] {
                Host& then = hosts[index];
                if (!then.worker) {
                    return;
                }
                engine::BlockSetDigest digest;
                for (std::size_t i = 0; i < kBlocks; ++i) {
                    digest.add(1, i, {then.worker->device[i], 0});
                }
                const bool equal =
                    digest == part.digest || options.mutation == Mutation::kApplyStaleBatches;
                const bool good = equal && !fails;
                if (good) {
                    then.worker->dead = part.graph == kDeadGraph;
                    then.worker->next_seq = then.worker->dead ? 0 : std::stoull(part.graph);
                    then.worker->complete = token;
                }
                TargetEvent event =
                    target_event(good ? TargetEventKind::kApplied : TargetEventKind::kApplyFailed);
                event.token = token;
                event.error = {Code::kDataLoss, "digest.differs", "digests differ"};
                target_step(index, event);
            });
            break;
        }
        case ActionKind::kUnmarkComplete:
            if (host.worker && !host.worker->serves_role) {
                host.worker->complete.reset();
            }
            break;
        case ActionKind::kPersistOwned:
            host.sink_free_at = std::max(now, host.sink_free_at) + delay(100, 20'000);
            later(host.sink_free_at - now, [this, index, record = *action.record] {
                // A grant of the same epoch may have been written since: the newer fact wins.
                std::optional<engine::DurableRecord>& disk = hosts[index].disk;
                if (!disk || disk->epoch.value < record.epoch.value) {
                    disk = record;
                }
                target_step(index, target_event(TargetEventKind::kOwnedDurable));
            });
            break;
        case ActionKind::kActivate: {
            const Epoch epoch = action.epoch;
            host.sink_free_at = std::max(now, host.sink_free_at) + delay(500, 50'000);
            later(host.sink_free_at - now, [this, index, epoch] {
                Host& then = hosts[index];
                const Host& other = hosts[1 - index];
                if (!then.worker && then.has_served) {  // the processes that are left are served
                    target_step(index, target_event(TargetEventKind::kActivated));
                    return;
                }
                if (!then.worker) {
                    TargetEvent failed = target_event(TargetEventKind::kActivateFailed);
                    failed.error = {Code::kUnavailable, "worker.gone", "injected"};
                    target_step(index, failed);
                    return;
                }
                const bool granted =
                    other.disk && other.disk->granted && other.disk->epoch.value + 1 == epoch.value;
                if (!granted && !fenced_by_operator && !then.worker->serves_role) {
                    violate("host " + std::to_string(index) + " takes up service as epoch " +
                            std::to_string(epoch.value) + " without a grant on the other's disk");
                    return;
                }
                if (fenced_by_operator && then.worker->next_seq != executed) {
                    // The guest's memory shows answers that this state never gave.
                    worker_lost = true;
                    TargetEvent failed = target_event(TargetEventKind::kActivateFailed);
                    failed.error = {Code::kDataLoss, "session.stale", "newer answers"};
                    target_step(index, failed);
                    return;
                }
                then.worker->serves_role = true;
                then.worker->epoch = epoch;
                then.has_served = true;
                then.note.reset();
                guests[index].told = then.worker->dead;
                then.sink_free_at += delay(0, 40'000);
                after(then.sink_free_at - now,
                      [this, index, life = then.life, attempt = then.target_attempt] {
                          if (hosts[index].life == life && hosts[index].target_attempt == attempt) {
                              target_step(index, target_event(TargetEventKind::kActivated));
                          }
                      });
            });
            break;
        }
        case ActionKind::kDiscard:
            if (host.worker && host.worker->serves_role) {
                if (host.worker->executes() && host.worker->epoch == host.target->epoch()) {
                    violate("the target discards a session that it serves");
                }
            } else {
                host.worker.reset();
                host.note.reset();
            }
            break;
        case ActionKind::kRetract:
            host.sink_free_at = std::max(now, host.sink_free_at) + delay(100, 20'000);
            later(host.sink_free_at - now, [this, index] {
                Host& then = hosts[index];
                TargetEvent event = target_event(TargetEventKind::kRetracted);
                event.active = then.has_served && options.mutation != Mutation::kReturnUnproven;
                if (!event.active) {
                    const bool is_noted = then.disk && !then.disk->granted &&
                                          then.disk->epoch == then.target->epoch();
                    if (is_noted) {
                        then.disk.reset();
                    }
                    if (then.worker && !then.worker->serves_role) {
                        then.worker.reset();
                    }
                }
                target_step(index, event);
            });
            break;
        case ActionKind::kAlert:
            trace("host %d target alert: %s", index, action.error.reason.c_str());
            if ((action.error.reason == "migration.awaiting_source" ||
                 action.error.reason == "migration.peer_silent") &&
                !hosts[1 - index].powered) {
                // A person looks, sees that the source host is dead and fenced, and says so.
                fenced_by_operator = true;
                later(Duration{1'000'000}, [this, index] {
                    target_step(index, target_event(TargetEventKind::kOperatorFenced));
                });
            }
            break;
        case ActionKind::kReportProgress:
            if (host.progress_of[1] != host.target->migration()) {
                host.progress_of[1] = host.target->migration();
                host.percent[1] = 0.0;
            }
            if (action.progress->percent < host.percent[1]) {
                violate("the target's progress ran backwards");
            }
            host.percent[1] = action.progress->percent;
            break;
        case ActionKind::kFinished: target_finished(index, action.outcome); break;
        default: violate("the target machine asked for a source's action"); break;
    }
}

void World::target_finished(int index, engine::Outcome outcome) {
    trace("host %d target finished: %s", index, to_string(outcome));
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
