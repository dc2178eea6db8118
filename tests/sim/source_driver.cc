// Carries out a source machine's actions, as gantryd does, against the simulated worker.
#include <algorithm>

#include "tests/sim/world.h"

namespace gantry::sim {
namespace {

using engine::ActionKind;
using engine::SourceEvent;
using engine::SourceEventKind;

SourceEvent source_event(SourceEventKind kind) {
    SourceEvent event;
    event.kind = kind;
    return event;
}

engine::SessionNeeds describe(std::uint64_t resident_bytes) {
    engine::SessionNeeds needs;
    needs.session_id = "vm";
    needs.memory_quota_bytes = 1 << 20;
    needs.cc_min = {8, 0};
    engine::PartNeed part;
    part.part = {1};
    part.resident_bytes = resident_bytes;
    needs.parts.push_back(part);
    return needs;
}

engine::FinalPart final_part(const Worker& worker) {
    engine::FinalPart part;
    part.part = {1};
    part.graph = worker.dead ? kDeadGraph : std::to_string(worker.next_seq);
    for (std::size_t i = 0; i < kBlocks; ++i) {
        part.digest.add(1, i, {worker.device[i], 0});
    }
    return part;
}

}  // namespace

void World::start_source(int index, Epoch epoch) {
    Host& host = hosts[index];
    host.source = std::make_unique<engine::SourceMachine>("vm", epoch, settings);
    host.source_timer.reset();
}

/// A machine that goes on after its workers died finds a session without programs.
void World::stand_in(int index) {
    Host& host = hosts[index];
    if (!host.worker) {
        host.worker = std::make_unique<Worker>();
        host.worker->serves_role = true;
        host.worker->dead = true;
        host.worker->epoch = host.source->epoch();
    }
}

void World::source_step(int index, const SourceEvent& given) {
    Host& host = hosts[index];
    if (!host.source || !host.daemon_up) {
        return;
    }
    SourceEvent event = given;
    if (options.mutation == Mutation::kIgnoreResumed) {
        if (event.kind == SourceEventKind::kGuestResumed) {
            return;
        }
        if (event.kind == SourceEventKind::kDomain &&
            event.domain.domain == engine::DomainState::kRunning) {
            event.domain.domain = engine::DomainState::kUnknown;
        }
    }
    if (options.mutation == Mutation::kGrantWithoutFrozen &&
        event.kind == SourceEventKind::kMessage) {
        if (const auto* request = std::get_if<engine::MsgGrantRequest>(&event.message->body)) {
            const engine::MigrationId id = event.message->migration;
            host.disk = {host.source->epoch(), true, id, request->token};
            if (host.worker && host.worker->serves_role) {
                host.worker->fenced = true;
            }
            SourceEvent restarted = source_event(SourceEventKind::kRestarted);
            restarted.record = *host.disk;
            (void)host.source->step(restarted, now);
            send(index, {id, engine::MsgGrant{request->token, {host.source->epoch().value + 1}}});
            return;
        }
    }
    if (options.mutation == Mutation::kKeepReturnedGrant && event.message &&
        std::holds_alternative<engine::MsgGrantReturned>(event.message->body)) {
        return;
    }
    const engine::SourceState before = host.source->state();
    const engine::Actions actions = host.source->step(event, now);
    if (options.trace) {
        trace("host %d source: %s%s%s  %s -> %s", index, to_string(event.kind),
              event.message ? " " : "", event.message ? message_name(*event.message) : "",
              to_string(before), to_string(host.source->state()));
    }
    const std::uint64_t life = host.life;
    for (const engine::Action& action : actions) {
        source_act(index, action);
        if (random.chance(crash_per_step)) {
            crash_daemon(index);
        }
        if (host.life != life) {
            return;
        }
    }
    const auto due = host.source ? host.source->next_deadline() : std::nullopt;
    if (due && due != host.source_timer) {
        host.source_timer = due;
        at(*due, [this, index, life, due] {
            Host& then = hosts[index];
            if (then.daemon_up && then.life == life && then.source_timer == due) {
                then.source_timer.reset();
                source_step(index, source_event(SourceEventKind::kTimer));
            }
        });
    } else if (!due) {
        host.source_timer.reset();
    }
}

void World::source_act(int index, const engine::Action& action) {
    Host& host = hosts[index];
    const std::uint64_t life = host.life;
    // Runs something in the background and feeds its outcome to the machine, unless gantryd died.
    const auto answer = [this, index, life](Duration in, std::function<SourceEvent()> work) {
        after(in, [this, index, life, work = std::move(work)] {
            if (hosts[index].daemon_up && hosts[index].life == life) {
                source_step(index, work());
            }
        });
    };
    const bool faulty = now < heal_at;
    switch (action.kind) {
        case ActionKind::kSend: send(index, *action.message); break;
        case ActionKind::kDescribe:
            answer(worker_call(index, 100, 50'000), [this, index] {
                stand_in(index);
                Worker* worker = hosts[index].worker.get();
                if (worker != nullptr && worker->announcement == 0) {
                    worker->announcement = ++last_announcement;
                }
                SourceEvent event = source_event(SourceEventKind::kDescribed);
                event.needs = describe(kBlocks * engine::kBlockBytes);
                return event;
            });
            break;
        case ActionKind::kBeginPrecopy:
            answer(worker_call(index, 100, 20'000), [this, index] {
                if (Worker* worker = hosts[index].worker.get()) {
                    worker->last_sent.assign(kBlocks, std::nullopt);
                    worker->unacked_round.assign(kBlocks, 0);
                }
                return source_event(SourceEventKind::kPrecopyBegun);
            });
            break;
        case ActionKind::kSendRound:
        case ActionKind::kResendRound: {
            const bool again = action.kind == ActionKind::kResendRound;
            const std::uint64_t round = action.round;
            const std::uint64_t op = ++host.source_op;
            const double failing = faulty ? 0.05 : 0.0;
            after(delay(500, 30'000), [this, index, life, again, round, op, failing] {
                Host& then = hosts[index];
                if (then.life != life || then.source_op != op || !then.worker || !then.source) {
                    return;
                }
                if (random.chance(failing)) {
                    SourceEvent event = source_event(SourceEventKind::kRoundFailed);
                    event.round = round;
                    event.error = {Code::kUnavailable, "stream.broken", "injected"};
                    source_step(index, event);
                    return;
                }
                Worker& worker = *then.worker;
                std::vector<std::size_t> changed;
                for (std::size_t i = 0; i < kBlocks; ++i) {
                    if (again && worker.unacked_round[i] != 0) {
                        worker.last_sent[i].reset();
                    }
                    if (worker.last_sent[i] != worker.device[i]) {
                        changed.push_back(i);
                    }
                }
                source_send_round(index, round, std::move(changed), 0, 0);
            });
            break;
        }
        case ActionKind::kFreeze: {
            const engine::FreezeToken token = action.token;
            const bool fails = faulty && random.chance(0.05);
            after(worker_call(index, 200, 100'000), [this, index, life, token, fails] {
                Host& then = hosts[index];
                if (!then.worker && then.life == life) {
                    SourceEvent event = source_event(SourceEventKind::kFreezeFailed);
                    event.error = {Code::kUnavailable, "worker.gone", "injected"};
                    source_step(index, event);
                }
                if (!then.worker || !then.worker->serves_role || then.worker->fenced) {
                    return;
                }
                // The request may reach the worker although gantryd has died meanwhile.
                const bool fresh = !then.worker->frozen;
                if (fresh && fails) {
                    if (then.life == life) {
                        SourceEvent event = source_event(SourceEventKind::kFreezeFailed);
                        event.error = {Code::kDeadlineExceeded, "drain.timeout", "injected"};
                        source_step(index, event);
                    }
                    return;
                }
                if (then.life != life && !random.chance(0.3)) {
                    return;
                }
                if (then.life != life && !fresh) {
                    return;
                }
                then.worker->frozen = token;
                if (then.life == life) {
                    SourceEvent event = source_event(SourceEventKind::kFrozen);
                    event.token = token;
                    source_step(index, event);
                }
            });
            break;
        }
        case ActionKind::kSendComplete: {
            const engine::FreezeToken token = action.token;
            const std::uint64_t round = action.round;
            const bool fails = faulty && random.chance(0.05);
            after(worker_call(index, 200, 20'000), [this, index, life, token, round, fails] {
                Host& then = hosts[index];
                if (then.life != life || !then.worker || then.worker->frozen != token ||
                    !then.source || !then.source->migration()) {
                    return;
                }
                if (job.from == index && job.announcement && !then.worker->dead &&
                    guests[index].domain != Domain::kRunning &&
                    then.worker->announcement != *job.announcement) {
                    violate("the final state lacks what the GPU wrote since QEMU copied the guest");
                }
                if (fails) {
                    SourceEvent event = source_event(SourceEventKind::kCompleteFailed);
                    event.token = token;
                    event.error = {Code::kUnavailable, "worker.gone", "injected"};
                    source_step(index, event);
                    return;
                }
                engine::MsgComplete complete;
                complete.token = token;
                complete.round = round;
                complete.parts.push_back(final_part(*then.worker));
                send(index, {*then.source->migration(), complete});
                SourceEvent event = source_event(SourceEventKind::kCompleteSent);
                event.token = token;
                source_step(index, event);
            });
            break;
        }
        case ActionKind::kPersistGrant: {
            const engine::DurableRecord record = *action.record;
            const bool fails = faulty && random.chance(0.03);
            // The write may take effect some time before gantryd hears of it, or dies.
            const Duration write = delay(100, 20'000);
            const Duration heard = write + delay(0, 5'000);
            after(write, [this, index, life, record, fails] {
                if (!fails && (hosts[index].life == life || random.chance(0.5)) &&
                    hosts[index].powered) {
                    hosts[index].disk = record;
                }
            });
            const auto outcome = [fails] {
                return source_event(fails ? SourceEventKind::kGrantWriteFailed
                                          : SourceEventKind::kGrantDurable);
            };
            if (options.mutation == Mutation::kGrantBeforeDurable) {
                answer(Duration{0}, outcome);
            } else {
                answer(heard, outcome);
            }
            break;
        }
        case ActionKind::kFence:
            if (action.guest_is_here && job.active && job.from == index && job.postcopy_open) {
                violate("the guest's memory is pulled from here, and tells it of an error");
            }
            if (host.worker && host.worker->serves_role) {
                host.worker->fenced = true;
                host.worker->tells = host.worker->tells || action.guest_is_here;
            }
            break;
        case ActionKind::kUnfence:
            if (host.worker && host.worker->serves_role) {
                host.worker->fenced = host.worker->tells = false;
                host.worker->epoch = action.epoch;
                ++verdict.returned_count;
            }
            break;
        case ActionKind::kThaw:
            answer(worker_call(index, 100, 20'000), [this, index] {
                stand_in(index);
                hosts[index].worker->frozen.reset();
                return source_event(SourceEventKind::kThawed);
            });
            break;
        case ActionKind::kEndPrecopy:
            ++host.source_op;
            if (options.mutation == Mutation::kAnnounceEachAttempt && host.worker) {
                host.worker->announcement = 0;
            }
            break;
        case ActionKind::kEndAnnouncement:
            after(worker_call(index, 100, 20'000), [this, index] {
                if (Worker* worker = hosts[index].worker.get()) {
                    worker->announcement = 0;
                }
            });
            break;
        case ActionKind::kRelease:
            answer(delay(100, 20'000), [this, index] {
                Host& then = hosts[index];
                if (then.worker && then.worker->serves_role && then.worker->fenced) {
                    then.worker.reset();
                    guests[index].told = true;
                }
                return source_event(SourceEventKind::kReleased);
            });
            break;
        case ActionKind::kQueryDomain:
            // The answer is as old as the time it took.
            answer(delay(100, 3'000), [this, index, report = domain_report(index)] {
                SourceEvent event = source_event(SourceEventKind::kDomain);
                event.domain = random.chance(0.7) ? domain_report(index) : report;
                return event;
            });
            break;
        case ActionKind::kAbortJob:
            after(delay(1'000, 50'000), [this, index] { abort_job(index); });
            break;
        case ActionKind::kAlert:
            trace("host %d source alert: %s", index, action.error.reason.c_str());
            verdict.split_brain_count += action.alert == engine::AlertKind::kSplitBrain ? 1U : 0U;
            break;
        case ActionKind::kReportProgress:
            if (host.progress_of[0] != host.source->migration()) {
                host.progress_of[0] = host.source->migration();
                host.percent[0] = 0.0;
            }
            if (host.source->migration() && action.progress->percent < host.percent[0]) {
                violate("the source's progress ran backwards");
            }
            host.percent[0] = action.progress->percent;
            break;
        case ActionKind::kFinished:
            trace("host %d source finished: %s %s", index, to_string(action.outcome),
                  action.error.reason.c_str());
            verdict.moved_count += action.outcome == engine::Outcome::kMoved ? 1U : 0U;
            verdict.rolled_back_count += action.outcome == engine::Outcome::kRolledBack ? 1U : 0U;
            break;
        default: violate("the source machine asked for a target's action"); break;
    }
}

/// Sends a round batch by batch while commands go on; each batch is staged when it is sent.
void World::source_send_round(int index, std::uint64_t round, std::vector<std::size_t> blocks,
                              std::size_t sent, std::uint64_t batch) {
    Host& host = hosts[index];
    if (!host.worker || !host.source || !host.source->migration()) {
        return;
    }
    constexpr std::size_t kBatchBlocks = 6;
    if (sent < blocks.size()) {
        Bulk bulk{*host.source->migration(), round, batch, {}};
        for (std::size_t i = 0; i < kBatchBlocks && sent < blocks.size(); ++i, ++sent) {
            const std::size_t block = blocks[sent];
            const std::uint64_t staged = host.worker->device[block];
            host.worker->last_sent[block] = staged;
            host.worker->unacked_round[block] = round;
            bulk.blocks.emplace_back(block, staged);
        }
        send_bulk(index, bulk);
        after(delay(100, 30'000), [this, index, round, blocks = std::move(blocks), sent, batch,
                                   life = host.life, op = host.source_op]() mutable {
            if (hosts[index].life == life && hosts[index].source_op == op) {
                source_send_round(index, round, std::move(blocks), sent, batch + 1);
            }
        });
        return;
    }
    SourceEvent event = source_event(SourceEventKind::kRoundSent);
    event.round = round;
    event.stats.batch_count = batch;
    event.stats.bytes_resident = kBlocks * engine::kBlockBytes;
    event.stats.bytes_changed = blocks.size() * engine::kBlockBytes;
    event.stats.bytes_sent = blocks.size() * engine::kBlockBytes;
    source_step(index, event);
}

}  // namespace gantry::sim
