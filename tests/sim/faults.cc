// What goes wrong: the link, gantryd, workers, power. Everything ends at heal_at.
#include "tests/sim/world.h"

namespace gantry::sim {

void World::plan_faults() {
    heal_at = Duration{60'000'000};
    end_at = heal_at + Duration{240'000'000};
    const double kLoss[] = {0.0, 0.02, 0.1, 0.3};
    const double kDuplication[] = {0.0, 0.05, 0.3};
    const double kSlow[] = {0.0, 0.02, 0.2};
    const double kCrash[] = {0.0, 0.0, 0.001, 0.01};
    loss = kLoss[random.between(0, 3)];
    duplication = kDuplication[random.between(0, 2)];
    slow = kSlow[random.between(0, 2)];
    crash_per_step = kCrash[random.between(0, 3)];
    const double kTakerCrash[] = {0.0, 0.0, 0.0, 0.3};
    taker_crash = kTakerCrash[random.between(0, 3)];
    for (std::int64_t i = random.between(-2, 3); i > 0; --i) {
        const Duration begin = delay(0, 45'000'000);
        const Duration length =
            random.chance(0.5) ? delay(1'000, 500'000) : delay(500'000, 15'000'000);
        at(begin, [this, length] {
            trace("link parts");
            partitioned = true;
            after(length, [this] { partitioned = false; });
        });
    }
    for (std::int64_t i = random.between(-2, 3); i > 0; --i) {
        const int host = static_cast<int>(random.between(0, 1));
        at(delay(0, 45'000'000), [this, host] { crash_daemon(host); });
    }
    if (random.chance(0.08)) {
        const int host = static_cast<int>(random.between(0, 1));
        at(delay(0, 45'000'000), [this, host] { crash_worker(host); });
    }
    if (random.chance(0.03)) {
        at(delay(0, 45'000'000), [this] { power_off(0); });
    }
    plan_silence();
    at(heal_at, [this] {
        trace("faults end");
        hosts[0].libvirt_silent_until = hosts[1].libvirt_silent_until = {};
        partitioned = false;
        loss = duplication = slow = crash_per_step = taker_crash = 0.0;
    });
}

/// libvirt answers nothing that it is asked about a domain; its events go on.
void World::plan_silence() {
    for (std::int64_t i = silence.between(-4, 2); i > 0; --i) {
        const int host = static_cast<int>(silence.between(0, 1));
        const Duration length{silence.between(5'000'000, 30'000'000)};
        at(Duration{silence.between(0, 40'000'000)}, [this, host, length] {
            trace("host %d: libvirt falls silent", host);
            hosts[host].libvirt_silent_until = now + length;
            ++verdict.silence_count;
        });
    }
}

void World::crash_daemon(int index) {
    Host& host = hosts[index];
    if (!host.daemon_up || !host.powered) {
        return;
    }
    trace("host %d: gantryd dies", index);
    ++verdict.crash_count;
    host.daemon_up = false;
    ++host.life;
    carriers->die(index);
    host.source.reset();
    host.target.reset();
    host.source_timer.reset();
    host.target_timer.reset();
    host.progress_of[0].reset();
    if (!host.worker || !host.worker->complete) {
        host.progress_of[1].reset();
    }
    host.guest_starting = false;
    host.arrival.reset();
    host.refused_by_name = 0;  // Nobody remembers: it asks again, once.
    if (job.active && job.hook_waiting && job.to == index) {
        hook_ended(index, false);
    }
    after(delay(50'000, 5'000'000), [this, index] { restart_daemon(index); });
}

void World::restart_daemon(int index) {
    Host& host = hosts[index];
    if (!host.powered) {
        return;
    }
    // What the old gantryd asked a worker for last is done before the new one learns its state.
    if (host.worker && now <= host.worker_free_at) {
        at(host.worker_free_at + Duration{1}, [this, index] { restart_daemon(index); });
        return;
    }
    trace("host %d: gantryd is back", index);
    host.daemon_up = true;
    Worker* worker = host.worker.get();
    const bool owned_before = host.disk && !host.disk->granted;
    const bool was_arriving = worker == nullptr && host.note;
    // A record of another epoch is of an attempt before.
    const bool owns_arrival = owned_before && host.note && host.disk->epoch == host.note->second;
    if (was_arriving && owns_arrival) {
        // Its worker died and gantryd with it, after the grant: what it had served nobody knows.
        trace("host %d: the session is lost", index);
        host.note.reset();
        worker_lost = true;
        guests[index].told = true;
    } else if (was_arriving || (worker != nullptr && !worker->serves_role)) {
        if (was_arriving) {
            host.progress_of[1].reset();
        }
        carriers->make_target(*this, index);
        target_event::Restarted event;
        event.migration = was_arriving ? host.note->first : *worker->receiving;
        event.complete = was_arriving ? std::nullopt : worker->complete;
        event.ticket = host.brought;
        if (owns_arrival) {
            host.has_served = true;     // for all that is known
            event.record = *host.disk;  // granted, and not in service yet
        }
        target_step(index, event);
        return;
    }
    if (worker != nullptr || host.disk) {
        source_event::Restarted event;
        event.record = host.disk.value_or(engine::DurableRecord{});
        event.ticket = host.ticket;
        if (worker != nullptr && worker->epoch.value > event.record.epoch.value) {
            event.record = {worker->epoch, false, {}, {}};
        }
        event.workers_alive = worker != nullptr;
        guests[index].told = guests[index].told || worker == nullptr;
        event.frozen = worker != nullptr ? worker->frozen : std::nullopt;
        event.announced = worker != nullptr && worker->announcement != 0;
        const bool granted = event.record.granted;
        start_source(index, event.record.epoch);
        source_step(index, event);
        ask_again(index);
        if (worker != nullptr && worker->receiving && !granted) {
            confirm_again(index);
        }
    }
    const bool guest_is_here = guests[index].domain != Domain::kAbsent;
    const bool stateless = worker == nullptr && !owned_before;
    if (guest_is_here && stateless && host.daemon_up) {
        // A guest with our metadata, and no session of it: it came while we were away.
        host.source.reset();
        host.brought = guests[index].stamp;
        start_target(index);
        target_step(index, target_event::GuestStarting{});
    }
}

/// The session is owned here; whether the source of that move was ever told is unknown.
void World::confirm_again(int index) {
    Host& host = hosts[index];
    if (!host.daemon_up) {
        return;
    }
    carriers->make_target(*this, index);
    target_event::Restarted event;
    event.migration = *host.worker->receiving;
    event.complete = host.worker->complete;
    event.record = {host.worker->epoch, false, {}, {}};
    event.active = true;
    event.ticket = host.brought;
    target_step(index, event);
}

void World::crash_worker(int index) {
    Host& host = hosts[index];
    if (!host.worker) {
        return;
    }
    trace("host %d: worker dies", index);
    // What only receives costs nothing: the source has all of it until something was served here.
    const Worker* other = hosts[1 - index].worker.get();
    const bool serves = host.worker->serves_role || host.has_served;
    const bool is_spare = !serves && other != nullptr && other->serves_role;
    if (!is_spare) {
        worker_lost = true;
    }
    if (serves) {
        guests[index].told = true;  // Its process gets CUDA errors: that is the promise.
    }
    host.worker.reset();
    if (host.source && host.source->state() != engine::SourceState::kReleased) {
        source_step(index, source_event::WorkerLost{});
    }
    if (host.target) {
        target_step(index, target_event::WorkerLost{});
    }
}

void World::power_off(int index) {
    Host& host = hosts[index];
    trace("host %d: power is off", index);
    if (guests[index].domain != Domain::kAbsent || !hosts[1 - index].worker) {
        worker_lost = true;
    }
    host.powered = false;
    host.daemon_up = false;
    ++host.life;
    carriers->die(index);
    host.source.reset();
    host.target.reset();
    host.worker.reset();
    guests[index] = {};
    if (!hosts[1 - index].worker || !hosts[1 - index].worker->serves_role) {
        worker_lost = true;
    }
    if (job.active) {
        if (outgoing[job.from]) {
            outgoing[job.from]->ended = now;
        }
        const int other = 1 - index;
        job.active = false;
        if (guests[other].domain == Domain::kPausedIncoming) {
            guests[other].domain = Domain::kAbsent;
            guest_event_target(other, target_event::GuestStopped{});
        }
    }
    migrations_left = 0;
}

}  // namespace gantry::sim
