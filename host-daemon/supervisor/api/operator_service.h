// OperatorService: the `Operator` service of gantryd.proto on a unix socket.
//
// Who may connect is decided by the socket's mode (gantryd's user, and operator.group if set).
// Thread-safe by the registry.
#pragma once

#include <memory>
#include <string>

#include "host-daemon/supervisor/registry/registry.h"

namespace gantry::supervisor {

class OperatorService {
public:
    static Result<std::unique_ptr<OperatorService>> start(const OperatorConfig& config,
                                                          Registry& registry);
    ~OperatorService();
    OperatorService(const OperatorService&) = delete;
    OperatorService& operator=(const OperatorService&) = delete;

private:
    class Impl;
    explicit OperatorService(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace gantry::supervisor
