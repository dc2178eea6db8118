// Carries out a source machine's actions, as gantryd does, against the simulated worker.
#include <algorithm>

#include "tests/sim/engine_carriers.h"

namespace gantry::sim {
namespace {

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

namespace {

/// What the machine is told under a mutation; nothing: it does not hear of that event.
std::optional<engine::SourceEvent> mutated(World& world, int index,
                                           const engine::SourceEvent& event) {
    Host& host = world.hosts[index];
    const auto* received = std::get_if<source_event::Received>(&event);
    const auto* domain = std::get_if<source_event::Domain>(&event);
    switch (world.options.mutation) {
        case Mutation::kIgnoreResumed:
            if (std::holds_alternative<source_event::GuestResumed>(event)) {
                return std::nullopt;
            }
            if (domain != nullptr && domain->report.domain == engine::DomainState::kRunning &&
                !machine_of(*host.source).serves()) {
                return source_event::Domain{{engine::DomainState::kUnknown, domain->report.job}};
            }
            return event;
        case Mutation::kGrantWithoutFrozen:
            if (received == nullptr) {
                return event;
            }
            if (const auto* asks = std::get_if<engine::MsgGrantRequest>(&received->message.body)) {
                const engine::MigrationId id = received->message.migration;
                host.disk = {host.source->epoch(), true, id, asks->token};
                if (host.worker && host.worker->serves_role) {
                    host.worker->fenced = true;
                }
                source_event::Restarted restarted;
                restarted.record = *host.disk;
                (void)machine_of(*host.source).step(restarted, world.now);
                world.send(index,
                           {id, engine::MsgGrant{asks->token, {host.source->epoch().value + 1}}});
                return std::nullopt;
            }
            return event;
        case Mutation::kKeepReturnedGrant:
            if (received != nullptr &&
                std::holds_alternative<engine::MsgGrantReturned>(received->message.body)) {
                return std::nullopt;
            }
            return event;
        case Mutation::kTakeAnyTicket: {
            if (received == nullptr) {
                return event;
            }
            source_event::Received fooled = *received;
            if (auto* prepare = std::get_if<engine::MsgPrepare>(&fooled.message.body)) {
                prepare->ticket = host.ticket;
            } else if (auto* asks = std::get_if<engine::MsgGrantRequest>(&fooled.message.body)) {
                asks->ticket = host.ticket;
            }
            return fooled;
        }
        case Mutation::kImagineJobs:
            if (domain != nullptr && domain->report.domain != engine::DomainState::kUnknown) {
                source_event::Domain fooled = *domain;
                fooled.report.job = engine::JobState::kOutgoing;
                return fooled;
            }
            return event;
        default: return event;
    }
}

/// Sends a round batch by batch while commands go on; each batch is staged when it is sent.
void source_send_round(World& world, int index, std::uint64_t round,
                       std::vector<std::size_t> blocks, std::size_t sent, std::uint64_t batch) {
    Host& host = world.hosts[index];
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
        world.send_bulk(index, bulk);
        world.after(
            world.delay(100, 30'000), [&world, index, round, blocks = std::move(blocks), sent,
                                       batch, life = host.life, op = host.source_op]() mutable {
                if (world.hosts[index].life == life && world.hosts[index].source_op == op) {
                    source_send_round(world, index, round, std::move(blocks), sent, batch + 1);
                }
            });
        return;
    }
    source_event::RoundSent event;
    event.round = round;
    event.stats.batch_count = batch;
    event.stats.bytes_resident = kBlocks * engine::kBlockBytes;
    event.stats.bytes_changed = blocks.size() * engine::kBlockBytes;
    event.stats.bytes_sent = blocks.size() * engine::kBlockBytes;
    world.source_step(index, event);
}

/// Carries out one action: one overload for each kind.
struct SourceCarrier {
    World& world;
    const int index;
    Host& host = world.hosts[index];
    const std::uint64_t life = host.life;

    [[nodiscard]] bool fails(double probability) const {
        return world.now < world.heal_at && world.random.chance(probability);
    }
    /// Runs something in the background and feeds its outcome to the machine, unless gantryd died.
    void answer(Duration in, std::function<engine::SourceEvent()> work) const {
        world.after(in, [&to = world, at = index, since = life, work = std::move(work)] {
            if (to.hosts[at].daemon_up && to.hosts[at].life == since) {
                to.source_step(at, work());
            }
        });
    }
    /// Of a worker's call, which is carried out although gantryd has died meanwhile.
    void feed(const engine::SourceEvent& event) const {
        if (world.hosts[index].life == life) {
            world.source_step(index, event);
        }
    }

    void operator()(const action::Send& send) const {
        const bool is_verdict = std::holds_alternative<engine::MsgConverged>(send.message.body) ||
                                std::holds_alternative<engine::MsgAbort>(send.message.body);
        if (world.options.mutation != Mutation::kHookWaitsForVerdict || !is_verdict) {
            world.send(index, send.message);
        }
    }
    void operator()(const action::Describe& /*describe*/) const {
        answer(world.worker_call(index, 100, 50'000), [&to = world, at = index] {
            to.stand_in(at);
            Worker* worker = to.hosts[at].worker.get();
            if (worker != nullptr && worker->announcement == 0) {
                worker->announcement = ++to.last_announcement;
            }
            return source_event::Described{describe(kBlocks * engine::kBlockBytes)};
        });
    }
    void operator()(const action::BeginPrecopy& /*begin*/) const {
        answer(world.worker_call(index, 100, 20'000), [&to = world, at = index] {
            if (Worker* worker = to.hosts[at].worker.get()) {
                worker->last_sent.assign(kBlocks, std::nullopt);
                worker->unacked_round.assign(kBlocks, 0);
            }
            return source_event::PrecopyBegun{};
        });
    }
    void operator()(const action::SendRound& send) const { send_round(send.round, false); }
    void operator()(const action::ResendRound& resend) const { send_round(resend.round, true); }
    void operator()(const action::Freeze& freeze) const {
        const bool will_fail = fails(0.05);
        world.after(world.worker_call(index, 200, 100'000),
                    [carrier = *this, token = freeze.token, will_fail] {
                        carrier.freeze_worker(token, will_fail);
                    });
    }
    void operator()(const action::SendComplete& send) const {
        const bool will_fail = fails(0.05);
        world.after(world.worker_call(index, 200, 20'000),
                    [carrier = *this, send, will_fail] { carrier.send_final(send, will_fail); });
    }
    void operator()(const action::PersistGrant& persist) const {
        world.check_grant(index, persist.record);
        const bool will_fail = fails(0.03);
        // The write may take effect some time before gantryd hears of it, or dies.
        const Duration write = world.delay(100, 20'000);
        const Duration heard = write + world.delay(0, 5'000);
        world.after(write,
                    [&to = world, at = index, since = life, record = persist.record, will_fail] {
                        if (!will_fail && (to.hosts[at].life == since || to.random.chance(0.5)) &&
                            to.hosts[at].powered) {
                            to.hosts[at].disk = record;
                            if (!record.granted) {
                                to.returned.push_back(record.granted_migration);
                            }
                        }
                    });
        const bool is_early = world.options.mutation == Mutation::kGrantBeforeDurable;
        answer(is_early ? Duration{0} : heard, [will_fail]() -> engine::SourceEvent {
            if (will_fail) {
                return source_event::GrantWriteFailed{};
            }
            return source_event::GrantDurable{};
        });
    }
    void operator()(const action::Fence& fence) const {
        const World::Job& job = world.job;
        if (fence.guest_is_here && job.active && job.from == index && job.postcopy_open) {
            world.violate("the guest's memory is pulled from here, and tells it of an error");
        }
        if (host.worker && host.worker->serves_role) {
            host.worker->fenced = true;
            host.worker->tells = host.worker->tells || fence.guest_is_here;
        }
    }
    void operator()(const action::Unfence& unfence) const {
        if (host.worker && host.worker->serves_role) {
            host.worker->fenced = host.worker->tells = false;
            host.worker->epoch = unfence.epoch;
            ++world.verdict.returned_count;
        }
    }
    void operator()(const action::Thaw& /*thaw*/) const {
        answer(world.worker_call(index, 100, 20'000), [&to = world, at = index] {
            to.stand_in(at);
            to.hosts[at].worker->frozen.reset();
            return source_event::Thawed{};
        });
    }
    void operator()(const action::EndPrecopy& /*end*/) const {
        ++host.source_op;
        if (world.options.mutation == Mutation::kAnnounceEachAttempt && host.worker) {
            host.worker->announcement = 0;
        }
    }
    void operator()(const action::EndAnnouncement& /*end*/) const {
        world.after(world.worker_call(index, 100, 20'000), [&to = world, at = index] {
            if (Worker* worker = to.hosts[at].worker.get()) {
                worker->announcement = 0;
            }
        });
    }
    void operator()(const action::Release& /*release*/) const {
        answer(world.delay(100, 20'000), [&to = world, at = index] {
            Host& then = to.hosts[at];
            if (then.worker && then.worker->serves_role && then.worker->fenced) {
                then.worker.reset();
                to.guests[at].told = true;
            }
            return source_event::Released{};
        });
    }
    void operator()(const action::QueryDomain& /*query*/) const {
        // The answer is as old as the time it took.
        answer(world.delay(100, 3'000), [&to = world, at = index,
                                         report = world.domain_report(index)] {
            return source_event::Domain{to.random.chance(0.7) ? to.domain_report(at) : report};
        });
    }
    void operator()(const action::AbortJob& /*abort*/) const {
        world.after(world.delay(1'000, 50'000), [&to = world, at = index] { to.abort_job(at); });
    }
    void operator()(const action::RenewTicket& /*renew*/) const {
        world.after(world.delay(500, 50'000), [carrier = *this] { carrier.renew_ticket(); });
    }
    void operator()(const action::Alert& alert) const { world.source_alert(index, alert); }
    void operator()(const action::ReportProgress& report) const {
        world.source_progress(index, report.progress);
    }
    void operator()(const action::Finished& finished) const {
        world.source_finished(index, finished.outcome, finished.error);
    }

    void renew_ticket() const;
    void send_round(std::uint64_t round, bool again) const;
    void freeze_worker(engine::FreezeToken token, bool will_fail) const;
    void send_final(const action::SendComplete& send, bool will_fail) const;
};

/// libvirt lets nobody write while it migrates the VM. gantryd may die between the VM's metadata
/// and its own record.
void SourceCarrier::renew_ticket() const {
    Guest& guest = world.guests[index];
    const bool is_here = guest.domain == Domain::kRunning || guest.domain == Domain::kPaused;
    if (!is_here || world.job.active || fails(0.1)) {
        feed(source_event::TicketFailed{});
        return;
    }
    guest.stamp = world.draw_ticket();
    world.tickets.push_back(guest.stamp);
    world.after(world.delay(100, 5'000), [carrier = *this, ticket = guest.stamp] {
        if (carrier.host.life == carrier.life) {
            carrier.host.ticket = ticket;
            carrier.feed(source_event::TicketStands{ticket});
        }
    });
}

void SourceCarrier::send_round(std::uint64_t round, bool again) const {
    const std::uint64_t op = ++host.source_op;
    const double failing = world.now < world.heal_at ? 0.05 : 0.0;
    world.after(world.delay(500, 30'000), [carrier = *this, again, round, op, failing] {
        Host& then = carrier.host;
        if (then.life != carrier.life || then.source_op != op || !then.worker || !then.source) {
            return;
        }
        if (carrier.world.random.chance(failing)) {
            carrier.feed(source_event::RoundFailed{
                round, {Code::kUnavailable, "stream.broken", "injected"}});
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
        source_send_round(carrier.world, carrier.index, round, std::move(changed), 0, 0);
    });
}

/// The request may reach the worker although gantryd has died meanwhile.
void SourceCarrier::freeze_worker(engine::FreezeToken token, bool will_fail) const {
    if (!host.worker) {
        feed(source_event::FreezeFailed{{Code::kUnavailable, "worker.gone", "injected"}});
    }
    if (!host.worker || !host.worker->serves_role || host.worker->fenced) {
        return;
    }
    const bool fresh = !host.worker->frozen;
    if (fresh && will_fail) {
        feed(source_event::FreezeFailed{{Code::kDeadlineExceeded, "drain.timeout", "injected"}});
        return;
    }
    const bool is_late = host.life != life;
    if (is_late && !world.random.chance(0.3)) {
        return;
    }
    if (is_late && !fresh) {
        return;
    }
    host.worker->frozen = token;
    feed(source_event::Frozen{token});
}

void SourceCarrier::send_final(const action::SendComplete& send, bool will_fail) const {
    if (host.life != life || !host.worker || host.worker->frozen != send.token || !host.source ||
        !host.source->migration()) {
        return;
    }
    const World::Job& job = world.job;
    if (job.from == index && job.announcement && !host.worker->dead &&
        world.guests[index].domain != Domain::kRunning &&
        host.worker->announcement != *job.announcement) {
        world.violate("the final state lacks what the GPU wrote since QEMU copied the guest");
    }
    if (will_fail) {
        feed(source_event::CompleteFailed{send.token,
                                          {Code::kUnavailable, "worker.gone", "injected"}});
        return;
    }
    engine::MsgComplete complete;
    complete.token = send.token;
    complete.round = send.round;
    complete.parts.push_back(final_part(*host.worker));
    world.send(index, {*host.source->migration(), complete});
    feed(source_event::CompleteSent{send.token});
}

const char* message_of(const engine::SourceEvent& event) {
    const auto* received = std::get_if<source_event::Received>(&event);
    return received == nullptr ? "" : message_name(received->message);
}

}  // namespace

void EngineCarriers::make_source(World& world, int index, Epoch epoch) {
    Host& host = world.hosts[index];
    host.source =
        std::make_unique<EngineSource>(engine::SourceMachine("vm", epoch, world.settings));
    host.source_timer.reset();
}

void EngineCarriers::source_step(World& world, int index, const engine::SourceEvent& given) {
    Host& host = world.hosts[index];
    if (!host.source || !host.daemon_up) {
        return;
    }
    const auto event = mutated(world, index, given);
    if (!event) {
        return;
    }
    const engine::SourceState before = host.source->state();
    const bool was_moving = host.source->migration().has_value();
    const engine::SourceActions actions = machine_of(*host.source).step(*event, world.now);
    world.check_answer(index, given, actions);
    world.check_begin(index, was_moving);
    if (world.options.trace) {
        world.trace("host %d source: %s %s  %s -> %s", index, engine::event_name(*event),
                    message_of(*event), to_string(before), to_string(host.source->state()));
    }
    const std::uint64_t life = host.life;
    for (const engine::SourceAction& one : actions) {
        std::visit(SourceCarrier{world, index}, one);
        if (world.random.chance(world.crash_per_step)) {
            world.crash_daemon(index);
        }
        if (host.life != life) {
            return;
        }
    }
    const auto due = host.source ? machine_of(*host.source).next_deadline() : std::nullopt;
    if (due && due != host.source_timer) {
        host.source_timer = due;
        world.at(*due, [&world, index, life, due] {
            Host& then = world.hosts[index];
            if (then.daemon_up && then.life == life && then.source_timer == due) {
                then.source_timer.reset();
                world.source_step(index, source_event::Timer{});
            }
        });
    } else if (!due) {
        host.source_timer.reset();
    }
}

}  // namespace gantry::sim
