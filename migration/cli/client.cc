#include "migration/cli/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "migration/transport/status_map.h"

namespace gantry::cli {

Client::Client(const std::string& socket) : socket_(socket) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);  // an object graph may be large
    stub_ = control::Operator::NewStub(
        grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments));
}

Error Client::explain(const grpc::Status& status) const {
    const Error error = transport::from_status(status);
    if (error.reason == "grpc.transport" && error.code == Code::kUnavailable) {
        return {Code::kUnavailable, "daemon.unreachable",
                "no gantryd answers on " + socket_ +
                    ": start it (systemctl start gantryd), name its socket with --socket, or run "
                    "this as a user who may open it"};
    }
    return error;
}

}  // namespace gantry::cli
