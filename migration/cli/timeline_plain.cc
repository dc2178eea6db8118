// The forms without a picture: Chrome's trace, and text.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "migration/cli/print.h"
#include "migration/cli/timeline_forms.h"

namespace gantry::cli {
namespace {

using nlohmann::ordered_json;

double in_us(double seconds) { return seconds * 1e6; }

ordered_json name_of(const char* what, int pid, int tid, const std::string& name) {
    return {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
}

void add_counter(const Curve& curve, int pid, ordered_json* events) {
    for (const auto& [at, value] : curve.points) {
        events->push_back({{"ph", "C"},
                           {"name", curve.name},
                           {"pid", pid},
                           {"ts", in_us(at)},
                           {"args", {{"bytes", value}}}});
    }
}

}  // namespace

std::string timeline_chrome(const Timeline& timeline) {
    ordered_json events = ordered_json::array();
    int pid = 0;
    for (const HostLanes& host : timeline.hosts) {
        ++pid;
        events.push_back(name_of("process_name", pid, 0,
                                 host.host + (host.is_source ? " (source)" : " (target)")));
        int tid = 0;
        for (const Lane& lane : host.lanes) {
            events.push_back(name_of("thread_name", pid, ++tid, lane.name));
            for (const Span& span : lane.spans) {
                events.push_back({{"ph", "X"},
                                  {"name", span.title},
                                  {"pid", pid},
                                  {"tid", tid},
                                  {"ts", in_us(span.from)},
                                  {"dur", in_us(span.to - span.from)}});
            }
            for (const Mark& mark : lane.marks) {
                events.push_back({{"ph", "i"},
                                  {"s", "t"},
                                  {"name", mark.title},
                                  {"pid", pid},
                                  {"tid", tid},
                                  {"ts", in_us(mark.at)}});
            }
        }
    }
    add_counter(timeline.bytes_left, 1, &events);
    for (const Curve& rate : timeline.rates) {
        add_counter(rate, 1, &events);
    }
    ordered_json facts = ordered_json::object();
    for (const auto& [name, value] : timeline.facts) {
        facts[name] = value;
    }
    return json_text({{"displayTimeUnit", "ms"}, {"otherData", facts}, {"traceEvents", events}},
                     false);
}

std::string timeline_text(const Timeline& timeline) {
    std::string out = timeline.title + "\n";
    for (const auto& [name, value] : timeline.facts) {
        out += fmt::format("  {:<30} {}\n", name, value);
    }
    for (const HostLanes& host : timeline.hosts) {
        out += fmt::format("\n{} ({})\n", host.host, host.is_source ? "source" : "target");
        for (const Lane& lane : host.lanes) {
            for (const Span& span : lane.spans) {
                out += fmt::format("  {:<19} {:>10.4f} s to {:>10.4f} s  {}\n", lane.name,
                                   span.from, span.to, span.title);
            }
            for (const Mark& mark : lane.marks) {
                out += fmt::format("  {:<19} {:>10.4f} s{:17}{}\n", lane.name, mark.at, "",
                                   mark.title);
            }
        }
    }
    return out;
}

}  // namespace gantry::cli
