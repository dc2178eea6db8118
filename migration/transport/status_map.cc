#include "migration/transport/status_map.h"

#include <algorithm>

namespace gantry::transport {
namespace {

bool is_reason(const std::string& text) {
    return !text.empty() && text.find('.') != std::string::npos &&
           std::all_of(text.begin(), text.end(), [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
           });
}

}  // namespace

grpc::Status to_status(const Error& error) {
    const Code code = error.code == Code::kOk ? Code::kInternal : error.code;
    return {static_cast<grpc::StatusCode>(code), error.reason + ": " + error.text};
}

Error from_status(const grpc::Status& status) {
    const int number = static_cast<int>(status.error_code());
    const Code code = number > 0 && number <= static_cast<int>(Code::kUnauthenticated)
                          ? static_cast<Code>(number)
                          : Code::kUnknown;
    const std::string message = status.error_message();
    const std::size_t colon = message.find(": ");
    if (colon != std::string::npos && is_reason(message.substr(0, colon))) {
        return {code, message.substr(0, colon), message.substr(colon + 2)};
    }
    return {code, "grpc.transport", message};
}

}  // namespace gantry::transport
