#include "host-daemon/supervisor/api/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "migration/transport/tls.h"

namespace gantry::supervisor {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

struct FamilyList {
    std::deque<MetricFamily> families;  // What add() returned stays where it is.

    MetricFamily& add(const char* name, const char* help, MetricType type) {
        MetricFamily family;
        family.name = name;
        family.help = help;
        family.type = type;
        families.push_back(std::move(family));
        return families.back();
    }
};

void put(MetricFamily& family, double value, std::vector<ClientMetric::Label> labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (family.type == MetricType::Counter) {
        metric.counter.value = value;
    } else {
        metric.gauge.value = value;
    }
    family.metric.push_back(std::move(metric));
}

using Labels = std::vector<ClientMetric::Label>;

/// Those by which other exporters of this host are joined.
Labels labels_of(const control::SessionStatus& session, Labels more = {}) {
    more.push_back({"session", session.session_id()});
    more.push_back({"domain", session.vm_name()});
    more.push_back({"vm_uuid", session.vm_uuid()});
    return more;
}

Labels labels_of(const MoveCounters::Whose& whose) {
    return {{"direction", whose.direction}, {"domain", whose.vm_name}, {"vm_uuid", whose.vm_uuid}};
}

using WorkerField = std::uint64_t (control::WorkerInfo::*)() const;

struct WorkerMetric {
    const char* name;
    const char* help;
    MetricType type;
    WorkerField field;
};

const WorkerMetric kWorkerMetrics[] = {
    {"gantry_worker_device_memory_bytes", "Device memory that a program has allocated.",
     MetricType::Gauge, &control::WorkerInfo::device_memory_bytes},
    {"gantry_worker_pinned_memory_bytes", "Page-locked host memory of a program.",
     MetricType::Gauge, &control::WorkerInfo::pinned_memory_bytes},
    {"gantry_worker_commands_total", "Commands executed.", MetricType::Counter,
     &control::WorkerInfo::commands_executed},
    {"gantry_worker_kernel_launches_total", "Kernels launched.", MetricType::Counter,
     &control::WorkerInfo::kernel_launches},
    {"gantry_worker_batched_launches_total",
     "Kernel launches that went to the driver in a batch with others.", MetricType::Counter,
     &control::WorkerInfo::batched_launches},
    {"gantry_worker_prepared_launches_total",
     "Kernel launches that went to the driver as a prepared CUDA graph of one kernel.",
     MetricType::Counter, &control::WorkerInfo::prepared_launches},
    {"gantry_worker_refused_commands_total",
     "Commands of a guest that were refused as malformed or unsupported.", MetricType::Counter,
     &control::WorkerInfo::refused_commands},
};

void put_workers(FamilyList& list, const control::ListSessionsReply& state) {
    for (const WorkerMetric& metric : kWorkerMetrics) {
        MetricFamily& family = list.add(metric.name, metric.help, metric.type);
        for (const control::SessionStatus& session : state.sessions()) {
            for (const control::WorkerInfo& worker : session.workers()) {
                put(family, static_cast<double>((worker.*metric.field)()),
                    labels_of(session, {{"part", std::to_string(worker.part_id())},
                                        {"gpu", std::to_string(worker.device())}}));
            }
        }
    }
}

void put_accounts(FamilyList& list, const control::ListSessionsReply& state,
                  std::span<const control::AccountReply> accounts) {
    MetricFamily& time = list.add("gantry_worker_gpu_seconds_total",
                                  "GPU time of a program's kernels, from samples (worker.account).",
                                  MetricType::Counter);
    for (const control::AccountReply& account : accounts) {
        const auto session =
            std::find_if(state.sessions().begin(), state.sessions().end(),
                         [&](const auto& one) { return one.session_id() == account.session_id(); });
        for (const control::ProgramAccount& program : account.programs()) {
            if (session != state.sessions().end()) {
                put(time, program.gpu_us() / 1e6,
                    labels_of(*session, {{"part", std::to_string(program.part_id())}}));
            }
        }
    }
}

template <typename Seconds>
void put_histogram(MetricFamily& family, const Seconds& seconds, Labels labels) {
    ClientMetric metric;
    metric.label = std::move(labels);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < seconds.counts().size(); ++i) {
        sum += seconds.counts()[i];
        const bool has_bound = i < seconds.upper().size();
        metric.histogram.bucket.push_back(
            {sum, has_bound ? seconds.upper()[i] : std::numeric_limits<double>::infinity()});
    }
    metric.histogram.sample_count = sum;
    metric.histogram.sample_sum = seconds.sum();
    family.metric.push_back(std::move(metric));
}

void put_ended_moves(FamilyList& list, const MoveCounters& counters) {
    MetricFamily& ends = list.add(
        "gantry_moves_total", "Moves that have ended, by outcome and reason of what was not moved.",
        MetricType::Counter);
    for (const auto& [end, count] : counters.ends()) {
        put(ends, static_cast<double>(count),
            {{"direction", end.direction}, {"outcome", end.outcome}, {"reason", end.reason}});
    }
    MetricFamily& wire =
        list.add("gantry_moves_sent_bytes_total", "Bytes on the wire for moves that have ended.",
                 MetricType::Counter);
    for (const auto& [whose, all] : counters.moves()) {
        put(wire, static_cast<double>(all.wire_bytes), labels_of(whose));
    }
    MetricFamily& duration =
        list.add("gantry_move_duration_seconds", "From the beginning of a move to its success.",
                 MetricType::Histogram);
    for (const auto& [whose, all] : counters.moves()) {
        put_histogram(duration, all.duration, labels_of(whose));
    }
    MetricFamily& downtime =
        list.add("gantry_move_downtime_seconds",
                 "How long a move has paused its programs' GPU work.", MetricType::Histogram);
    for (const auto& [whose, all] : counters.moves()) {
        if (whose.direction == "outgoing") {
            put_histogram(downtime, all.downtime, labels_of(whose));
        }
    }
}

using MoveField = double (*)(const control::MoveProgress&);

struct MoveMetric {
    const char* name;
    const char* help;
    MoveField field;
};

const MoveMetric kMoveMetrics[] = {
    {"gantry_move_progress_ratio", "Progress of a move under way, 0 to 1.",
     [](const control::MoveProgress& move) { return move.percent() / 100.0; }},
    {"gantry_move_remaining_bytes", "At the target still to come, of a move under way.",
     [](const control::MoveProgress& move) { return static_cast<double>(move.bytes_remaining()); }},
    {"gantry_move_processed_bytes", "Content sent (or come) so far, of a move under way.",
     [](const control::MoveProgress& move) { return static_cast<double>(move.bytes_processed()); }},
    {"gantry_move_expected_downtime_seconds", "Pause that a move under way would take now.",
     [](const control::MoveProgress& move) {
         return static_cast<double>(move.downtime_expected_us()) / 1e6;
     }},
};

void put_moves_under_way(FamilyList& list, const control::ListSessionsReply& state) {
    for (const MoveMetric& metric : kMoveMetrics) {
        MetricFamily& family = list.add(metric.name, metric.help, MetricType::Gauge);
        for (const control::SessionStatus& session : state.sessions()) {
            if (is_moving(session)) {
                put(family, metric.field(session.move()),
                    labels_of(session, {{"direction", session.move().direction()}}));
            }
        }
    }
}

using GpuField = double (*)(const control::GpuStatus&);

struct GpuMetric {
    const char* name;
    const char* help;
    GpuField field;
};

const GpuMetric kGpuMetrics[] = {
    {"gantry_device_usable", "1: sessions can begin on this GPU.",
     [](const control::GpuStatus& gpu) { return gpu.name().empty() ? 0.0 : 1.0; }},
    {"gantry_device_memory_bytes", "Memory of a GPU.",
     [](const control::GpuStatus& gpu) { return static_cast<double>(gpu.memory_bytes()); }},
    {"gantry_device_memory_promised_bytes", "Memory of a GPU that is promised to sessions.",
     [](const control::GpuStatus& gpu) {
         return static_cast<double>(gpu.memory_promised_bytes());
     }},
    {"gantry_device_memory_used_bytes", "Memory of a GPU that programs have allocated.",
     [](const control::GpuStatus& gpu) { return static_cast<double>(gpu.memory_used_bytes()); }},
    {"gantry_device_sessions", "Sessions that were promised memory of a GPU.",
     [](const control::GpuStatus& gpu) { return static_cast<double>(gpu.sessions()); }},
};

void put_gpus(FamilyList& list, const control::ListSessionsReply& state) {
    for (const GpuMetric& metric : kGpuMetrics) {
        MetricFamily& family = list.add(metric.name, metric.help, MetricType::Gauge);
        for (const control::GpuStatus& gpu : state.gpus()) {
            put(family, metric.field(gpu), {{"gpu", std::to_string(gpu.device())}});
        }
    }
    MetricFamily& info =
        list.add("gantry_device_info", "Which card a GPU's number is.", MetricType::Gauge);
    for (const control::GpuStatus& gpu : state.gpus()) {
        put(info, 1,
            {{"gpu", std::to_string(gpu.device())}, {"uuid", gpu.uuid()}, {"model", gpu.name()}});
    }
}

void put_host(FamilyList& list, const control::ListSessionsReply& state) {
    put(list.add("gantry_build_info", "The running gantryd.", MetricType::Gauge), 1,
        {{"version", state.gantry_version()},
         {"peer_protocol", std::to_string(state.peer_protocol_version())}});
    put_gpus(list, state);
    put(list.add("gantry_sessions", "Sessions on this host.", MetricType::Gauge),
        state.sessions_size());
    MetricFamily& alerts =
        list.add("gantry_session_alerts", "Conditions of a session that may need a person.",
                 MetricType::Gauge);
    for (const control::SessionStatus& session : state.sessions()) {
        put(alerts, session.alerts_size(), labels_of(session, {{"state", session.state()}}));
    }
}

void put_saves(FamilyList& list, const SaveCounters& counters) {
    MetricFamily& saves =
        list.add("gantry_vm_saves_total",
                 "VMs with programs whose memory libvirt wrote into a file.", MetricType::Counter);
    put(saves, static_cast<double>(counters.saved), {{"outcome", "saved"}});
    put(saves, static_cast<double>(counters.refused), {{"outcome", "refused"}});
    put(saves, static_cast<double>(counters.lost), {{"outcome", "lost"}});
    MetricFamily& starts =
        list.add("gantry_vm_restores_total", "VMs with programs that libvirt started from a file.",
                 MetricType::Counter);
    put(starts, static_cast<double>(counters.restored), {{"outcome", "restored"}});
    put(starts, static_cast<double>(counters.start_refused), {{"outcome", "refused"}});
    put(starts, static_cast<double>(counters.started_without), {{"outcome", "lost"}});
}

class RegistryCollector final : public prometheus::Collectable {
public:
    explicit RegistryCollector(Registry& registry) : registry_(registry) {}

    std::vector<MetricFamily> Collect() const override {
        const control::ListSessionsReply state = registry_.list("");
        FamilyList list;
        put_host(list, state);
        put_workers(list, state);
        if (const auto accounts = registry_.accounts(); !accounts.empty()) {
            put_accounts(list, state, accounts);
        }
        put_moves_under_way(list, state);
        put_saves(list, registry_.saves());
        put_ended_moves(list, registry_.status().counters());
        if (const auto connected = registry_.hypervisor_connected()) {
            put(list.add("gantry_libvirt_connected", "1: libvirt answers.", MetricType::Gauge),
                *connected ? 1 : 0);
        }
        if (const auto& tls = registry_.tls()) {
            MetricFamily& expiry =
                list.add("gantry_tls_certificate_expiry_timestamp_seconds",
                         "When a certificate that is in use here ends.", MetricType::Gauge);
            for (const auto& [name, pem] : {std::pair{"authority", &tls->authority_pem},
                                            std::pair{"host", &tls->certificate_pem}}) {
                if (const auto end = transport::certificate_expiry(*pem)) {
                    put(expiry, static_cast<double>(*end), {{"certificate", name}});
                }
            }
        }
        std::erase_if(list.families,
                      [](const MetricFamily& family) { return family.metric.empty(); });
        return {std::move_iterator(list.families.begin()), std::move_iterator(list.families.end())};
    }

private:
    Registry& registry_;
};

}  // namespace

class Metrics::Impl {
public:
    std::shared_ptr<RegistryCollector> collector;
    std::unique_ptr<prometheus::Exposer> exposer;
};

Metrics::Metrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Metrics::~Metrics() = default;

Result<std::unique_ptr<Metrics>> Metrics::start(const std::string& listen, Registry& registry) {
    auto impl = std::make_unique<Impl>();
    impl->collector = std::make_shared<RegistryCollector>(registry);
    try {  // the library reports a taken port by throwing; it ends here
        impl->exposer = std::make_unique<prometheus::Exposer>(listen, 1);
    } catch (const std::exception& error) {
        return Error{Code::kUnavailable, "metrics.listen",
                     "cannot listen on " + listen + " (metrics.listen): " + error.what()};
    }
    impl->exposer->RegisterCollectable(impl->collector);
    return std::unique_ptr<Metrics>(new Metrics(std::move(impl)));
}

}  // namespace gantry::supervisor
