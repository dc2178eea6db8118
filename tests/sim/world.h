// The simulated world: two hosts, a faulty link, libvirt, a guest and a device that is a vector of
// words. Everything happens in virtual time from one seed; nothing else decides.
//
// The guest issues numbered commands; executing command n changes the device in a way that depends
// on n and on the device, so a command that is lost, repeated or executed on stale memory shows at
// once. Invariants are checked after every event; a violation ends the run with a sentence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "migration/engine/round_gate.h"
#include "migration/engine/source_machine.h"
#include "migration/engine/target_machine.h"

namespace gantry::sim {

using engine::Duration;
using engine::Message;
using engine::TimePoint;
namespace action = engine::action;
namespace source_event = engine::source_event;
namespace target_event = engine::target_event;

/// SplitMix64: the same numbers on every machine and compiler.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next();
    /// Uniform in [low, high].
    std::int64_t between(std::int64_t low, std::int64_t high);
    bool chance(double probability);

private:
    std::uint64_t state_;
};

enum class Mutation {
    kNone = 0,
    kGrantBeforeDurable,   ///< The grant is sent while its record is still being written.
    kGrantWithoutFrozen,   ///< Grants whatever the workers' state.
    kIgnoreResumed,        ///< RESUMED on the source is not seen.
    kActivateBeforeGrant,  ///< The target serves as soon as its guest runs.
    kApplyStaleBatches,    ///< Late batches of older rounds are applied, and nothing is verified.
    kKeepReturnedGrant,    ///< The source does not take back what the target could not use.
    kReturnUnproven,       ///< The target returns grants without looking whether it has served.
    kAnnounceEachAttempt,  ///< An attempt that ends takes its announcement along.
    kCountEarly,           ///< Batches count as applied when they come, and nothing is verified.
    kHookWaitsForVerdict,  ///< The target's hook has no bound of its own, and no verdict comes.
    kTakeAnyTicket,        ///< The source believes whatever ticket it is shown.
    kImagineJobs,          ///< The source believes that libvirt migrates the VM away all the time.
};

struct Options {
    std::uint64_t seed = 0;
    Mutation mutation = Mutation::kNone;
    bool trace = false;
};

struct Verdict {
    bool ok = true;
    std::string violation;  ///< Empty when ok.
    std::uint64_t event_count = 0;
    std::uint64_t moved_count = 0;
    std::uint64_t rolled_back_count = 0;
    std::uint64_t crash_count = 0;
    std::uint64_t split_brain_count = 0;
    std::uint64_t returned_count = 0;       ///< Grants that came back unused.
    std::uint64_t pause_refused_count = 0;  ///< Moves whose pause would have been too long.
    std::uint64_t theft_count = 0;          ///< Times that a third host asked for the session.
    std::uint64_t silence_count = 0;        ///< Times that a host's libvirt fell silent for long.
    std::uint64_t behind_count = 0;  ///< Guests that were to come back to a session left behind.
    TimePoint ended{};
};

/// Runs one seed to its end, with the simulation's own carriers.
[[nodiscard]] Verdict run_seed(const Options& options);

inline constexpr std::size_t kBlocks = 16;
using Device = std::vector<std::uint64_t>;
inline constexpr char kDeadGraph[] = "dead";  ///< Of a Worker that is.

/// What one command does to the device. Depends on more than its own block.
void execute_command(Device& device, std::uint64_t seq);

/// The state that a host's worker processes hold together. Survives a crash of gantryd.
struct Worker {
    bool serves_role = false;  ///< Owns (or owned) the session here, as opposed to receiving it.
    bool fenced = false;
    bool tells = false;  ///< Fenced, and its guest gets errors.
    /// Stands for a session whose one program died of its worker: nothing of it is executed any
    /// more, and it moves as any other.
    bool dead = false;
    Device device = Device(kBlocks, 0);
    std::uint64_t next_seq = 0;
    std::optional<engine::FreezeToken> frozen;
    std::optional<engine::FreezeToken> complete;
    std::optional<engine::MigrationId> receiving;
    Epoch epoch;
    std::uint64_t announcement = 0;  ///< 0: none. Each begins under a number of its own.
    std::vector<std::optional<std::uint64_t>> last_sent =
        std::vector<std::optional<std::uint64_t>>(kBlocks);
    std::vector<std::uint64_t> unacked_round = std::vector<std::uint64_t>(kBlocks, 0);

    [[nodiscard]] bool executes() const { return serves_role && !fenced && !frozen && !dead; }
};

/// What a confused peer makes of a request for a grant.
enum class Confusion {
    kLate,            ///< The same again, when it may have been answered long ago.
    kStaleToken,      ///< Of the freeze before.
    kOtherMigration,  ///< Of a migration that is not under way, for what is frozen.
    kOtherEpoch,      ///< For another epoch than is due.
};

/// A third host with a good certificate, and what it knows of the VM's tickets.
enum class Knowledge {
    kNothing,  ///< It brings one of its own making, or none.
    kOld,      ///< One that was used before, or that another host had.
    kCurrent,  ///< It has read the VM's XML at the source. libvirt migrates nothing just then.
};
inline constexpr char kThief[] = "thief";

enum class Domain { kAbsent, kPausedIncoming, kPaused, kRunning };

/// The guest's memory on one host, as far as it matters: how many commands it has issued.
struct Guest {
    Domain domain = Domain::kAbsent;
    engine::StopCause cause = engine::StopCause::kUnknown;  ///< Of kPaused and kAbsent.
    Ticket stamp;  ///< In the XML of the domain on this host.
    std::uint64_t issued = 0;
    TimePoint advanced_at{};  ///< When a command was executed, or none was due, for the last time.
    bool told = false;  ///< Its session's end: its programs have CUDA errors, and wait no more.
};

struct Bulk {
    engine::MigrationId migration;
    std::uint64_t round = 0;
    std::uint64_t batch = 0;
    std::vector<std::pair<std::size_t, std::uint64_t>> blocks;
};

struct World;

/// One end of a move as the world sees it, whatever carries its machine's actions out.
class SourceEnd {
public:
    virtual ~SourceEnd() = default;
    [[nodiscard]] virtual engine::SourceState state() const = 0;
    [[nodiscard]] virtual Epoch epoch() const = 0;
    [[nodiscard]] virtual std::optional<engine::MigrationId> migration() const = 0;
    [[nodiscard]] virtual std::string peer() const = 0;
};
class TargetEnd {
public:
    virtual ~TargetEnd() = default;
    [[nodiscard]] virtual engine::TargetState state() const = 0;
    [[nodiscard]] virtual Epoch epoch() const = 0;
    [[nodiscard]] virtual std::optional<engine::MigrationId> migration() const = 0;
    [[nodiscard]] virtual bool guest_is_here() const = 0;
};

/// What carries the machines' actions out: the simulation's own carriers, or gantryd's.
class Carriers {
public:
    virtual ~Carriers() = default;
    virtual void make_source(World& world, int host, Epoch epoch) = 0;
    virtual void make_target(World& world, int host) = 0;
    virtual void source_step(World& world, int host, const engine::SourceEvent& event) = 0;
    virtual void target_step(World& world, int host, const engine::TargetEvent& event) = 0;
    virtual void deliver_bulk(World& world, int to, const Bulk& bulk) = 0;
    /// gantryd of that host ends without a word; its ends are still there.
    virtual void die(int host) = 0;
};
[[nodiscard]] std::unique_ptr<Carriers> make_engine_carriers();

/// One host: gantryd (two machines and what is in flight), its disk, its worker.
struct Host {
    int index = 0;
    bool daemon_up = true;
    bool powered = true;
    std::uint64_t life = 0;  ///< Of gantryd; what was in flight in an older life is dropped.
    std::optional<engine::DurableRecord> disk;
    std::unique_ptr<Worker> worker;
    std::unique_ptr<SourceEnd> source;
    std::unique_ptr<TargetEnd> target;
    TimePoint worker_free_at{};  ///< Control calls to the worker are carried out in order.
    TimePoint sink_free_at{};    ///< So are activation and its retraction.
    bool has_served = false;     ///< The arrival's workers, which may have died since.
    /// The attempt whose state is being received, and the epoch that it will ask for: a file, so it
    /// survives gantryd and worker.
    std::optional<std::pair<engine::MigrationId, Epoch>> note;
    Ticket ticket;   ///< Of the session's record, for a restart.
    Ticket brought;  ///< By the XML of the last VM that came, or was to come; a file too.
    std::uint64_t source_op = 0;  ///< Newest round; an older one stops.
    std::uint64_t target_attempt = 0;
    engine::RoundGate gate;
    std::vector<Bulk> waiting;  ///< Until the gate lets them in.
    std::optional<std::uint64_t> awaited_round;
    std::optional<TimePoint> source_timer;
    std::optional<TimePoint> target_timer;
    std::optional<engine::MigrationId> progress_of[2];
    double percent[2] = {0.0, 0.0};
    // What libvirt has told since the VM started to come here: replayed into a new attempt.
    bool guest_starting = false;
    std::optional<engine::TargetEvent> arrival;
    bool guest_came = false;  ///< By a migration, and no final answer about its session was given.
    TimePoint libvirt_silent_until{};  ///< It tells nothing about domains.
    /// Attempts in a row that the source ended by not knowing them, and refusals by name since
    /// libvirt began to migrate the guest here, or gantryd died.
    int unknown_in_a_row = 0;
    int refused_by_name = 0;
};

struct World {
    World(const Options& options, std::unique_ptr<Carriers> carriers);

    // world.cc
    void run();
    void at(TimePoint when, std::function<void()> what);
    void after(Duration delay, std::function<void()> what) { at(now + delay, std::move(what)); }
    void violate(const std::string& what);
    void check();
    void check_hook();
    void check_end();
    void check_nobody_waits();
    bool quiet() const;
    void look_for_orphans();
    void execute(int host);
    Duration delay(std::int64_t low_us, std::int64_t high_us);
    Duration worker_call(int host, std::int64_t low_us, std::int64_t high_us);
    void trace(const char* format, ...) __attribute__((format(printf, 2, 3)));

    // link.cc
    void send(int from, const Message& message);
    void send_bulk(int from, const Bulk& bulk);
    void transmit(int to, std::function<void()> deliver);
    void deliver(int to, const Message& message);
    void deliver_bulk(int to, const Bulk& bulk);

    // ends.cc
    void source_step(int host, const engine::SourceEvent& event) {
        carriers->source_step(*this, host, event);
    }
    void start_source(int host, Epoch epoch);
    void stand_in(int host);
    void source_alert(int host, const action::Alert& alert);
    void source_progress(int host, const engine::Progress& progress);
    void source_finished(int host, engine::Outcome outcome, const Error& error);
    void target_step(int host, const engine::TargetEvent& event) {
        carriers->target_step(*this, host, event);
    }
    void start_target(int host);
    void target_alert(int host, const Error& error);
    void target_progress(int host, const engine::Progress& progress);
    void target_finished(int host, engine::Outcome outcome, const Error& why);
    void check_asking(int host, engine::Outcome outcome, const Error& why);

    // thief.cc
    void plan_thief();
    void steal(int host);
    void check_begin(int host, bool was_moving);
    void check_taker(int host, const engine::DurableRecord& record);
    void suspend(int host);
    Ticket draw_ticket();
    static std::string name_of(int host) { return "host" + std::to_string(host); }

    // faults.cc
    void plan_faults();
    void plan_silence();
    void crash_daemon(int host);
    void restart_daemon(int host);
    void crash_worker(int host);
    void confirm_again(int host);
    void power_off(int host);

    // grants.cc
    void check_answer(int host, const engine::SourceEvent& event,
                      const engine::SourceActions& actions);
    void check_grant(int host, const engine::DurableRecord& record);
    void check_sent_grant(int host, const Message& message);
    void confuse(int to, const Message& message);
    void ask_again(int host);

    // libvirt.cc
    void plan_migrations();
    void virsh_migrate();
    void hook_ended(int host, bool admitted);
    void abort_job(int host);
    void roll_back_job();
    void job_over();
    void libvirt_phase(std::uint64_t job_number, int phase);
    void guest_event_source(int host, const engine::SourceEvent& event);
    void guest_event_target(int host, const engine::TargetEvent& event);
    engine::DomainReport domain_report(int host) const;

    Options options;
    Random random;
    Random confusion;  ///< Of its own: what it decides leaves the rest as it is.
    Random applying;   ///< So is this: how long batches take to be applied.
    Random bounds;     ///< Of the pause and the hook; of its own, too.
    Random theft;      ///< The same.
    Random silence;    ///< The same.
    Verdict verdict;
    engine::Settings settings;
    TimePoint now{};
    TimePoint heal_at{};
    std::optional<TimePoint> quiet_since;
    TimePoint end_at{};
    bool stopped = false;

    struct Scheduled {
        TimePoint when;
        std::uint64_t order;
        std::function<void()> what;
        bool operator<(const Scheduled& other) const {
            return when != other.when ? when > other.when : order > other.order;
        }
    };
    std::priority_queue<Scheduled> queue;
    std::uint64_t next_order = 0;

    std::unique_ptr<Carriers> carriers;
    Host hosts[2];
    Guest guests[2];
    // Truth about the session.
    Device reference = Device(kBlocks, 0);
    std::uint64_t executed = 0;
    bool worker_lost = false;  ///< Injected: the promise about state is off.
    bool fenced_by_operator = false;
    std::vector<engine::MigrationId> returned;  ///< Whose grants came back, by the disk.
    bool nobody_hears = false;                  ///< What gantryd sends now goes nowhere.
    std::vector<engine::MigrationId> thefts;    ///< Answers to these go nowhere either.
    std::vector<Ticket> tickets;                ///< All that ever stood.
    TimePoint theft_ends{};                     ///< Of the one with the current ticket.
    /// The last migration that libvirt began from a host.
    struct Outgoing {
        std::string to;
        Ticket ticket;
        bool has_stopped_guest = false;
        std::optional<TimePoint> ended;
    };
    std::optional<Outgoing> outgoing[2];

    // Link.
    bool partitioned = false;
    double loss = 0.0;
    double duplication = 0.0;
    double slow = 0.0;
    double crash_per_step = 0.0;
    double taker_crash = 0.0;  ///< That a worker dies about when its session is granted to it.

    // libvirt's job.
    enum class Script {
        kPlain,
        kAbortInPrecopy,
        kAbortAfterPause,
        kRollbackAfterCompleted,
        kPostcopy,
        kOperatorPaused,
        kSplitBrain,
        kSuspendEarlyThenAbort,
        kSuspendEarlyThenResumeThenGo,
        kTargetQemuDies,
    };
    struct Job {
        std::uint64_t number = 0;
        bool active = false;
        bool hook_waiting = false;
        TimePoint hook_begun{};
        bool past_no_return = false;
        bool postcopy_open = false;
        int from = 0;
        int to = 1;
        Script script = Script::kPlain;
        /// What the source's worker had announced when QEMU began to copy the guest's memory.
        std::optional<std::uint64_t> announcement;
    } job;
    std::uint64_t last_announcement = 0;
    int migrations_left = 0;
};

}  // namespace gantry::sim
