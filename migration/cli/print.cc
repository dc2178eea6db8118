#include "migration/cli/print.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "proto/snapshot/object_graph.pb.h"

namespace gantry::cli {
namespace {

std::string name_of(const control::SessionStatus& status) {
    return status.vm_name().empty() ? status.session_id() : status.vm_name();
}

/// One program of a session, indented below it.
std::string worker_line(const control::WorkerInfo& worker) {
    const std::string refused = worker.refused_commands() == 0
                                    ? ""
                                    : fmt::format(", {} refused", worker.refused_commands());
    return fmt::format("   program {}{}{} (worker {}): {}, GPU memory {}, pinned {}, {} launches{}",
                       worker.guest_pid(), worker.process_name().empty() ? "" : " ",
                       worker.process_name(), worker.pid(), worker.state(),
                       bytes_text(worker.device_memory_bytes()),
                       bytes_text(worker.pinned_memory_bytes()), worker.kernel_launches(), refused);
}

std::string gpu_line(const control::GpuStatus& gpu) {
    if (gpu.name().empty()) {
        return fmt::format("GPU {}:   cannot be used{}{}\n", gpu.device(),
                           gpu.error().empty() ? "" : ": ", gpu.error());
    }
    const std::uint64_t taken = std::max(gpu.memory_used_bytes(), gpu.memory_promised_bytes());
    return fmt::format("GPU {}:   {}, {}: {} in use by programs, {} promised, {} free\n",
                       gpu.device(), gpu.name(), bytes_text(gpu.memory_bytes()),
                       bytes_text(gpu.memory_used_bytes()), bytes_text(gpu.memory_promised_bytes()),
                       bytes_text(gpu.memory_bytes() - std::min(taken, gpu.memory_bytes())));
}

std::string rate_text(double bytes_per_second) {
    return bytes_text(static_cast<std::uint64_t>(bytes_per_second));
}

void make_numbers(const google::protobuf::Descriptor& type, nlohmann::ordered_json& json);

void make_number(const google::protobuf::FieldDescriptor& field, nlohmann::ordered_json& value) {
    using google::protobuf::FieldDescriptor;
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        make_numbers(*field.message_type(), value);
    } else if (value.is_string() && field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
        value = std::strtoull(value.get_ref<const std::string&>().c_str(), nullptr, 10);
    } else if (value.is_string() && field.cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
        value = std::strtoll(value.get_ref<const std::string&>().c_str(), nullptr, 10);
    }
}

/// protobuf writes numbers of 64 bits as text, which other programs then compare as text.
void make_numbers(const google::protobuf::Descriptor& type, nlohmann::ordered_json& json) {
    if (!json.is_object()) {
        return;
    }
    for (auto& [name, value] : json.items()) {
        const auto* field = type.FindFieldByName(name);
        if (field == nullptr || field->is_map()) {
            continue;
        }
        if (!field->is_repeated()) {
            make_number(*field, value);
            continue;
        }
        for (auto& one : value) {
            make_number(*field, one);
        }
    }
}

}  // namespace

std::uint64_t used_bytes(const control::ListSessionsReply& reply) {
    std::uint64_t sum = 0;
    for (const control::SessionStatus& status : reply.sessions()) {
        for (const control::WorkerInfo& worker : status.workers()) {
            sum += worker.device() == reply.device_number() ? worker.device_memory_bytes() : 0;
        }
    }
    return sum;
}

std::string milliseconds(std::uint64_t us) {
    return fmt::format("{:.1f} ms", static_cast<double>(us) / 1000.0);
}

std::string bytes_text(std::uint64_t bytes) {
    if (bytes >= (10ULL << 30)) {
        return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1ULL << 30));
    }
    if (bytes >= (1ULL << 20)) {
        return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1ULL << 20));
    }
    return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024.0);
}

/// Texts may name files, whose names need not be UTF-8.
std::string json_text(const nlohmann::ordered_json& json, bool pretty) {
    return json.dump(pretty ? 1 : -1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

nlohmann::ordered_json json_of(const google::protobuf::Message& message, Zeros zeros) {
    google::protobuf::util::JsonPrintOptions options;
    options.always_print_primitive_fields = zeros == Zeros::kPrinted;
    options.preserve_proto_field_names = true;
    std::string text;
    (void)google::protobuf::util::MessageToJsonString(message, &text, options);
    return nlohmann::ordered_json::parse(text, nullptr, false);
}

std::string to_json(const google::protobuf::Message& message, bool pretty) {
    nlohmann::ordered_json json = json_of(message);
    make_numbers(*message.GetDescriptor(), json);
    return json_text(json, pretty);
}

std::string inspection_json(const control::SessionStatus& status,
                            std::span<const snapshot::ObjectGraph> graphs, bool pretty) {
    nlohmann::ordered_json json{{"status", json_of(status)},
                                {"graphs", nlohmann::ordered_json::array()}};
    for (const snapshot::ObjectGraph& graph : graphs) {
        json["graphs"].push_back(json_of(graph));
    }
    return json_text(json, pretty);
}

std::string error_text(const Error& error) {
    const std::string reason = "[" + error.reason + "]";
    // A refusal of preflight names the reasons of its findings itself.
    return "gantry: " + error.text + (error.text.ends_with(reason) ? "" : " " + reason) + "\n";
}

std::string error_json(const Error& error) {
    return json_text({{"error", {{"reason", error.reason}, {"text", error.text}}}}, false);
}

std::string status_text(const control::ListSessionsReply& reply) {
    std::string out =
        fmt::format("Host:    {} (gantryd {})\n", reply.host(), reply.gantry_version());
    if (reply.gpus_size() > 1) {
        for (const control::GpuStatus& gpu : reply.gpus()) {
            out += gpu_line(gpu);
        }
    } else if (reply.device().empty()) {
        out += fmt::format("Device:  none usable{}{}\n", reply.device_error().empty() ? "" : ": ",
                           reply.device_error());
    } else {
        const std::uint64_t used = used_bytes(reply);
        const std::uint64_t taken = std::max(used, reply.memory_promised_bytes());
        out +=
            fmt::format("Device:  {}, {}: {} in use by programs, {} promised, {} free\n",
                        reply.device(), bytes_text(reply.memory_bytes()), bytes_text(used),
                        bytes_text(reply.memory_promised_bytes()),
                        bytes_text(reply.memory_bytes() - std::min(taken, reply.memory_bytes())));
    }
    out += fmt::format("\n {:<38} {:<12} {:<9} {:>9} {:>12}\n{:-<85}\n", "Session", "Domain",
                       "State", "Programs", "GPU memory", "");
    for (const control::SessionStatus& status : reply.sessions()) {
        std::uint64_t memory = 0;
        for (const control::WorkerInfo& worker : status.workers()) {
            memory += worker.device_memory_bytes();
        }
        out += fmt::format(" {:<38} {:<12} {:<9} {:>9} {:>12}\n", status.session_id(),
                           status.vm_name().empty() ? "-" : status.vm_name(), status.state(),
                           status.workers_size(), bytes_text(memory));
        if (reply.gpus_size() > 1 || status.device() != reply.device_number()) {
            out += fmt::format("   on GPU {}: {}\n", status.device(), status.device_name());
        }
        for (const control::WorkerInfo& worker : status.workers()) {
            out += worker_line(worker);
            out += worker.device() == status.device()
                       ? "\n"
                       : fmt::format(", on GPU {}\n", worker.device());
        }
        if (status.source_fenced()) {
            out += "   its source host counts as fenced, by an operator's word\n";
        }
        if (status.has_move()) {
            out += fmt::format("   {}\n", watch_line(status));
        }
        for (const std::string& alert : status.alerts()) {
            out += fmt::format("   ! {}\n", alert);
        }
    }
    return out;
}

std::string replacement_text(const control::ReplaceWorkersReply& reply) {
    std::string out;
    for (const control::WorkerReplacement& worker : reply.workers()) {
        out += fmt::format("process {} gave way to {}: {} handed over, {} copied{}, pause {}\n",
                           worker.old_pid(), worker.pid(), bytes_text(worker.bytes_handed_over()),
                           bytes_text(worker.bytes_copied()),
                           worker.way() == "peer"     ? " from device to device"
                           : worker.way() == "staged" ? " by way of host memory"
                                                      : "",
                           milliseconds(worker.pause_us()));
    }
    return out.empty() ? "no program of the session runs\n" : out;
}

std::string sched_text(const control::SchedReply& reply) {
    std::string out = reply.enabled() ? "" : "switched off: `gantry sched on`\n";
    for (const control::GpuSched& gpu : reply.gpus()) {
        out += fmt::format("GPU {}{}{}: {}\n", gpu.device(), gpu.device_name().empty() ? "" : ", ",
                           gpu.device_name(),
                           gpu.arbitrates() ? "arbitrated" : "everybody launches at will");
        if (gpu.sessions_size() != 0) {
            out += fmt::format("{:<40} {:>8} {:>6} {:>7} {:>10} {:>11} {:>7} {:>7}\n", "session",
                               "priority", "weight", "permit", "held s", "waited ms", "windows",
                               "gaps");
        }
        for (const control::SessionSched& one : gpu.sessions()) {
            out += fmt::format("{:<40} {:>8} {:>6} {:>7} {:>10.3f} {:>11.1f} {:>7} {:>7}\n",
                               one.session_id(), one.priority(), one.weight(), one.permit(),
                               static_cast<double>(one.held_us()) / 1e6,
                               static_cast<double>(one.wait_us_max()) / 1e3, one.windows_once(),
                               one.fills());
        }
    }
    return out.empty() ? "no program uses a GPU\n" : out;
}

std::string account_text(const control::AccountReply& reply) {
    constexpr int kKernels = 20;
    std::string out =
        fmt::format("GPU time:  {:.3f} s in {} launches\n", reply.gpu_us() / 1e6, reply.launches());
    for (const control::ProgramAccount& program : reply.programs()) {
        out += fmt::format("\nProgram {} {}: {:.3f} s in {} launches\n", program.guest_pid(),
                           program.process_name(), program.gpu_us() / 1e6, program.launches());
        out += fmt::format("{:>10} {:>6} {:>10} {:>10}  {:<12}  {}\n", "GPU ms", "%", "launches",
                           "us each", "image", "kernel");
        for (int i = 0; i < program.kernels_size() && i < kKernels; ++i) {
            const control::KernelUse& kernel = program.kernels(i);
            const double all = program.gpu_us() > 0 ? program.gpu_us() : 1;
            out += fmt::format(
                "{:>10.3f} {:>6.1f} {:>10} {:>10.1f}  {:<12}  {} {}\n", kernel.gpu_us() / 1e3,
                100 * kernel.gpu_us() / all, kernel.launches(),
                kernel.launches() != 0 ? kernel.gpu_us() / static_cast<double>(kernel.launches())
                                       : 0.0,
                kernel.image_sha256().substr(0, 12), kernel.entry().empty() ? "?" : kernel.entry(),
                fmt::format("({})x({})", fmt::join(kernel.grid(), ","),
                            fmt::join(kernel.block(), ",")));
        }
        if (program.kernels_size() > kKernels) {
            out +=
                fmt::format("and {} kernels more, see --json\n", program.kernels_size() - kKernels);
        }
    }
    return out;
}

std::string preflight_text(const control::PreflightReply& reply) {
    std::string out =
        fmt::format("Source device:  {}{}\nTarget device:  {}{}{}{}\nResident:       {}\n",
                    reply.source_device(),
                    reply.has_source_gpu() ? fmt::format(" (GPU {})", reply.source_gpu()) : "",
                    reply.target_device(),
                    reply.has_target_gpu() ? fmt::format(" (GPU {})", reply.target_gpu()) : "",
                    reply.target_host().empty() ? "" : " on ", reply.target_host(),
                    bytes_text(reply.resident_bytes()));
    if (reply.link_bytes_per_second() > 0.0) {
        out += fmt::format("Link:           {}/s in the last move; first round about {:.1f} s\n",
                           rate_text(reply.link_bytes_per_second()),
                           static_cast<double>(reply.first_round_expected_us()) / 1e6);
    }
    if (reply.downtime_max_us() != 0) {
        out += fmt::format("Pause:          refused if longer than {}\n",
                           milliseconds(reply.downtime_max_us()));
    }
    for (const control::Finding& finding : reply.findings()) {
        out += fmt::format("{}: {} [{}]\n", finding.refusal() ? "error" : "warning", finding.text(),
                           finding.reason());
    }
    return out + (reply.can_move() ? "Migration: possible\n" : "Migration: refused\n");
}

std::string watch_line(const control::SessionStatus& status) {
    const std::string name = name_of(status);
    if (!status.has_move()) {
        return name + ": " + status.state();
    }
    const control::MoveProgress& move = status.move();
    std::string out = fmt::format("{}: {} migration: [{:3.0f} %] {}", name, move.direction(),
                                  move.percent(), move.phase());
    if (!move.outcome().empty()) {
        out += fmt::format(" ({})", move.outcome());
        if (!move.error_text().empty()) {
            out += fmt::format(": {} [{}]", move.error_text(), move.error_reason());
        }
    }
    out += fmt::format(", round {}, {} processed, {} on the wire", move.round(),
                       bytes_text(move.bytes_processed()), bytes_text(move.bytes_on_wire()));
    const bool is_sending = move.outcome().empty() && move.direction() == "outgoing";
    if (is_sending) {  // only the source knows at any time
        out += fmt::format(", {} remaining", bytes_text(move.bytes_remaining()));
    }
    if (is_sending && move.bytes_per_second() > 0.0) {
        out += fmt::format(", link {}/s, programs change {}/s", rate_text(move.bytes_per_second()),
                           rate_text(move.dirty_bytes_per_second()));
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
