#include "migration/cli/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "migration/transport/status_map.h"

namespace gantry::cli {
namespace {

/// Why nobody can be asked there; 0: somebody can.
int connect_failure(const std::string& path) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const bool is_done =
        fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    const int failure = is_done ? 0 : errno;
    ::close(fd);
    return failure;
}

Error unreachable(const std::string& socket) {
    const std::string what = "no gantryd answers on " + socket + ": ";
    switch (const int failure = connect_failure(socket); failure) {
        case EACCES:
        case EPERM:
            return {Code::kPermissionDenied, "daemon.denied",
                    what +
                        "you may not open it; run this as root, or as a member of the group "
                        "that operator.group names in gantryd.toml"};
        case ENOENT:
            return {Code::kUnavailable, "daemon.unreachable",
                    what +
                        "there is no such socket; start gantryd (systemctl start gantryd), or "
                        "name its socket with --socket"};
        case ECONNREFUSED:
            return {Code::kUnavailable, "daemon.unreachable",
                    what +
                        "it has ended; start it again (systemctl start gantryd; why it ended is "
                        "in journalctl -u gantryd), or name another socket with --socket"};
        default:
            return {Code::kUnavailable, "daemon.unreachable",
                    what + (failure == 0 ? "it was cut off" : std::strerror(failure)) +
                        "; look at gantryd's log, or name another socket with --socket"};
    }
}

}  // namespace

Client::Client(const std::string& socket) : socket_(socket) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);  // an object graph may be large
    stub_ = control::Operator::NewStub(
        grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments));
}

Error Client::explain(const grpc::Status& status) const {
    const Error error = transport::from_status(status);
    if (error.reason == "grpc.transport" && error.code == Code::kUnavailable) {
        return unreachable(socket_);
    }
    return error;
}

}  // namespace gantry::cli
