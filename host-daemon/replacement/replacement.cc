#include "host-daemon/replacement/replacement.h"

#include "host-daemon/replacement/job.h"

namespace gantry::replacement {
namespace {

std::string field(const char* name, std::uint64_t value) {
    return std::string("\"") + name + "\":" + std::to_string(value);
}

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char each : text) {
        if (each == '"' || each == '\\') {
            out += '\\';
        }
        out += static_cast<unsigned char>(each) < ' ' ? ' ' : each;
    }
    return out + "\"";
}

std::string to_json(const Round& round) {
    return "{" + field("bytes", round.bytes) + "," + field("scan_us", round.scan_us) + "," +
           field("copy_us", round.copy_us) + "," + field("rest_us", round.rest_us) + "," +
           field("fingerprint_us", round.fingerprint_us) + "," + field("total_us", round.total_us) +
           "}";
}

/// whom, what, microseconds since the beginning, how many it took, number of requests.
std::string to_json(const Span& span) {
    constexpr const char* kWhom[] = {"old", "fresh", "nobody"};
    return "[" + quoted(kWhom[static_cast<int>(span.whom)]) + "," + quoted(span.what) + "," +
           std::to_string(span.at_us) + "," + std::to_string(span.us) + "," +
           std::to_string(span.count) + "]";
}

template <typename Items, typename Text>
std::string joined(const Items& items, Text text) {
    std::string out;
    for (const auto& item : items) {
        out += (out.empty() ? "" : ",") + text(item);
    }
    return out;
}

}  // namespace

const char* to_string(Step step) {
    constexpr const char* kNames[] = {"checked",  "prepared", "frozen",   "final",
                                      "attached", "released", "activated"};
    return kNames[static_cast<int>(step)];
}

const char* to_string(Way way) {
    constexpr const char* kNames[] = {"hand_over", "peer", "staged"};
    return kNames[static_cast<int>(way)];
}

std::string Report::to_json() const {
    std::string out = "{\"way\":" + quoted(to_string(way)) + ",";
    if (!staged_because.empty()) {
        out += "\"staged_because\":" + quoted(staged_because) + ",";
    }
    out += field("pieces", pieces) + "," + field("bytes_handed_over", bytes_handed_over) + "," +
           field("bytes_copied", bytes_copied) + "," +
           field("bytes_copied_frozen", bytes_copied_frozen) + "," +
           field("bytes_left", bytes_left) + ",";
    if (!rounds.empty()) {
        out += "\"rounds\":[" +
               joined(rounds, [](const Round& round) { return replacement::to_json(round); }) +
               "],";
    }
    out += "\"pause_steps_us\":{" +
           joined(pause_steps, [](const auto& step) { return field(step.first, step.second); }) +
           "},";
    return out + field("drain_us", drain_us) + "," + field("pause_us", pause_us) + "," +
           field("total_us", total_us) + "," + field("begun_us", begun_us) + ",\"spans\":[" +
           joined(spans, [](const Span& span) { return replacement::to_json(span); }) + "]}";
}

Outcome replace(Endpoint& old_worker, Endpoint& fresh, const Options& options) {
    const auto job = options.way == Way::kHandOver ? make_hand_over(old_worker, fresh, options)
                                                   : make_copy(old_worker, fresh, options);
    return job->run();
}

}  // namespace gantry::replacement
