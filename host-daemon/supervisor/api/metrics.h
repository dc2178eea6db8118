// Prometheus endpoint of gantryd: sessions, workers, memory and moves. Off unless configured.
//
// Values are read from the registry when somebody scrapes, so nothing is paid otherwise.
#pragma once

#include <memory>
#include <string>

#include "host-daemon/supervisor/registry/registry.h"

namespace gantry::supervisor {

class Metrics {
public:
    /// Listens on ADDRESS:PORT.
    static Result<std::unique_ptr<Metrics>> start(const std::string& listen, Registry& registry);
    ~Metrics();
    Metrics(const Metrics&) = delete;
    Metrics& operator=(const Metrics&) = delete;

private:
    class Impl;
    explicit Metrics(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace gantry::supervisor
