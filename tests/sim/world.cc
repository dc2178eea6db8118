#include "tests/sim/world.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace gantry::sim {

std::uint64_t Random::next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

std::int64_t Random::between(std::int64_t low, std::int64_t high) {
    const auto span = static_cast<std::uint64_t>(high - low + 1);
    return low + static_cast<std::int64_t>(next() % span);
}

bool Random::chance(double probability) {
    return static_cast<double>(next() >> 11) < probability * 9007199254740992.0;
}

void execute_command(Device& device, std::uint64_t seq) {
    Random mixer(seq);
    const std::size_t target = mixer.next() % device.size();
    const std::size_t other = mixer.next() % device.size();
    device[target] = device[target] * 3 + (device[other] ^ mixer.next()) + 1;
    if (mixer.next() % 8 == 0) {
        device[other] = 0;  // zero blocks must come about
    }
}

World::World(const Options& given, std::unique_ptr<Carriers> carried_by)
    : options(given),
      random(given.seed * 2 + 1),
      confusion(given.seed * 2),
      applying(~given.seed),
      bounds(~given.seed * 3),
      theft(given.seed * 2 + 1 + (1ULL << 63)),
      silence(~given.seed * 5),
      carriers(std::move(carried_by)) {
    settings.downtime_target = Duration{300'000};
    settings.hook_wait_max = Duration{5'000'000};
    settings.reservation_ttl = Duration{10'000'000};
    settings.round_deadline = Duration{5'000'000};
    settings.peer_silence = Duration{10'000'000};
    settings.switchover_deadline = Duration{15'000'000};
    settings.operator_deadline = Duration{60'000'000};
    settings.arrival_deadline = Duration{60'000'000};
    settings.rounds_max = 8;
    settings.hook_hold_max = Duration{12'000'000};
    if (bounds.chance(0.35)) {  // A guest that writes faster than the link carries it.
        settings.downtime_target = Duration{65'000};
        settings.downtime_max = Duration{bounds.between(70'000, 130'000)};
    }
    if (options.mutation == Mutation::kHookWaitsForVerdict) {
        settings.hook_hold_max = Duration{3'600'000'000};
    }
}

Duration World::delay(std::int64_t low_us, std::int64_t high_us) {
    return Duration{random.between(low_us, high_us)};
}

Duration World::worker_call(int host, std::int64_t low_us, std::int64_t high_us) {
    TimePoint& free_at = hosts[host].worker_free_at;
    free_at = std::max(now, free_at) + delay(low_us, high_us);
    return free_at - now;
}

void World::at(TimePoint when, std::function<void()> what) {
    queue.push({std::max(when, now), next_order++, std::move(what)});
}

void World::trace(const char* format, ...) {
    if (!options.trace) {
        return;
    }
    std::printf("%10.3f  ", static_cast<double>(now.count()) / 1e3);
    va_list arguments;
    va_start(arguments, format);
    std::vprintf(format, arguments);
    va_end(arguments);
    std::putchar('\n');
}

void World::violate(const std::string& what) {
    if (verdict.ok) {
        verdict.ok = false;
        verdict.violation = what + " (at " + std::to_string(now.count() / 1000) + " ms)";
        trace("VIOLATION: %s", what.c_str());
    }
    stopped = true;
}

/// One turn of a host's worker: takes some of the commands that the guest here has issued.
void World::execute(int host) {
    Worker* worker = hosts[host].worker.get();
    Guest& guest = guests[host];
    // A guest whose calls are not answered stops issuing them: its threads wait.
    if (guest.domain == Domain::kRunning && guest.issued < executed + 24) {
        guest.issued += static_cast<std::uint64_t>(random.between(0, 3));
    }
    if (guest.domain != Domain::kRunning || guest.issued <= executed) {
        guest.advanced_at = now;
    }
    if (worker == nullptr || !worker->executes() || guest.domain == Domain::kAbsent ||
        guest.domain == Domain::kPausedIncoming) {
        return;
    }
    std::int64_t budget = random.between(0, 8);
    while (worker->next_seq < guest.issued && budget-- > 0) {
        if (worker->next_seq != executed) {
            violate("host " + std::to_string(host) + " executed command " +
                    std::to_string(worker->next_seq) + " when command " + std::to_string(executed) +
                    " was due: lost or repeated work");
            return;
        }
        execute_command(worker->device, worker->next_seq);
        execute_command(reference, executed);
        ++worker->next_seq;
        ++executed;
        guest.advanced_at = now;
        if (worker->device != reference) {
            violate("host " + std::to_string(host) +
                    "'s device memory differs from the reference "
                    "after command " +
                    std::to_string(executed - 1));
            return;
        }
    }
}

/// libvirt waits for the hook, and the operator for libvirt.
void World::check_hook() {
    constexpr Duration kDecides{30'000'000};  // Longer than any of its deadlines.
    if (job.active && job.hook_waiting && hosts[job.to].daemon_up &&
        now > job.hook_begun + kDecides) {
        violate("libvirt's hook waits without end");
    }
}

void World::check() {
    check_hook();
    int executing = 0;
    bool complete_somewhere = false;
    for (const Host& host : hosts) {
        if (const Worker* worker = host.worker.get()) {
            executing += worker->executes() ? 1 : 0;
            complete_somewhere =
                complete_somewhere || (worker->next_seq == executed && worker->device == reference);
        }
    }
    if (executing > 1) {
        violate("both hosts execute the session's commands: two owners");
    }
    if (!complete_somewhere && !worker_lost) {
        violate("no host has the complete state of the session any more");
    }
}

/// What gantryd does now and then, events being unreliable: a guest that came by a migration and
/// has no session here needs one fetched.
void World::look_for_orphans() {
    for (Host& host : hosts) {
        const bool busy = host.target && host.target->state() != engine::TargetState::kDiscarded;
        if (host.daemon_up && host.guest_came && !host.worker && !busy &&
            guests[host.index].domain != Domain::kAbsent) {
            host.brought = guests[host.index].stamp;
            start_target(host.index);
            if (hosts[host.index].daemon_up) {
                target_step(host.index, target_event::GuestStarting{});
            }
        }
    }
}

bool World::quiet() const {
    if (now < heal_at || job.active || migrations_left > 0) {
        return false;
    }
    for (const Host& host : hosts) {
        if (host.powered && !host.daemon_up) {
            return false;
        }
        if (host.target && host.target->state() != engine::TargetState::kDone &&
            host.target->state() != engine::TargetState::kDiscarded) {
            return false;
        }
        if (host.source) {
            const engine::SourceState state = host.source->state();
            if (state != engine::SourceState::kServing && state != engine::SourceState::kReleased &&
                state != engine::SourceState::kLost) {
                return false;
            }
        }
    }
    return true;
}

/// After the faults have ended and everything had time to settle: does the session live where its
/// guest does?
void World::check_end() {
    if (worker_lost || fenced_by_operator || !hosts[0].powered || !hosts[1].powered) {
        return;
    }
    int running = 0;
    int executing = 0;
    int where = -1;
    for (int i = 0; i < 2; ++i) {
        running += guests[i].domain == Domain::kRunning ? 1 : 0;
        if (hosts[i].worker && hosts[i].worker->executes()) {
            ++executing;
            where = i;
        }
    }
    if (running > 0 && executing != 1) {
        violate("the guest runs, and no host executes its commands");
    } else if (running == 1 && guests[where].domain != Domain::kRunning) {
        violate("the session ended up on host " + std::to_string(where) +
                ", its guest on the other");
    } else if (running == 1 && now > guests[where].advanced_at + Duration{2'000'000}) {
        violate("commands of the running guest are not executed");
    }
}

/// Whatever was lost: a guest that runs is served, or has been told that it never will be.
void World::check_nobody_waits() {
    for (const Host& host : hosts) {
        const Guest& guest = guests[host.index];
        const Worker* worker = host.worker.get();
        const bool ends = worker != nullptr && (worker->executes() || worker->tells);
        if (host.powered && guest.domain == Domain::kRunning && !ends && !guest.told) {
            violate("the guest on host " + std::to_string(host.index) + " waits for ever");
        }
    }
}

void World::run() {
    hosts[0].index = 0;
    hosts[1].index = 1;
    hosts[0].worker = std::make_unique<Worker>();
    hosts[0].worker->serves_role = true;
    hosts[0].worker->epoch = Epoch{1};
    hosts[0].disk = engine::DurableRecord{Epoch{1}, false, {}, {}};
    guests[0].domain = Domain::kRunning;
    for (std::uint64_t& word : hosts[0].worker->device) {
        word = random.chance(0.3) ? 0 : random.next() % 4;
    }
    reference = hosts[0].worker->device;
    start_source(0, Epoch{1});
    source_step(0, source_event::Opened{});
    plan_migrations();
    plan_faults();
    plan_thief();

    const std::function<void()> turn = [this, &turn] {
        execute(0);
        execute(1);
        after(Duration{40'000}, turn);
    };
    after(Duration{1'000}, turn);
    const std::function<void()> scan = [this, &scan] {
        look_for_orphans();
        after(Duration{3'000'000}, scan);
    };
    after(Duration{1'500}, scan);

    while (!queue.empty() && !stopped) {
        const Scheduled next = queue.top();
        queue.pop();
        if (next.when > end_at) {
            now = end_at;
            break;
        }
        now = next.when;
        next.what();
        ++verdict.event_count;
        check();
        if (!quiet()) {
            quiet_since.reset();
        } else if (!quiet_since) {
            quiet_since = now;
        } else if (now > *quiet_since + Duration{6'000'000}) {
            break;
        }
    }
    if (!stopped) {
        check_end();
    }
    if (!stopped) {
        check_nobody_waits();
    }
    if (!stopped && !quiet() && !worker_lost && !fenced_by_operator && hosts[0].powered &&
        hosts[1].powered) {
        const auto s = [&](int i) {
            return hosts[i].source ? to_string(hosts[i].source->state()) : "-";
        };
        const auto t = [&](int i) {
            return hosts[i].target ? to_string(hosts[i].target->state()) : "-";
        };
        violate(std::string("did not settle: source machines ") + s(0) + "/" + s(1) +
                ", target machines " + t(0) + "/" + t(1));
    }
    verdict.ended = now;
}

Verdict run_seed(const Options& options) {
    World world(options, make_engine_carriers());
    world.run();
    return world.verdict;
}

}  // namespace gantry::sim
