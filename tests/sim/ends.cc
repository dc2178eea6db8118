// What the world makes of its two ends, whoever carries their actions out.
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

void World::start_source(int index, Epoch epoch) { carriers->make_source(*this, index, epoch); }

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

void World::source_alert(int index, const action::Alert& alert) {
    trace("host %d source alert: %s", index, alert.error.reason.c_str());
    verdict.split_brain_count += alert.kind == engine::AlertKind::kSplitBrain ? 1U : 0U;
}

void World::source_progress(int index, const engine::Progress& progress) {
    Host& host = hosts[index];
    if (host.progress_of[0] != host.source->migration()) {
        host.progress_of[0] = host.source->migration();
        host.percent[0] = 0.0;
    }
    if (host.source->migration() && progress.percent < host.percent[0]) {
        violate("the source's progress ran backwards");
    }
    host.percent[0] = progress.percent;
}

void World::source_finished(int index, engine::Outcome outcome, const Error& error) {
    trace("host %d source finished: %s %s", index, to_string(outcome), error.reason.c_str());
    verdict.moved_count += outcome == engine::Outcome::kMoved ? 1U : 0U;
    verdict.rolled_back_count += outcome == engine::Outcome::kRolledBack ? 1U : 0U;
    verdict.pause_refused_count += error.reason == "migration.not_converging" ? 1U : 0U;
}

void World::start_target(int index) {
    Host& host = hosts[index];
    carriers->make_target(*this, index);
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

void World::target_alert(int index, const Error& error) {
    trace("host %d target alert: %s", index, error.reason.c_str());
    if ((error.reason == "migration.awaiting_source" || error.reason == "migration.peer_silent") &&
        !hosts[1 - index].powered) {
        // A person looks, sees that the source host is dead and fenced, and says so.
        fenced_by_operator = true;
        after(Duration{1'000'000},
              [this, index, life = hosts[index].life, attempt = hosts[index].target_attempt] {
                  const Host& host = hosts[index];
                  if (host.daemon_up && host.life == life && host.target_attempt == attempt) {
                      target_step(index, target_event::OperatorFenced{});
                  }
              });
    }
}

void World::target_progress(int index, const engine::Progress& progress) {
    Host& host = hosts[index];
    if (host.progress_of[1] != host.target->migration()) {
        host.progress_of[1] = host.target->migration();
        host.percent[1] = 0.0;
    }
    if (progress.percent < host.percent[1]) {
        violate("the target's progress ran backwards");
    }
    host.percent[1] = progress.percent;
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
