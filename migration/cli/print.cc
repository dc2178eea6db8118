#include "migration/cli/print.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "proto/snapshot/object_graph.pb.h"

namespace gantry::cli {
namespace {

template <typename... Values>
std::string format(const char* pattern, Values... values) {
    std::array<char, 1024> buffer{};
    const int length = std::snprintf(buffer.data(), buffer.size(), pattern, values...);
    const int kept = std::min(length, static_cast<int>(buffer.size()) - 1);
    return {buffer.data(), static_cast<std::size_t>(std::max(0, kept))};
}

std::string name_of(const control::SessionStatus& status) {
    return status.vm_name().empty() ? status.session_id() : status.vm_name();
}

/// One program of a session, indented below it.
std::string worker_line(const control::WorkerInfo& worker) {
    const std::string refused =
        worker.refused_commands() == 0
            ? ""
            : format(", %llu refused", static_cast<unsigned long long>(worker.refused_commands()));
    const std::string name = worker.process_name().empty() ? "" : " " + worker.process_name();
    return format("   program %u%s (worker %u): %s, GPU memory %s, pinned %s, %llu launches",
                  worker.guest_pid(), name.c_str(), worker.pid(), worker.state().c_str(),
                  bytes_text(worker.device_memory_bytes()).c_str(),
                  bytes_text(worker.pinned_memory_bytes()).c_str(),
                  static_cast<unsigned long long>(worker.kernel_launches())) +
           refused;
}

std::string milliseconds(std::uint64_t us) {
    return format("%.1f ms", static_cast<double>(us) / 1000.0);
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
    if (bytes >= (10ULL << 30)) {
        return format("%.1f GiB", static_cast<double>(bytes) / (1ULL << 30));
    }
    if (bytes >= (1ULL << 20)) {
        return format("%.1f MiB", static_cast<double>(bytes) / (1ULL << 20));
    }
    return format("%.1f KiB", static_cast<double>(bytes) / 1024.0);
}

std::string to_json(const google::protobuf::Message& message, bool pretty) {
    google::protobuf::util::JsonPrintOptions options;
    options.add_whitespace = pretty;
    options.always_print_primitive_fields = true;
    options.preserve_proto_field_names = true;
    std::string out;
    (void)google::protobuf::util::MessageToJsonString(message, &out, options);
    if (out.empty() || out.back() != '\n') {
        out += '\n';
    }
    return out;
}

std::string inspection_json(const control::SessionStatus& status,
                            std::span<const snapshot::ObjectGraph> graphs, bool pretty) {
    const std::string line_end = pretty ? "\n" : "";
    const auto value = [pretty](const google::protobuf::Message& message) {
        std::string text = to_json(message, pretty);
        text.pop_back();
        return text;
    };
    std::string list;
    for (const snapshot::ObjectGraph& graph : graphs) {
        list += (list.empty() ? "" : "," + line_end) + value(graph);
    }
    return "{" + line_end + "\"status\":" + value(status) + "," + line_end + "\"graphs\":[" + list +
           "]" + line_end + "}\n";
}

std::string error_text(const Error& error) {
    const std::string reason = "[" + error.reason + "]";
    // A refusal of preflight names the reasons of its findings itself.
    return "gantry: " + error.text + (error.text.ends_with(reason) ? "" : " " + reason) + "\n";
}

std::string error_json(const Error& error) {
    control::Finding finding;  // for its quoting
    finding.set_refusal(true);
    finding.set_reason(error.reason);
    finding.set_text(error.text);
    std::string line = to_json(finding, false);
    line.pop_back();
    return "{\"error\":" + line + "}\n";
}

std::string status_text(const control::ListSessionsReply& reply) {
    std::string out =
        format("Host:    %s (gantryd %s)\n", reply.host().c_str(), reply.gantry_version().c_str());
    out += reply.device().empty()
               ? "Device:  none usable" +
                     (reply.device_error().empty() ? "" : ": " + reply.device_error()) + "\n"
               : format("Device:  %s, %s, %s promised\n", reply.device().c_str(),
                        bytes_text(reply.memory_bytes()).c_str(),
                        bytes_text(reply.memory_promised_bytes()).c_str());
    out += format("\n %-38s %-12s %-9s %11s %9s %12s\n", "Session", "Domain", "State", "Epoch",
                  "Programs", "GPU memory");
    out += std::string(97, '-') + "\n";
    for (const control::SessionStatus& status : reply.sessions()) {
        std::uint64_t memory = 0;
        for (const control::WorkerInfo& worker : status.workers()) {
            memory += worker.device_memory_bytes();
        }
        out += format(" %-38s %-12s %-9s %11llu %9d %12s\n", status.session_id().c_str(),
                      status.vm_name().empty() ? "-" : status.vm_name().c_str(),
                      status.state().c_str(), static_cast<unsigned long long>(status.epoch()),
                      status.workers_size(), bytes_text(memory).c_str());
        if (status.device() != reply.device_number()) {
            out += format("   on GPU %u: %s\n", status.device(), status.device_name().c_str());
        }
        for (const control::WorkerInfo& worker : status.workers()) {
            out +=
                worker_line(worker) + (worker.device() == status.device()
                                           ? "\n"
                                           : ", on GPU " + std::to_string(worker.device()) + "\n");
        }
        if (status.source_fenced()) {
            out += "   its source host counts as fenced, by an operator's word\n";
        }
        if (status.has_move()) {
            out += "   " + watch_line(status) + "\n";
        }
        for (const std::string& alert : status.alerts()) {
            out += "   ! " + alert + "\n";
        }
    }
    return out;
}

std::string replacement_text(const control::ReplaceWorkersReply& reply) {
    std::string out;
    for (const control::WorkerReplacement& worker : reply.workers()) {
        out +=
            format("process %u gave way to %u: %s handed over, %s copied%s, pause %.1f ms\n",
                   worker.old_pid(), worker.pid(), bytes_text(worker.bytes_handed_over()).c_str(),
                   bytes_text(worker.bytes_copied()).c_str(),
                   worker.way() == "peer"     ? " from device to device"
                   : worker.way() == "staged" ? " by way of host memory"
                                              : "",
                   static_cast<double>(worker.pause_us()) / 1000);
    }
    return out.empty() ? "no program of the session runs\n" : out;
}

std::string preflight_text(const control::PreflightReply& reply) {
    std::string out = format("Source device:  %s\nTarget device:  %s%s%s\nResident:       %s\n",
                             reply.source_device().c_str(), reply.target_device().c_str(),
                             reply.target_host().empty() ? "" : " on ", reply.target_host().c_str(),
                             bytes_text(reply.resident_bytes()).c_str());
    for (const control::Finding& finding : reply.findings()) {
        out += format("%s: ", finding.refusal() ? "error" : "warning") + finding.text() + " [" +
               finding.reason() + "]\n";
    }
    return out + (reply.can_move() ? "Migration: possible\n" : "Migration: refused\n");
}

std::string watch_line(const control::SessionStatus& status) {
    const std::string name = name_of(status);
    if (!status.has_move()) {
        return name + ": " + status.state();
    }
    const control::MoveProgress& move = status.move();
    std::string out = format("%s: %s migration: [%3.0f %%] %s", name.c_str(),
                             move.direction().c_str(), move.percent(), move.phase().c_str());
    if (!move.outcome().empty()) {
        out += " (" + move.outcome() + ")";
        if (!move.error_text().empty()) {
            out += ": " + move.error_text() + " [" + move.error_reason() + "]";
        }
    }
    out += format(
        ", round %llu, %s processed, %s on the wire", static_cast<unsigned long long>(move.round()),
        bytes_text(move.bytes_processed()).c_str(), bytes_text(move.bytes_on_wire()).c_str());
    if (move.outcome().empty() && move.direction() == "outgoing") {  // only the source knows
        out += ", " + bytes_text(move.bytes_remaining()) + " remaining";
    }
    if (move.downtime_expected_us() != 0) {
        out += ", expected downtime " + milliseconds(move.downtime_expected_us());
    }
    if (move.downtime_us() != 0) {
        out += ", downtime " + milliseconds(move.downtime_us());
    }
    if (!move.memory_digest().empty()) {
        out += ", memory digest " + move.memory_digest();
    }
    return out;
}

}  // namespace gantry::cli
