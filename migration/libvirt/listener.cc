#include "migration/libvirt/listener.h"

#include <libvirt/libvirt-qemu.h>
#include <pthread.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "migration/libvirt/errors.h"
#include "migration/libvirt/event_mapping.h"
#include "migration/libvirt/handles.h"
#include "proto/base/mutex.h"

namespace gantry::libvirt {

namespace {

using Clock = std::chrono::steady_clock;

/// What the callbacks and the listener's own thread share.
class Core {
public:
    explicit Core(Listener::Callback callback) : callback_(std::move(callback)) {}

    void deliver(DomainEvent event) {
        event.received = Clock::now();
        const MutexLock lock(mutex_);
        if (!event.uuid.empty()) {
            ++counts_[event.uuid];
        }
        if (!stopped_) {
            callback_(std::move(event));
        }
    }

    /// Events of this domain so far.
    std::uint64_t count(const std::string& uuid) {
        const MutexLock lock(mutex_);
        return counts_[uuid];
    }

    /// Delivers a state read unless an event of the domain came while it was being read.
    bool deliver_if_current(DomainEvent event, std::uint64_t count) {
        event.received = Clock::now();
        const MutexLock lock(mutex_);
        if (counts_[event.uuid] != count) {
            return false;
        }
        if (!stopped_) {
            callback_(std::move(event));
        }
        return true;
    }

    void stop() {
        {
            const MutexLock lock(mutex_);
            stopped_ = true;
        }
        wake("");
    }

    /// The connection broke (reason not empty), or the listener stops.
    void wake(const std::string& reason) {
        const MutexLock lock(wake_mutex_);
        woken_ = true;
        if (!reason.empty()) {
            broken_ = reason;
        }
        wake_.notify_all();
    }

    /// Waits at most `time`; returns why the connection broke, or "" if it did not.
    std::string wait(std::chrono::milliseconds time) {
        MutexLock lock(wake_mutex_);
        wake_.wait_for(lock, time, [&]() GANTRY_REQUIRES(wake_mutex_) { return woken_; });
        woken_ = false;
        return std::exchange(broken_, "");
    }

    bool stopped() {
        const MutexLock lock(mutex_);
        return stopped_;
    }

private:
    Mutex mutex_;
    Listener::Callback callback_ GANTRY_GUARDED_BY(mutex_);
    bool stopped_ GANTRY_GUARDED_BY(mutex_) = false;
    std::map<std::string, std::uint64_t> counts_ GANTRY_GUARDED_BY(mutex_);

    Mutex wake_mutex_;
    CondVar wake_;
    bool woken_ GANTRY_GUARDED_BY(wake_mutex_) = false;
    std::string broken_ GANTRY_GUARDED_BY(wake_mutex_);
};

using CorePointer = std::shared_ptr<Core>;

/// libvirt's callbacks get a number instead of a pointer: when libvirt frees a registration that
/// has ended is its own affair, so nothing of ours may hang on it.
class Registry {
public:
    void* add(const CorePointer& core) {
        const MutexLock lock(mutex_);
        cores_[++last_] = core;
        return reinterpret_cast<void*>(last_);
    }
    void remove(void* key) {
        const MutexLock lock(mutex_);
        cores_.erase(reinterpret_cast<std::uintptr_t>(key));
    }
    CorePointer find(void* key) {
        const MutexLock lock(mutex_);
        const auto found = cores_.find(reinterpret_cast<std::uintptr_t>(key));
        return found == cores_.end() ? nullptr : found->second.lock();
    }

private:
    Mutex mutex_;
    std::uintptr_t last_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::map<std::uintptr_t, std::weak_ptr<Core>> cores_ GANTRY_GUARDED_BY(mutex_);
};

Registry& registry() {
    static auto* const instance = new Registry;  // Outlives the event loop's thread.
    return *instance;
}

void deliver(void* key, DomainEvent event) {
    if (const CorePointer core = registry().find(key)) {
        core->deliver(std::move(event));
    }
}

DomainEvent event_of(virDomainPtr domain) {
    DomainEvent event;
    event.uuid = domain_uuid(domain);
    event.name = domain_name(domain);
    return event;
}

int on_lifecycle(virConnectPtr, virDomainPtr domain, int event, int detail, void* opaque) {
    const auto kind = lifecycle_kind(event, detail);
    if (kind) {
        DomainEvent result = event_of(domain);
        result.kind = *kind;
        result.text = lifecycle_text(event, detail);
        deliver(opaque, std::move(result));
    }
    return 0;
}

void on_iteration(virConnectPtr, virDomainPtr domain, int iteration, void* opaque) {
    DomainEvent event = event_of(domain);
    event.kind = EventKind::kMigrationIteration;
    event.iteration = static_cast<std::uint64_t>(iteration < 0 ? 0 : iteration);
    deliver(opaque, std::move(event));
}

void on_job_completed(virConnectPtr, virDomainPtr domain, virTypedParameterPtr parameters,
                      int count, void* opaque) {
    DomainEvent event = event_of(domain);
    event.kind = EventKind::kJobCompleted;
    event.job = job_stats(VIR_DOMAIN_JOB_COMPLETED, parameters, count);
    deliver(opaque, std::move(event));
}

void on_monitor(virConnectPtr, virDomainPtr domain, const char* name, long long seconds,
                unsigned int micros, const char* details, void* opaque) {
    DomainEvent event = event_of(domain);
    if (map_monitor_event(name, details, &event)) {
        event.qemu_time = std::chrono::seconds(seconds) + std::chrono::microseconds(micros);
        deliver(opaque, std::move(event));
    }
}

void on_close(virConnectPtr, int reason, void* opaque) {
    const CorePointer core = registry().find(opaque);
    if (core == nullptr) {
        return;
    }
    switch (reason) {
        case VIR_CONNECT_CLOSE_REASON_KEEPALIVE:
            return core->wake("libvirtd does not answer (keepalive)");
        case VIR_CONNECT_CLOSE_REASON_EOF: return core->wake("libvirtd closed the connection");
        default: return core->wake("the connection to libvirtd broke");
    }
}

/// One connection with its registrations, undone together.
class Connection {
public:
    Connection(ConnectionHandle handle, const CorePointer& core)
        : handle_(std::move(handle)), key_(registry().add(core)) {}
    ~Connection() {
        for (const int id : domain_ids_) {
            virConnectDomainEventDeregisterAny(handle_.get(), id);
        }
        if (monitor_id_ >= 0) {
            virConnectDomainQemuMonitorEventDeregister(handle_.get(), monitor_id_);
        }
        virConnectUnregisterCloseCallback(handle_.get(), on_close);
        registry().remove(key_);
    }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    Result<void> register_all(const ListenerOptions& options) {
        virConnectSetKeepAlive(handle_.get(), options.keepalive_interval_s,
                               options.keepalive_count);
        // libvirt's test driver has no close callback; isAlive is asked as well.
        virConnectRegisterCloseCallback(handle_.get(), on_close, key_, nullptr);
        GANTRY_TRY(add(VIR_DOMAIN_EVENT_ID_LIFECYCLE, VIR_DOMAIN_EVENT_CALLBACK(on_lifecycle)));
        GANTRY_TRY(
            add(VIR_DOMAIN_EVENT_ID_MIGRATION_ITERATION, VIR_DOMAIN_EVENT_CALLBACK(on_iteration)));
        GANTRY_TRY(
            add(VIR_DOMAIN_EVENT_ID_JOB_COMPLETED, VIR_DOMAIN_EVENT_CALLBACK(on_job_completed)));
        // Below 0 when this is not QEMU. The lifecycle events suffice.
        monitor_id_ = virConnectDomainQemuMonitorEventRegister(handle_.get(), nullptr, nullptr,
                                                               on_monitor, key_, nullptr, 0);
        return {};
    }

    [[nodiscard]] bool has_monitor_events() const { return monitor_id_ >= 0; }
    [[nodiscard]] virConnectPtr get() const { return handle_.get(); }

private:
    Result<void> add(int event_id, virConnectDomainEventGenericCallback callback) {
        const int id = virConnectDomainEventRegisterAny(handle_.get(), nullptr, event_id, callback,
                                                        key_, nullptr);
        if (id < 0) {
            return last_error("cannot listen to libvirt's events");
        }
        domain_ids_.push_back(id);
        return {};
    }

    ConnectionHandle handle_;
    void* const key_;
    std::vector<int> domain_ids_;
    int monitor_id_ = -1;
};

Result<std::unique_ptr<Connection>> open_connection(const ListenerOptions& options,
                                                    const CorePointer& core) {
    GANTRY_TRY(start_event_loop());
    ConnectionHandle handle(virConnectOpen(options.uri.c_str()));
    if (!handle) {
        return last_error("cannot connect to libvirt at " + options.uri);
    }
    auto connection = std::make_unique<Connection>(std::move(handle), core);
    GANTRY_TRY(connection->register_all(options));
    return connection;
}

/// Reports one domain as it is; reads again when an event overtook the reading.
void read_state(virDomainPtr domain, Core& core) {
    constexpr int kTries = 20;  // Then its events come so fast that they tell the state anyway.
    for (int i = 0; i < kTries && !core.stopped(); ++i) {
        DomainEvent event = event_of(domain);
        event.kind = EventKind::kStateRead;
        const std::uint64_t count = core.count(event.uuid);
        auto state = domain_state(domain);
        auto job = job_stats(domain);
        event.state = state.ok() ? *state : DomainState::kUnknown;
        if (job.ok()) {
            event.job = *job;
        }
        event.text = !state.ok() ? state.error().text : !job.ok() ? job.error().text : "";
        if (core.deliver_if_current(std::move(event), count)) {
            return;
        }
    }
}

Result<void> read_all_states(virConnectPtr connection, Core& core) {
    virDomainPtr* list = nullptr;
    const int count = virConnectListAllDomains(connection, &list, VIR_CONNECT_LIST_DOMAINS_ACTIVE);
    if (count < 0) {
        return last_error("cannot list the domains");
    }
    for (int i = 0; i < count; ++i) {
        read_state(list[i], core);
        virDomainFree(list[i]);
    }
    std::free(list);
    DomainEvent end;
    end.kind = EventKind::kStateReadEnd;
    core.deliver(std::move(end));
    return {};
}

}  // namespace

class Listener::Impl {
public:
    Impl(ListenerOptions options, Callback callback)
        : options_(std::move(options)), core_(std::make_shared<Core>(std::move(callback))) {
        thread_ = std::thread([this] { watch(); });
        pthread_setname_np(thread_.native_handle(), "libvirt-watch");
    }
    ~Impl() {
        core_->stop();
        thread_.join();
    }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

private:
    void watch() {
        bool reported = false;  // kDisconnected is said once, not at every attempt.
        while (!core_->stopped()) {
            const std::string reason = serve_one_connection(&reported);
            if (!core_->stopped() && !reported) {
                reported = true;
                say(EventKind::kDisconnected, reason);
            }
            core_->wait(options_.reconnect_interval);
        }
    }

    /// Until the connection breaks or the listener stops. Returns why it ended.
    std::string serve_one_connection(bool* reported) {
        auto connection = open_connection(options_, core_);
        if (!connection.ok()) {
            return connection.error().text;
        }
        *reported = false;
        say(EventKind::kConnected, (*connection)->has_monitor_events()
                                       ? "with QEMU monitor events"
                                       : "without QEMU monitor events");
        if (auto read = read_all_states((*connection)->get(), *core_); !read.ok()) {
            return read.error().text;
        }
        while (!core_->stopped()) {
            const std::string reason = core_->wait(std::chrono::seconds(1));
            if (!reason.empty()) {
                return reason;
            }
            if (virConnectIsAlive((*connection)->get()) != 1) {
                return "the connection to libvirtd is dead";
            }
        }
        return "";
    }

    void say(EventKind kind, std::string text) {
        DomainEvent event;
        event.kind = kind;
        event.text = std::move(text);
        core_->deliver(std::move(event));
    }

    const ListenerOptions options_;
    const CorePointer core_;
    std::thread thread_;
};

Listener::Listener(ListenerOptions options, Callback callback)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(callback))) {}
Listener::~Listener() = default;

}  // namespace gantry::libvirt
