// The SVG picture, and the page around it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "migration/cli/page.h"
#include "migration/cli/print.h"
#include "migration/cli/timeline_forms.h"

namespace gantry::cli {
namespace {

constexpr double kWidth = 1000.0;
constexpr double kLeft = 150.0;  ///< The lanes' names stand left of it.
constexpr double kRight = 20.0;
constexpr double kLaneHeight = 24.0;
constexpr double kGap = 14.0;
constexpr double kCurveHeight = 90.0;
constexpr int kGridLinesMax = 20;
constexpr double kTextFits = 46.0;  ///< A span at least so wide has its title in it.

/// The same in light and in dark; told apart by people who see no red and green, too.
constexpr std::array<const char*, kSpanKinds> kColours = {
    "#8a93a6", "#3b82c4", "#b0508c", "#e0a458", "#d1603d", "#7a5cc0", "#2f9e8f", "#4f9a3c"};
constexpr std::array<const char*, kSpanKinds> kKindNames = {
    "libvirt's job", "GPU round", "guest paused", "GPU drains",
    "GPU frozen",    "grant",     "final state",  "taken into service"};

std::string time_label(double seconds, double step) {
    return step < 0.2 ? fmt::format("{:g} ms", std::round(seconds * 1e6) / 1e3)
                      : fmt::format("{:g} s", std::round(seconds * 1e3) / 1e3);
}

/// One stretch of time, drawn from left to right.
class Panel {
public:
    Panel(const Timeline& timeline, double from, double to, double top)
        : timeline_(timeline), from_(from), to_(to), y_(top) {}

    /// Returns what comes below.
    double draw(const std::string& head, std::string* out) {
        *out += fmt::format("<text class=\"head\" x=\"12\" y=\"{:.0f}\">{}</text>\n", y_ + 16,
                            escaped(head));
        y_ += 30;
        const double top = y_;
        std::string body;
        for (const HostLanes& host : timeline_.hosts) {
            draw_host(host, &body);
        }
        draw_curves({timeline_.bytes_left}, "bytes left", "", &body);
        draw_curves(timeline_.rates, "rates", "/s", &body);
        draw_axis(top, out);
        *out += body;
        return y_ + 24;
    }

private:
    [[nodiscard]] double x(double at) const {
        const double part = std::clamp((at - from_) / (to_ - from_), 0.0, 1.0);
        return kLeft + part * (kWidth - kLeft - kRight);
    }
    [[nodiscard]] bool is_in(double from, double to) const { return to >= from_ && from <= to_; }

    void draw_axis(double top, std::string* out) const {
        double step = std::pow(10.0, std::floor(std::log10((to_ - from_) / 4.0)));
        while ((to_ - from_) / step > 10.0) {
            step *= (to_ - from_) / step > 20.0 ? 5.0 : 2.0;
        }
        const double first = std::ceil(from_ / step);
        for (int i = 0; i <= kGridLinesMax; ++i) {
            const double at = (first + i) * step;
            if (at > to_ + step * 1e-6) {
                break;
            }
            *out += fmt::format(
                "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" "
                "y2=\"{2:.0f}\"/><text class=\"soft\" text-anchor=\"middle\" x=\"{0:.1f}\" "
                "y=\"{3:.0f}\">{4}</text>\n",
                x(at), top - 4, y_, y_ + 14, time_label(at, step));
        }
    }

    void draw_host(const HostLanes& host, std::string* out) {
        *out += fmt::format("<text class=\"soft\" x=\"12\" y=\"{:.0f}\">{} ({})</text>\n", y_ + 12,
                            escaped(host.host), host.is_source ? "source" : "target");
        y_ += 18;
        for (const Lane& lane : host.lanes) {
            *out += fmt::format("<g class=\"lane\"><text x=\"20\" y=\"{:.0f}\">{}</text>\n",
                                y_ + 15, escaped(lane.name));
            for (const Span& span : lane.spans) {
                draw_span(span, out);
            }
            for (const Mark& mark : lane.marks) {
                if (is_in(mark.at, mark.at)) {
                    *out += fmt::format(
                        "<line class=\"mark\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" "
                        "y2=\"{2:.0f}\"><title>{3}</title></line>\n",
                        x(mark.at), y_ + 1, y_ + kLaneHeight - 5, escaped(mark.title));
                }
            }
            *out += "</g>\n";
            y_ += kLaneHeight;
        }
        y_ += kGap;
    }

    void draw_span(const Span& span, std::string* out) const {
        if (!is_in(span.from, span.to)) {
            return;
        }
        const double left = x(span.from);
        const double width = std::max(1.0, x(span.to) - left);
        *out += fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\" rx=\"2\" "
            "fill=\"{}\"><title>{}</title></rect>\n",
            left, y_ + 2, width, kLaneHeight - 7, kColours[static_cast<std::size_t>(span.kind)],
            escaped(span.title));
        if (width >= kTextFits) {
            const auto letters = static_cast<std::size_t>((width - 8) / 6.2);
            *out += fmt::format("<text class=\"in\" x=\"{:.1f}\" y=\"{:.0f}\">{}</text>\n",
                                left + 4, y_ + 14, escaped(span.title.substr(0, letters)));
        }
    }

    void draw_curves(const std::vector<Curve>& curves, const std::string& name,
                     const std::string& per, std::string* out) {
        double most = 0.0;
        for (const Curve& curve : curves) {
            for (const auto& [at, value] : curve.points) {
                most = std::max(most, value);
            }
        }
        if (most <= 0.0) {
            return;
        }
        static constexpr std::array<const char*, 2> kCurveColours = {"#3b82c4", "#d1603d"};
        *out += fmt::format(
            "<g class=\"lane\"><text x=\"20\" y=\"{:.0f}\">{}</text><text class=\"soft\" x=\"20\" "
            "y=\"{:.0f}\">up to {}{}</text>\n",
            y_ + 15, name, y_ + 31, bytes_text(static_cast<std::uint64_t>(most)), per);
        for (std::size_t i = 0; i < curves.size(); ++i) {
            std::string points;
            for (const auto& [at, value] : curves[i].points) {
                if (is_in(at, at)) {
                    points += fmt::format("{:.1f},{:.1f} ", x(at),
                                          y_ + kCurveHeight - value / most * (kCurveHeight - 6));
                }
            }
            *out += fmt::format(
                "<polyline class=\"curve\" stroke=\"{0}\" points=\"{1}\"><title>{2}</title>"
                "</polyline>\n",
                kCurveColours[i % 2], points, escaped(curves[i].name));
            if (curves.size() > 1) {
                *out += fmt::format("<text x=\"20\" y=\"{:.0f}\" style=\"fill:{}\">{}</text>\n",
                                    y_ + 47 + 16 * static_cast<double>(i), kCurveColours[i % 2],
                                    escaped(curves[i].name));
            }
        }
        *out += "</g>\n";
        y_ += kCurveHeight + kGap;
    }

    const Timeline& timeline_;
    const double from_;
    const double to_;
    double y_;
};

void draw_legend(double y, std::string* out) {
    double x = 20.0;
    for (std::size_t i = 0; i < kSpanKinds; ++i) {
        *out += fmt::format(
            "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{}\"/>"
            "<text x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n",
            x, y, kColours[i], x + 17, y + 10, escaped(kKindNames[i]));
        x += 120.0;
    }
}

}  // namespace

std::string timeline_svg(const Timeline& timeline) {
    std::string body;
    double y = Panel(timeline, 0.0, timeline.end, 8.0).draw(timeline.title, &body);
    if (timeline.pause_from < timeline.pause_to) {
        y = Panel(timeline, timeline.pause_from, timeline.pause_to, y).draw("The pause", &body);
    }
    draw_legend(y, &body);
    y += 26;
    return picture(timeline.title, kWidth, y, body);
}

std::string timeline_html(const Timeline& timeline) {
    std::string events;
    for (const ListedEvent& event : timeline.events) {
        events += fmt::format("<tr><td>{:.4f} s</td><td>{}</td><td>{}</td></tr>\n", event.at,
                              escaped(event.host), escaped(event.text));
    }
    return page(timeline.title, timeline.facts,
                timeline_svg(timeline) +
                    "<details>\n<summary>Every stamp</summary>\n<table class=\"events\">\n" +
                    events + "</table>\n</details>\n");
}

}  // namespace gantry::cli
