// The forms without a picture: text, and Chrome's trace.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "migration/cli/print.h"
#include "migration/cli/profile_forms.h"

namespace gantry::cli {
namespace {

using nlohmann::ordered_json;

double in_ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }

std::string times_text(const control::Operation& operation) {
    std::string out;
    for (const PartOfTime& part : kPartsOfTime) {
        out += fmt::format(" {:>10.3f}", in_ms((operation.*part.ns)()));
    }
    return out;
}

/// What the numbers leave out, if anything.
std::string notes_text(const control::Profile& profile) {
    std::string out;
    const auto add = [&](std::uint64_t count, const char* what) {
        if (count != 0) {
            out += fmt::format("  {} {}\n", count, what);
        }
    };
    add(profile.operations_lost(), "ranges had no room: their time is that of what encloses them");
    add(profile.unmatched(), "ends of ranges that none was open for");
    add(profile.refused(), "records refused: the program told what cannot be");
    add(profile.ranges_lost(), "ranges are not in the timeline: only the newest are kept");
    if (!profile.knows_overlap()) {
        out += "  CPU time beside GPU work is not known: worker.account is off\n";
    }
    return out;
}

}  // namespace

std::vector<OperationNode> operation_nodes(const control::Profile& profile) {
    std::vector<OperationNode> nodes;
    std::map<std::uint32_t, std::size_t> numbers;
    for (const control::Operation& operation : profile.operations()) {
        OperationNode node;
        node.self = &operation;
        node.whole_ns = operation.wall_ns();
        if (const auto parent = numbers.find(operation.parent()); parent != numbers.end()) {
            node.depth = nodes[parent->second].depth + 1;
            nodes[parent->second].inner.push_back(nodes.size());
        }
        numbers.emplace(operation.id(), nodes.size());
        nodes.push_back(std::move(node));
    }
    for (std::size_t number = nodes.size(); number-- != 0;) {
        for (const std::size_t inner : nodes[number].inner) {
            nodes[number].whole_ns += nodes[inner].whole_ns;
        }
    }
    return nodes;
}

std::vector<std::size_t> in_depth(const std::vector<OperationNode>& nodes) {
    std::vector<std::size_t> out;
    std::vector<std::size_t> open;
    for (std::size_t number = nodes.size(); number-- != 0;) {
        if (nodes[number].depth == 0) {
            open.push_back(number);
        }
    }
    while (!open.empty()) {
        const std::size_t number = open.back();
        open.pop_back();
        out.push_back(number);
        const auto& inner = nodes[number].inner;
        open.insert(open.end(), inner.rbegin(), inner.rend());
    }
    return out;
}

std::string profile_text(const control::ProfileReply& reply) {
    std::string out;
    for (const control::ProgramProfile& program : reply.programs()) {
        const control::Profile& profile = program.profile();
        out += fmt::format("{}Program {} {}: level {}\n", out.empty() ? "" : "\n",
                           program.guest_pid(), program.process_name(), profile.level());
        if (profile.operations().empty()) {
            out += profile.level() == 0 ? "  nothing is noted; see --level\n"
                                        : "  nothing was told yet\n";
            continue;
        }
        out += fmt::format("{:>6} {:>8} {:>10}", "thread", "count", "ms");
        for (const PartOfTime& part : kPartsOfTime) {
            out += fmt::format(" {:>10}", part.name);
        }
        out += "  operation, without those in it\n";
        std::uint64_t wall = 0;
        std::uint64_t own = 0;
        const auto nodes = operation_nodes(profile);
        for (const std::size_t number : in_depth(nodes)) {
            const control::Operation& one = *nodes[number].self;
            wall += one.wall_ns();
            own += one.own_ns();
            out += fmt::format("{:>6} {:>8} {:>10.3f}{}  {}{}{}\n", one.thread(), one.count(),
                               in_ms(one.wall_ns()), times_text(one),
                               std::string(2 * nodes[number].depth, ' '), one.name(),
                               one.pauses() == 0 ? "" : fmt::format(" [{} moves]", one.pauses()));
        }
        out += fmt::format(
            "  {:.3f} ms in all; {:.3f} ms of it was this profile ({:.0f} ns a "
            "stamp), {:.3f} ms without it\n",
            in_ms(wall), in_ms(own), profile.stamp_ns(), in_ms(wall - own));
        out += notes_text(profile);
    }
    return out.empty() ? "no program\n" : out;
}

std::string profile_chrome(const control::ProfileReply& reply) {
    ordered_json events = ordered_json::array();
    for (const control::ProgramProfile& program : reply.programs()) {
        std::map<std::uint32_t, const control::Operation*> operations;
        for (const control::Operation& one : program.profile().operations()) {
            operations[one.id()] = &one;
        }
        events.push_back({{"ph", "M"},
                          {"name", "process_name"},
                          {"pid", program.guest_pid()},
                          {"args", {{"name", program.process_name()}}}});
        for (const control::OperationRange& range : program.profile().ranges()) {
            const auto found = operations.find(range.operation());
            if (found == operations.end()) {
                continue;
            }
            events.push_back(
                {{"ph", "X"},
                 {"name",
                  range.is_pause() ? "move, in " + found->second->name() : found->second->name()},
                 {"pid", program.guest_pid()},
                 {"tid", found->second->thread()},
                 {"ts", static_cast<double>(range.begin_ns()) / 1e3},
                 {"dur", static_cast<double>(range.end_ns() - range.begin_ns()) / 1e3}});
        }
    }
    return json_text({{"displayTimeUnit", "ms"}, {"traceEvents", events}}, false);
}

}  // namespace gantry::cli
