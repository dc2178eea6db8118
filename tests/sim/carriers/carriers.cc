#include "tests/sim/carriers/carriers.h"

#include <array>
#include <memory>
#include <utility>

#include "host-daemon/supervisor/moves/source_runner.h"
#include "host-daemon/supervisor/moves/target_runner.h"
#include "tests/sim/carriers/streams.h"
#include "tests/sim/carriers/workers.h"

namespace gantry::sim {
namespace {

using supervisor::SourceRunner;
using supervisor::TargetRunner;

/// The way back to whoever sent a message. What a wrong one is answered nobody hears.
class SimLink final : public transport::MessageLink {
public:
    SimLink(World& world, int host, bool is_thief)
        : world_(world), host_(host), is_thief_(is_thief) {}
    void send(const engine::Message& message) override {
        const Fiber* const fiber = Fiber::current();
        const bool is_silent =
            is_thief_ || (silent_task != 0 && fiber != nullptr && fiber->task == silent_task);
        const bool before = std::exchange(world_.nobody_hears, is_silent);
        world_.send(host_, message);
        world_.nobody_hears = before;
    }
    std::uint64_t silent_task = 0;

private:
    World& world_;
    const int host_;
    const bool is_thief_;
};

struct RunnerSource final : SourceEnd {
    [[nodiscard]] engine::SourceState state() const override { return runner->status().state; }
    [[nodiscard]] Epoch epoch() const override { return runner->status().epoch; }
    [[nodiscard]] std::optional<engine::MigrationId> migration() const override {
        return runner->status().migration;
    }
    [[nodiscard]] std::string peer() const override { return runner->status().peer; }
    std::shared_ptr<SourceRunner> runner;
};

struct RunnerTarget final : TargetEnd {
    [[nodiscard]] engine::TargetState state() const override { return runner->status().state; }
    [[nodiscard]] Epoch epoch() const override { return runner->status().epoch; }
    [[nodiscard]] std::optional<engine::MigrationId> migration() const override {
        return runner->status().migration;
    }
    [[nodiscard]] bool guest_is_here() const override { return is_guest_here; }
    std::shared_ptr<TargetRunner> runner;
    bool is_guest_here = false;  ///< By what libvirt has told, as gantryd's Arrival keeps it.
};

class GantrydCarriers final : public Carriers {
public:
    void begin(World& world);
    void make_source(World& world, int host, Epoch epoch) override;
    void make_target(World& world, int host) override;
    void source_step(World& world, int host, const engine::SourceEvent& event) override;
    void target_step(World& world, int host, const engine::TargetEvent& event) override;
    void deliver_bulk(World& /*world*/, int /*to*/, const Bulk& /*bulk*/) override {}
    void die(int host) override;

private:
    struct Gantryd {
        Gantryd(World& world, int host)
            : runtime(world, host), source(runtime), sink(runtime), store(runtime) {}
        SimRuntime runtime;
        SimSource source;
        SimSink sink;
        SimStore store;
        bool was_moving = false;
        engine::TargetState target_state = engine::TargetState::kAsking;
    };

    static RunnerSource* source_of(Host& host) {
        return static_cast<RunnerSource*>(host.source.get());
    }
    static RunnerTarget* target_of(Host& host) {
        return static_cast<RunnerTarget*>(host.target.get());
    }
    supervisor::SourceHooks source_hooks(World& world, int index);
    supervisor::TargetHooks target_hooks(World& world, int index);
    void query_target_domain(World& world, int index);
    void on_arrived(World& world, int index, Epoch epoch);
    void renew_ticket(World& world, int index);
    void after_step(World& world, int index);
    Gantryd& gantryd(int host) { return *gantryds_[static_cast<std::size_t>(host)]; }

    std::string compression_ = "off";
    std::uint64_t bandwidth_bytes_s_ = 0;
    std::array<std::unique_ptr<Gantryd>, 2> gantryds_;
    std::unique_ptr<Streams> streams_;
    std::vector<std::shared_ptr<TargetRunner>> retired_;  ///< A batch may still be in one.
};

void GantrydCarriers::begin(World& world) {
    compression_ = world.random.chance(0.3) ? "on" : "off";
    bandwidth_bytes_s_ = world.random.chance(0.2) ? 8U << 20 : 0;
    for (int i = 0; i < 2; ++i) {
        gantryds_[static_cast<std::size_t>(i)] = std::make_unique<Gantryd>(world, i);
        gantryd(i).runtime.set_after_step([this, &world, i] { after_step(world, i); });
    }
    streams_ = std::make_unique<Streams>(
        world, std::array<SimRuntime*, 2>{&gantryd(0).runtime, &gantryd(1).runtime},
        [&world](int host, engine::MigrationId migration, const std::string& peer) {
            RunnerSource* const source = source_of(world.hosts[host]);
            return source == nullptr ? nullptr : source->runner->bulk(migration, peer);
        },
        [&world](int host) -> std::shared_ptr<TargetRunner> {
            RunnerTarget* const target = target_of(world.hosts[host]);
            return target == nullptr ? nullptr : target->runner;
        });
}

/// What the world looks at whenever something has been carried out.
void GantrydCarriers::after_step(World& world, int index) {
    Host& host = world.hosts[index];
    if (!host.daemon_up) {
        return;
    }
    Gantryd& of = gantryd(index);
    const bool was_moving = of.was_moving;
    of.was_moving = host.source && host.source->migration();
    world.check_begin(index, was_moving);
    if (host.target) {
        const engine::TargetState state = host.target->state();
        const bool is_taking =
            state == engine::TargetState::kRequesting || state == engine::TargetState::kActivating;
        if (is_taking && state != of.target_state && world.random.chance(world.taker_crash)) {
            world.after(world.delay(0, 60'000), [&world, index] { world.crash_worker(index); });
        }
        of.target_state = state;
    }
    if (world.crash_per_step > 0 && world.random.chance(world.crash_per_step / 8)) {
        world.after(Duration{0}, [&world, index, life = host.life] {
            if (world.hosts[index].life == life) {
                world.crash_daemon(index);
            }
        });
    }
    streams_->pump(index);
}

void GantrydCarriers::die(int host) {
    gantryd(host).runtime.die();
    gantryd(host).was_moving = false;
    streams_->die(host);
}

// ---- source ----

supervisor::SourceHooks GantrydCarriers::source_hooks(World& world, int index) {
    Host& host = world.hosts[index];
    supervisor::SourceHooks hooks;
    hooks.query_domain = [&world, &host, index] {
        // The answer is as old as the time it took.
        world.after(world.delay(100, 3'000), [&world, index, life = host.life,
                                              report = world.domain_report(index)] {
            if (world.hosts[index].life == life) {
                world.source_step(index, source_event::Domain{world.random.chance(0.7)
                                                                  ? world.domain_report(index)
                                                                  : report});
            }
        });
    };
    hooks.abort_job = [&world, index] {
        world.after(world.delay(1'000, 50'000), [&world, index] { world.abort_job(index); });
    };
    hooks.renew_ticket = [this, &world, &host, index](Epoch) {
        world.after(world.delay(500, 50'000), [this, &world, index, life = host.life] {
            if (world.hosts[index].life == life) {
                renew_ticket(world, index);
            }
        });
    };
    hooks.alert = [&world, index](engine::AlertKind kind, const Error& error) {
        world.source_alert(index, {kind, error});
    };
    hooks.progress = [&world, index](const engine::Progress& progress) {
        world.source_progress(index, progress);
    };
    hooks.finished = [&world, index](engine::Outcome outcome, const Error& error) {
        world.source_finished(index, outcome, error);
    };
    hooks.given_up = [] {};
    hooks.released = [] {};
    return hooks;
}

/// libvirt lets nobody write while it migrates the VM. gantryd may die between the VM's metadata
/// and its own record.
void GantrydCarriers::renew_ticket(World& world, int index) {
    Guest& guest = world.guests[index];
    const bool is_here = guest.domain == Domain::kRunning || guest.domain == Domain::kPaused;
    const bool fails = world.now < world.heal_at && world.random.chance(0.1);
    if (!is_here || world.job.active || fails) {
        world.source_step(index, source_event::TicketFailed{});
        return;
    }
    guest.stamp = world.draw_ticket();
    world.tickets.push_back(guest.stamp);
    world.after(world.delay(100, 5'000),
                [&world, index, life = world.hosts[index].life, ticket = guest.stamp] {
                    if (world.hosts[index].life == life) {
                        world.hosts[index].ticket = ticket;
                        world.source_step(index, source_event::TicketStands{ticket});
                    }
                });
}

void GantrydCarriers::make_source(World& world, int index, Epoch epoch) {
    Host& host = world.hosts[index];
    if (gantryds_[0] == nullptr) {
        begin(world);
    }
    host.source.reset();
    Gantryd& of = gantryd(index);
    of.was_moving = false;
    auto made = std::make_unique<RunnerSource>();
    made->runner = std::make_shared<SourceRunner>("vm", epoch, world.settings, compression_,
                                                  bandwidth_bytes_s_, of.store, of.source,
                                                  source_hooks(world, index), of.runtime);
    host.source = std::move(made);
}

void GantrydCarriers::source_step(World& world, int index, const engine::SourceEvent& event) {
    Host& host = world.hosts[index];
    if (!host.source || !host.daemon_up) {
        return;
    }
    SourceRunner& runner = *source_of(host)->runner;
    const auto* received = std::get_if<source_event::Received>(&event);
    if (received == nullptr) {
        runner.feed(event);
        return;
    }
    if (const auto* asks = std::get_if<engine::MsgGrantRequest>(&received->message.body)) {
        gantryd(index).store.note_request(received->message.migration, *asks);
    }
    const auto link = std::make_shared<SimLink>(world, index, received->peer == kThief);
    runner.receive(received->message, received->peer, link);
    if (world.nobody_hears) {
        link->silent_task = gantryd(index).runtime.last_posted;
    }
}

// ---- target ----

supervisor::TargetHooks GantrydCarriers::target_hooks(World& world, int index) {
    supervisor::TargetHooks hooks;
    hooks.send = [&world, index](const engine::Message& message) { world.send(index, message); };
    hooks.open_bulk = [this, index](engine::MigrationId migration) {
        streams_->open(index, migration);
    };
    hooks.query_domain = [this, &world, index] { query_target_domain(world, index); };
    hooks.alert = [&world, index](engine::AlertKind, const Error& error) {
        world.target_alert(index, error);
    };
    hooks.progress = [&world, index](const engine::Progress& progress) {
        world.target_progress(index, progress);
    };
    hooks.admit = [&world, index] { world.hook_ended(index, true); };
    hooks.refuse = [&world, index](const Error&) { world.hook_ended(index, false); };
    hooks.activated = [this, &world, index](Epoch epoch) { on_arrived(world, index, epoch); };
    hooks.finished = [&world, index](engine::Outcome outcome, const Error& error) {
        world.target_finished(index, outcome, error);
    };
    return hooks;
}

void GantrydCarriers::query_target_domain(World& world, int index) {
    const Host& host = world.hosts[index];
    world.after(world.delay(100, 3'000), [&world, index, life = host.life,
                                          attempt = host.target_attempt,
                                          report = world.domain_report(index)] {
        Host& then = world.hosts[index];
        if (then.life != life || then.target_attempt != attempt || !then.daemon_up) {
            return;
        }
        const engine::DomainReport said =
            world.random.chance(0.7) ? world.domain_report(index) : report;
        if (said.domain == engine::DomainState::kRunning && said.job == engine::JobState::kNone) {
            target_of(then)->is_guest_here = true;
        }
        world.target_step(index, target_event::Domain{said});
    });
}

/// The workers serve the guest: from here on this host is the arbiter.
void GantrydCarriers::on_arrived(World& world, int index, Epoch epoch) {
    if (world.hosts[index].worker) {
        world.start_source(index, epoch);
        world.source_step(index, source_event::Opened{});
    }
}

void GantrydCarriers::make_target(World& world, int index) {
    Host& host = world.hosts[index];
    Gantryd& of = gantryd(index);
    if (RunnerTarget* const old = target_of(host)) {
        old->runner->stop();
        retired_.push_back(old->runner);
        (void)of.sink.discard();  // its own may not have been carried out any more
    }
    auto made = std::make_unique<RunnerTarget>();
    made->runner = std::make_shared<TargetRunner>("vm", world.settings, of.store, of.sink,
                                                  target_hooks(world, index), of.runtime);
    host.target = std::move(made);
    of.target_state = engine::TargetState::kAsking;
    ++host.target_attempt;
}

void GantrydCarriers::target_step(World& world, int index, const engine::TargetEvent& event) {
    Host& host = world.hosts[index];
    if (!host.target || !host.daemon_up) {
        return;
    }
    RunnerTarget& target = *target_of(host);
    if (std::holds_alternative<target_event::GuestResumedMigrated>(event) ||
        std::holds_alternative<target_event::GuestResumedPostcopy>(event) ||
        std::holds_alternative<target_event::GuestArrivedPaused>(event)) {
        target.is_guest_here = true;
    } else if (std::holds_alternative<target_event::GuestStopped>(event)) {
        target.is_guest_here = false;
    }
    if (const auto* asked = std::get_if<target_event::AdmissionAsked>(&event)) {
        target.runner->begin(asked->migration, asked->capabilities, asked->ticket);
    } else if (const auto* received = std::get_if<target_event::Received>(&event)) {
        target.runner->receive(received->message);
    } else {
        target.runner->feed(event);
    }
}

}  // namespace

Verdict run_carrier_seed(const Options& options) {
    World world(options, std::make_unique<GantrydCarriers>());
    world.run();
    world.carriers->die(0);
    world.carriers->die(1);
    return world.verdict;
}

}  // namespace gantry::sim
