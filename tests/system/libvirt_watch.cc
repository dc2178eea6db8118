// Prints a libvirt host's events as JSON lines until it is killed: the listener as the system tests
// see it. Usage: libvirt_watch [URI]
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "migration/libvirt/listener.h"

using gantry::libvirt::DomainEvent;

namespace {

void print(const DomainEvent& event) {
    nlohmann::json line = {
        {"kind", to_string(event.kind)},
        {"uuid", event.uuid},
        {"name", event.name},
        {"us",
         std::chrono::duration_cast<std::chrono::microseconds>(event.received.time_since_epoch())
             .count()},
        {"text", event.text},
    };
    using Kind = gantry::libvirt::EventKind;
    if (event.kind == Kind::kMigrationStatus) {
        line["status"] = to_string(event.qemu_status);
    }
    if (event.kind == Kind::kStateRead) {
        line["state"] = to_string(event.state);
    }
    if (event.job) {
        line["job"] = to_string(event.job->kind);
        line["downtime_ms"] = event.job->downtime_ms;
    }
    std::printf("%s\n", line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).c_str());
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    gantry::libvirt::ListenerOptions options;
    if (argc > 1) {
        options.uri = argv[1];
    }
    options.reconnect_interval = std::chrono::milliseconds(100);
    const gantry::libvirt::Listener listener(options, print);
    for (;;) {
        pause();
    }
}
