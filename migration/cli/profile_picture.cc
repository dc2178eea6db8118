// The page: flames and timeline as pictures, and the table.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "migration/cli/page.h"
#include "migration/cli/profile_forms.h"

namespace gantry::cli {
namespace {

constexpr double kFlameWidth = 1000.0;
constexpr double kFlameMargin = 12.0;
constexpr double kFlameRow = 24.0;
constexpr double kNameFits = 46.0;
constexpr double kLetterWidth = 6.2;
constexpr std::size_t kDepthMax = 64;
const char* const kRangeColour = "#5d7fa8";
const char* const kPauseColour = kPartsOfTime.back().colour;

std::string duration_text(std::uint64_t ns) {
    const auto value = static_cast<double>(ns);
    return ns < 1'000'000       ? fmt::format("{:.1f} us", value / 1e3)
           : ns < 1'000'000'000 ? fmt::format("{:.2f} ms", value / 1e6)
                                : fmt::format("{:.3f} s", value / 1e9);
}

void draw_box(double x, double y, double width, const std::string& fill, const std::string& title,
              std::string* out) {
    *out += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" {}><title>{}</title>"
        "</rect>\n",
        x, y, width, kFlameRow - 2, fill, escaped(title));
}

void draw_name(double x, double y, double width, const std::string& name, const char* style,
               std::string* out) {
    if (width >= kNameFits) {
        const auto letters = static_cast<std::size_t>((width - 8) / kLetterWidth);
        *out += fmt::format("<text{} x=\"{:.1f}\" y=\"{:.0f}\">{}</text>\n", style, x + 4, y + 15,
                            escaped(name.substr(0, letters)));
    }
}

void draw_head(const std::string& text, double y, std::string* out) {
    *out += fmt::format("<text class=\"head\" x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n", kFlameMargin,
                        y + 16, escaped(text));
}

std::string coloured(const char* colour) { return fmt::format("fill=\"{}\"", colour); }

/// What an operation encloses stands on it, from the left; its own time is the rest, by parts.
class Flames {
public:
    explicit Flames(const control::Profile& profile) : nodes_(operation_nodes(profile)) {
        for (const OperationNode& node : nodes_) {
            all_ns_ += node.depth == 0 ? node.whole_ns : 0;
            deepest_ = std::max(deepest_, std::min(node.depth, kDepthMax));
        }
    }

    double draw(double y, std::string* out) const {
        draw_head("Where the time went", y, out);
        y += 28;
        double x = kFlameMargin;
        for (std::size_t number = 0; number < nodes_.size(); ++number) {
            if (nodes_[number].depth == 0) {
                draw_node(number, x, y, out);
                x += width(nodes_[number].whole_ns);
            }
        }
        return y + kFlameRow * static_cast<double>(deepest_ + 1) + 12;
    }

private:
    [[nodiscard]] double width(std::uint64_t ns) const {
        return all_ns_ == 0 ? 0.0
                            : (kFlameWidth - 2 * kFlameMargin) * static_cast<double>(ns) /
                                  static_cast<double>(all_ns_);
    }

    void draw_node(std::size_t number, double x, double top, std::string* out) const {
        const OperationNode& node = nodes_[number];
        const control::Operation& self = *node.self;
        if (node.depth > kDepthMax) {
            return;
        }
        const double y = top + kFlameRow * static_cast<double>(node.depth);
        draw_box(x, y, width(node.whole_ns), "class=\"frame\"",
                 fmt::format("{}: {}, {} of it its own, {} times, thread {}", self.name(),
                             duration_text(node.whole_ns), duration_text(self.wall_ns()),
                             self.count(), self.thread()),
                 out);
        double at = x + width(node.whole_ns - self.wall_ns());
        for (const PartOfTime& part : kPartsOfTime) {
            const std::uint64_t ns = (self.*part.ns)();
            if (ns != 0) {
                draw_box(at, y, width(ns), coloured(part.colour),
                         fmt::format("{}, {}: {}", self.name(), part.name, duration_text(ns)), out);
            }
            at += width(ns);
        }
        draw_name(x, y, width(node.whole_ns), self.name(), "", out);
        for (const std::size_t inner : node.inner) {
            draw_node(inner, x, top, out);
            x += width(nodes_[inner].whole_ns);
        }
    }

    std::vector<OperationNode> nodes_;
    std::uint64_t all_ns_ = 0;
    std::size_t deepest_ = 0;
};

/// A lane for each depth of each thread.
double draw_ranges(const control::Profile& profile, double y, std::string* out) {
    std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t last = 0;
    for (const control::OperationRange& range : profile.ranges()) {
        first = std::min<std::uint64_t>(first, range.begin_ns());
        last = std::max<std::uint64_t>(last, range.end_ns());
    }
    if (first >= last) {
        return y;
    }
    const auto nodes = operation_nodes(profile);
    std::map<std::uint32_t, const OperationNode*> by_id;
    for (const OperationNode& node : nodes) {
        by_id[node.self->id()] = &node;
    }
    const auto lane_of = [](const OperationNode& node) {
        return std::pair{node.self->thread(), std::min(node.depth, kDepthMax)};
    };
    std::vector<std::pair<const control::OperationRange*, const OperationNode*>> drawn;
    std::map<std::pair<std::uint32_t, std::size_t>, double> lanes;
    for (const control::OperationRange& range : profile.ranges()) {
        const auto found = by_id.find(range.operation());
        if (found != by_id.end() && range.begin_ns() <= range.end_ns()) {
            drawn.emplace_back(&range, found->second);
            lanes[lane_of(*found->second)] = 0;
        }
    }
    // A move is told before the range that it is in, and is drawn on it.
    std::stable_partition(drawn.begin(), drawn.end(),
                          [](const auto& one) { return !one.first->is_pause(); });
    draw_head(
        fmt::format("The newest {} ranges: {}", profile.ranges_size(), duration_text(last - first)),
        y, out);
    y += 28;
    for (auto& [lane, at] : lanes) {
        at = y;
        y += kFlameRow;
    }
    const double scale = (kFlameWidth - 2 * kFlameMargin) / static_cast<double>(last - first);
    for (const auto& [range, node] : drawn) {
        const std::string& name = node->self->name();
        const std::uint64_t ns = range->end_ns() - range->begin_ns();
        const double x = kFlameMargin + scale * static_cast<double>(range->begin_ns() - first);
        const double width = std::max(1.0, scale * static_cast<double>(ns));
        const double at = lanes[lane_of(*node)];
        const std::string title = range->is_pause() ? "move, in " + name : name;
        draw_box(x, at, width, coloured(range->is_pause() ? kPauseColour : kRangeColour),
                 title + ": " + duration_text(ns), out);
        draw_name(x, at, width, title, " class=\"in\"", out);
    }
    return y + 8;
}

double draw_parts(double y, std::string* out) {
    double x = kFlameMargin;
    for (const PartOfTime& part : kPartsOfTime) {
        *out += fmt::format(
            "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{}\"/>"
            "<text x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n",
            x, y, part.colour, x + 17, y + 10, part.name);
        x += 110.0;
    }
    return y + 32;
}

std::string operations_table(const control::Profile& profile) {
    std::string out =
        "<table class=\"operations\">\n<tr><th>operation</th><th>thread</th>"
        "<th>count</th><th>own wall</th>";
    for (const PartOfTime& part : kPartsOfTime) {
        out += fmt::format("<th>{}</th>", part.name);
    }
    out += "<th>profiling</th></tr>\n";
    const auto nodes = operation_nodes(profile);
    for (const std::size_t number : in_depth(nodes)) {
        const control::Operation& self = *nodes[number].self;
        out += fmt::format(
            "<tr><td style=\"padding-left:{}px\">{}</td><td>{}</td><td>{}</td>"
            "<td>{}</td>",
            12 * std::min(nodes[number].depth, kDepthMax), escaped(self.name()), self.thread(),
            self.count(), duration_text(self.wall_ns()));
        for (const PartOfTime& part : kPartsOfTime) {
            out += fmt::format("<td>{}</td>", duration_text((self.*part.ns)()));
        }
        out += fmt::format("<td>{}</td></tr>\n", duration_text(self.own_ns()));
    }
    return out + "</table>\n";
}

std::string title_of(const control::ProfileReply& reply) {
    return fmt::format("Where the time of {} went",
                       reply.vm_name().empty() ? reply.session_id() : reply.vm_name());
}

std::string name_of(const control::ProgramProfile& program) {
    return fmt::format("Program {} {}", program.guest_pid(), program.process_name());
}

double draw_program(const control::Profile& profile, double y, std::string* out) {
    y = Flames(profile).draw(y, out);
    y = draw_parts(y, out);
    return draw_ranges(profile, y, out) + 8;
}

}  // namespace

std::string profile_svg(const control::ProfileReply& reply) {
    std::string drawn;
    double y = 8;
    for (const control::ProgramProfile& program : reply.programs()) {
        draw_head(name_of(program), y, &drawn);
        y = draw_program(program.profile(), y + 28, &drawn);
    }
    return picture(title_of(reply), kFlameWidth, y, drawn);
}

std::string profile_html(const control::ProfileReply& reply) {
    Facts facts{{"session", reply.session_id()}};
    if (!reply.vm_name().empty()) {
        facts.emplace_back("VM", reply.vm_name());
    }
    std::string body;
    for (const control::ProgramProfile& program : reply.programs()) {
        const control::Profile& profile = program.profile();
        const std::string name = name_of(program);
        std::string drawn;
        const double y = draw_program(profile, 8, &drawn);
        body += fmt::format("<h2>{}</h2>\n", escaped(name)) + picture(name, kFlameWidth, y, drawn) +
                operations_table(profile);
        facts.emplace_back(
            name, fmt::format("level {}, {:.0f} ns a stamp; not shown: {} ranges without room, {} "
                              "refused, {} ends without a range, {} older ranges",
                              profile.level(), profile.stamp_ns(), profile.operations_lost(),
                              profile.refused(), profile.unmatched(), profile.ranges_lost()));
    }
    return page(title_of(reply), facts, body);
}

}  // namespace gantry::cli
