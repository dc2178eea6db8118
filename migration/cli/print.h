// What the gantry command writes on standard output: tables and lines in virsh's words, or JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "proto/base/result.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::snapshot {
class ObjectGraph;
}
namespace google::protobuf {
class Message;
}

namespace gantry::cli {

enum class Form { kText, kJson };

/// Whether fields that are zero, empty or false are there too.
enum class Zeros { kPrinted, kLeftOut };
/// Field names as in the schema, 64-bit numbers as text: handles and addresses of a graph keep all
/// their digits in programs that count with floating point.
nlohmann::ordered_json json_of(const google::protobuf::Message& message,
                               Zeros zeros = Zeros::kPrinted);
/// With a line end; one line unless `pretty`.
std::string json_text(const nlohmann::ordered_json& json, bool pretty);
/// One JSON object, zeros included, and numbers as numbers.
std::string to_json(const google::protobuf::Message& message, bool pretty);

/// A session and its programs' objects as one JSON object, "status" and "graphs".
std::string inspection_json(const control::SessionStatus& status,
                            std::span<const snapshot::ObjectGraph> graphs, bool pretty);

std::string status_text(const control::ListSessionsReply& reply);
std::string preflight_text(const control::PreflightReply& reply);
/// One line of `gantry watch`, as virsh migrate --verbose words it.
std::string watch_line(const control::SessionStatus& status);
std::string replacement_text(const control::ReplaceWorkersReply& reply);
std::string sched_text(const control::SchedReply& reply);
std::string account_text(const control::AccountReply& reply);
std::string bytes_text(std::uint64_t bytes);
std::string milliseconds(std::uint64_t us);
/// What programs have allocated on the GPU that `reply` names.
std::uint64_t used_bytes(const control::ListSessionsReply& reply);
/// "gantry: TEXT [REASON]", and as one line of JSON: {"error":{"reason":...,"text":...}}.
std::string error_text(const Error& error);
std::string error_json(const Error& error);

}  // namespace gantry::cli
