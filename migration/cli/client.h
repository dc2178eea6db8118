// The gantry command's way to gantryd: one gRPC channel on its unix socket. Not thread-safe.
#pragma once

#include <memory>
#include <string>

#include "proto/base/result.h"
#include "proto/control/gantryd.grpc.pb.h"

namespace gantry::cli {

/// Exit status of every command, documented in the manual and printed by --help.
enum ExitStatus : int {
    kDone = 0,
    /// gantryd said no, or the command failed; the reason is on standard error.
    kRefused = 1,
    kUsage = 2,
    kUnreachable = 3,  ///< No gantryd answers on the socket.
    kNotFound = 4,     ///< No such session, VM or file.
};

class Client {
public:
    explicit Client(const std::string& socket);

    [[nodiscard]] control::Operator::Stub& stub() { return *stub_; }
    /// Makes the unreachable case clear: which socket, and what to do.
    [[nodiscard]] Error explain(const grpc::Status& status) const;

private:
    std::string socket_;
    std::unique_ptr<control::Operator::Stub> stub_;
};

}  // namespace gantry::cli
