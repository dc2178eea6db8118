// libvirt and QEMU as far as two gantryds see them: what was observed of plain `virsh migrate
// --live` on libvirt 9.0 and QEMU 7.2, failures included. Events come late or not at all.
#include "tests/sim/world.h"

namespace gantry::sim {

void World::plan_migrations() {
    migrations_left = static_cast<int>(random.between(1, 3));
    after(delay(100'000, 2'000'000), [this] { virsh_migrate(); });
}

void World::guest_event_source(int index, const engine::SourceEvent& event) {
    if (now < heal_at && random.chance(0.04)) {
        return;
    }
    after(delay(300, 16'000), [this, index, event] { source_step(index, event); });
}

void World::guest_event_target(int index, const engine::TargetEvent& event) {
    if (now < heal_at && random.chance(0.04)) {
        return;
    }
    after(delay(300, 16'000), [this, index, event] {
        Host& host = hosts[index];
        if (!host.daemon_up) {
            return;
        }
        if (std::holds_alternative<target_event::GuestStarting>(event)) {
            host.guest_starting = true;
        } else if (std::holds_alternative<target_event::GuestStopped>(event)) {
            host.guest_starting = false;
            host.arrival.reset();
        } else {
            host.arrival = event;
        }
        target_step(index, event);
    });
}

engine::DomainReport World::domain_report(int index) const {
    const bool is_silent = now < hosts[index].libvirt_silent_until;
    if (is_silent || (now < heal_at && (now.count() / 1000) % 29 == 0)) {
        return {engine::DomainState::kUnknown, engine::JobState::kUnknown};
    }
    engine::DomainReport report;
    report.job = engine::JobState::kNone;
    switch (guests[index].domain) {
        case Domain::kAbsent:
            report.domain = engine::DomainState::kAbsent;
            report.cause = guests[index].cause;
            break;
        case Domain::kPaused:
            report.domain = engine::DomainState::kPaused;
            report.cause = guests[index].cause;
            break;
        case Domain::kRunning: report.domain = engine::DomainState::kRunning; break;
        case Domain::kPausedIncoming:
            report.domain = engine::DomainState::kPaused;
            report.job = engine::JobState::kIncoming;
            break;
    }
    if (job.active && index == job.from) {
        report.job = engine::JobState::kOutgoing;
    } else if (job.active && index == job.to && job.postcopy_open) {
        report.job = engine::JobState::kIncoming;
    }
    return report;
}

void World::virsh_migrate() {
    if (migrations_left == 0) {
        return;
    }
    if (now < theft_ends) {  // who has its ticket, and asks just as it begins, is not kept out
        at(theft_ends, [this] { virsh_migrate(); });
        return;
    }
    int from = -1;
    for (int i = 0; i < 2; ++i) {
        if (guests[i].domain == Domain::kRunning && guests[1 - i].domain == Domain::kAbsent) {
            from = i;
        }
    }
    if (from < 0 || job.active || now > Duration{40'000'000}) {
        --migrations_left;
        after(delay(500'000, 3'000'000), [this] { virsh_migrate(); });
        return;
    }
    const std::uint64_t number = job.number + 1;
    job = {};
    job.number = number;
    job.active = true;
    job.hook_waiting = true;
    job.hook_begun = now;
    job.from = from;
    job.to = 1 - from;
    job.script =
        random.chance(0.4)
            ? Script::kPlain
            : static_cast<Script>(random.between(0, static_cast<int>(Script::kTargetQemuDies)));
    outgoing[from] = Outgoing{name_of(job.to), guests[from].stamp, false, std::nullopt};
    hosts[job.to].brought = guests[from].stamp;
    trace("virsh migrate %d -> %d, script %d", from, job.to, static_cast<int>(job.script));
    if (job.script == Script::kOperatorPaused) {
        guests[from].domain = Domain::kPaused;
        guests[from].cause = engine::StopCause::kOther;
    }
    if (bounds.chance(0.1)) {  // an operator accepts whatever pause it takes
        after(Duration{bounds.between(100'000, 6'000'000)},
              [this, from] { source_step(from, source_event::OperatorForce{}); });
    }
    Host& target = hosts[job.to];
    target.refused_by_name = 0;
    if (target.source && target.source->state() == engine::SourceState::kReleased) {
        target.source.reset();
    }
    const bool busy = target.source != nullptr || target.worker != nullptr ||
                      (target.target && target.target->state() != engine::TargetState::kDone &&
                       target.target->state() != engine::TargetState::kDiscarded);
    if (!target.daemon_up || busy) {
        // Its own session is still here: the guest stays where it is until it has followed.
        const bool is_behind = target.worker && target.worker->serves_role && target.source;
        verdict.behind_count += is_behind ? 1U : 0U;
        hook_ended(job.to, false);
        return;
    }
    target.guest_starting = false;
    target.arrival.reset();
    start_target(job.to);
}

void World::job_over() {
    if (!job.active) {
        return;
    }
    trace("virsh ends");
    job.active = false;
    job.hook_waiting = false;
    outgoing[job.from]->ended = now;
    --migrations_left;
    if (guests[job.from].domain == Domain::kPaused && job.script == Script::kOperatorPaused) {
        after(delay(500'000, 3'000'000), [this, from = job.from] {  // the operator resumes it
            if (guests[from].domain == Domain::kPaused) {
                guests[from].domain = Domain::kRunning;
                guest_event_source(from, source_event::GuestResumed{});
            }
        });
    }
    after(delay(2'000'000, 8'000'000), [this] { virsh_migrate(); });
}

void World::hook_ended(int index, bool admitted) {
    if (!job.active || !job.hook_waiting || job.to != index) {
        return;
    }
    job.hook_waiting = false;
    if (!admitted) {
        job_over();
        return;
    }
    after(delay(100'000, 400'000), [this, number = job.number] { libvirt_phase(number, 1); });
}

/// The migration fails before the point of no return: the guest goes on at the source.
void World::roll_back_job() {
    const bool was_paused = guests[job.from].domain == Domain::kPaused;
    guest_event_source(job.from, source_event::JobFailed{});
    if (was_paused && job.script != Script::kOperatorPaused) {
        guests[job.from].domain = Domain::kRunning;
        guest_event_source(job.from, source_event::GuestResumed{});
    }
    const int to = job.to;
    after(delay(0, 1'500'000), [this, to, number = job.number] {
        if (job.number == number && guests[to].domain == Domain::kPausedIncoming) {
            guests[to].domain = Domain::kAbsent;
            guest_event_target(to, target_event::GuestStopped{});
        }
    });
    job_over();
}

void World::abort_job(int index) {
    if (job.active && job.from == index && !job.past_no_return) {
        trace("job aborted");
        roll_back_job();
    }
}

void World::libvirt_phase(std::uint64_t number, int phase) {
    if (!job.active || job.number != number) {
        return;
    }
    Guest& source = guests[job.from];
    Guest& target = guests[job.to];
    const auto next = [&](int to_phase, std::int64_t low, std::int64_t high) {
        after(delay(low, high), [this, number, to_phase] { libvirt_phase(number, to_phase); });
    };
    const auto pause = [&] {
        if (source.domain == Domain::kRunning) {
            source.domain = Domain::kPaused;
            source.cause = engine::StopCause::kMigration;
            guest_event_source(job.from, source_event::GuestSuspended{});
        }
        outgoing[job.from]->has_stopped_guest = true;
    };
    trace("libvirt phase %d", phase);
    switch (phase) {
        case 1:  // an incoming QEMU is up
            if (const Worker* worker = hosts[job.from].worker.get()) {
                job.announcement = worker->announcement;
            }
            target.domain = Domain::kPausedIncoming;
            target.stamp = source.stamp;
            target.told = false;
            hosts[job.to].guest_came = true;
            guest_event_target(job.to, target_event::GuestStarting{});
            next(2, 100'000, 3'000'000);
            break;
        case 2:  // RAM was copied while the guest ran
            switch (job.script) {
                case Script::kAbortInPrecopy: roll_back_job(); break;
                case Script::kTargetQemuDies:
                    target.domain = Domain::kAbsent;
                    guest_event_target(job.to, target_event::GuestStopped{});
                    roll_back_job();
                    break;
                case Script::kSuspendEarlyThenAbort:
                    pause();
                    next(20, 500'000, 6'000'000);
                    break;
                case Script::kSuspendEarlyThenResumeThenGo:
                    pause();
                    next(21, 500'000, 3'000'000);
                    break;
                default: next(3, 0, 1'000); break;
            }
            break;
        case 20: roll_back_job(); break;
        case 21:
            source.domain = Domain::kRunning;
            guest_event_source(job.from, source_event::GuestResumed{});
            next(3, 10'000, 2'000'000);
            break;
        case 3:  // the pause
            pause();
            if (random.chance(0.5)) {
                guest_event_source(job.from, source_event::GuestPreSwitchover{});
            }
            if (job.script == Script::kAbortAfterPause) {
                next(20, 10'000, 500'000);
            } else {
                next(job.script == Script::kPostcopy ? 30 : 4, 50'000, 150'000);
            }
            break;
        case 30:  // postcopy: runs at the target, memory incomplete
            job.past_no_return = true;
            job.postcopy_open = true;
            target.issued = source.issued;
            target.domain = Domain::kRunning;
            guest_event_target(job.to, target_event::GuestResumedPostcopy{});
            next(31, 500'000, 3'000'000);
            break;
        case 31:
            job.postcopy_open = false;
            guest_event_target(job.to, target_event::GuestResumedMigrated{});
            next(6, 100'000, 400'000);
            break;
        case 4:  // QEMU says "completed", which is not the commit
            if (job.script == Script::kRollbackAfterCompleted) {
                roll_back_job();
                break;
            }
            job.past_no_return = true;
            target.issued = source.issued;
            if (job.script == Script::kOperatorPaused) {
                target.domain = Domain::kPaused;
                guest_event_target(job.to, target_event::GuestArrivedPaused{});
                after(delay(1'000'000, 10'000'000), [this, to = job.to] {
                    if (guests[to].domain == Domain::kPaused) {
                        guests[to].domain = Domain::kRunning;
                        guest_event_target(to, target_event::GuestResumedMigrated{});
                    }
                });
            } else {
                target.domain = Domain::kRunning;
                guest_event_target(job.to, target_event::GuestResumedMigrated{});
            }
            next(job.script == Script::kSplitBrain ? 5 : 6, 100'000, 400'000);
            break;
        case 5:  // the reply of Finish was lost: libvirt resumes the source as well
            source.domain = Domain::kRunning;
            guest_event_source(job.from, source_event::GuestResumed{});
            job_over();
            break;
        case 6:
            source.domain = Domain::kAbsent;
            // One that was not kept defined is not asked any more why it went.
            source.cause =
                theft.chance(0.7) ? engine::StopCause::kMigration : engine::StopCause::kUnknown;
            hosts[job.from].guest_came = false;
            guest_event_source(job.from, source_event::GuestGone{});
            job_over();
            break;
        default: break;
    }
}

}  // namespace gantry::sim
