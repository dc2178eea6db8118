// Between Error and grpc::Status: code for code, and "REASON: TEXT" as the message. Pure functions.
// A status that did not come from Gantry (a refused connection, say) gets the reason
// `grpc.transport`.
#pragma once

#include <grpcpp/support/status.h>

#include "proto/base/result.h"

namespace gantry::transport {

grpc::Status to_status(const Error& error);
Error from_status(const grpc::Status& status);

}  // namespace gantry::transport
