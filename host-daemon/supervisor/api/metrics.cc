#include "host-daemon/supervisor/api/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

namespace gantry::supervisor {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

struct FamilyList {
    std::vector<MetricFamily> families;

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

using WorkerField = std::uint64_t (control::WorkerInfo::*)() const;

void put_workers(FamilyList& list, const control::ListSessionsReply& state, const char* name,
                 const char* help, MetricType type, WorkerField field) {
    MetricFamily& family = list.add(name, help, type);
    for (const control::SessionStatus& session : state.sessions()) {
        for (const control::WorkerInfo& worker : session.workers()) {
            put(family, static_cast<double>((worker.*field)()),
                {{"session", session.session_id()}, {"part", std::to_string(worker.part_id())}});
        }
    }
}

class RegistryCollector final : public prometheus::Collectable {
public:
    explicit RegistryCollector(Registry& registry) : registry_(registry) {}

    std::vector<MetricFamily> Collect() const override {
        const control::ListSessionsReply state = registry_.list("");
        FamilyList list;
        put(list.add("gantry_sessions", "Sessions on this host.", MetricType::Gauge),
            state.sessions_size());
        put(list.add("gantry_device_memory_bytes", "Memory of the device.", MetricType::Gauge),
            static_cast<double>(state.memory_bytes()));
        put(list.add("gantry_device_memory_promised_bytes", "Memory promised to sessions.",
                     MetricType::Gauge),
            static_cast<double>(state.memory_promised_bytes()));
        put_workers(list, state, "gantry_worker_device_memory_bytes",
                    "Device memory that a program has allocated.", MetricType::Gauge,
                    &control::WorkerInfo::device_memory_bytes);
        put_workers(list, state, "gantry_worker_commands_total", "Commands executed.",
                    MetricType::Counter, &control::WorkerInfo::commands_executed);
        put_workers(list, state, "gantry_worker_kernel_launches_total", "Kernels launched.",
                    MetricType::Counter, &control::WorkerInfo::kernel_launches);
        put_workers(list, state, "gantry_worker_batched_launches_total",
                    "Kernel launches that went to the driver in a batch with others.",
                    MetricType::Counter, &control::WorkerInfo::batched_launches);
        put_workers(
            list, state, "gantry_worker_prepared_launches_total",
            "Kernel launches that went to the driver as a prepared CUDA graph of one kernel.",
            MetricType::Counter, &control::WorkerInfo::prepared_launches);
        put_workers(list, state, "gantry_worker_refused_commands_total",
                    "Commands of a guest that were refused as malformed or unsupported.",
                    MetricType::Counter, &control::WorkerInfo::refused_commands);
        MetricFamily& percent =
            list.add("gantry_move_percent", "Progress of a move under way.", MetricType::Gauge);
        for (const control::SessionStatus& session : state.sessions()) {
            if (session.has_move()) {
                put(percent, session.move().percent(),
                    {{"session", session.session_id()}, {"direction", session.move().direction()}});
            }
        }
        return std::move(list.families);
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
