// The SVG picture, and the page around it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

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

constexpr char kStyle[] =
    ".timeline{--back:#ffffff;--ink:#1d2430;--faint:#d7dce5;--soft:#5b6575;"
    "font-family:system-ui,sans-serif;font-size:12px}"
    "@media (prefers-color-scheme:dark){.timeline{--back:#14181f;--ink:#e6e9ef;--faint:#343c4a;"
    "--soft:#9aa5b5}}"
    ".timeline .back{fill:var(--back)}.timeline text{fill:var(--ink)}"
    ".timeline .soft{fill:var(--soft)}.timeline .head{font-size:15px;font-weight:600}"
    ".timeline .grid{stroke:var(--faint)}.timeline .mark{stroke:var(--ink);stroke-width:2}"
    ".timeline .in{fill:#ffffff;font-size:11px}.timeline .curve{fill:none;stroke-width:2}";

/// For text and for attributes; what XML does not allow is left out.
std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&': out += "&amp;"; break;
            case '<': out += "&lt;"; break;
            case '>': out += "&gt;"; break;
            case '"': out += "&quot;"; break;
            default:
                if (static_cast<unsigned char>(c) >= 0x20 || c == '\t' || c == '\n') {
                    out += c;
                }
        }
    }
    return out;
}

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
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"timeline\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n"
        "<style>{3}</style>\n<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n{4}</svg>\n",
        kWidth, y, escaped(timeline.title), kStyle, body);
}

std::string timeline_html(const Timeline& timeline) {
    std::string facts;
    for (const auto& [name, value] : timeline.facts) {
        facts += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escaped(name), escaped(value));
    }
    std::string events;
    for (const ListedEvent& event : timeline.events) {
        events += fmt::format("<tr><td>{:.4f} s</td><td>{}</td><td>{}</td></tr>\n", event.at,
                              escaped(event.host), escaped(event.text));
    }
    return fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" "
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        "<title>{0}</title>\n<style>\n"
        ":root{{color-scheme:light dark}}\n"
        "body{{font:14px system-ui,sans-serif;margin:24px auto;max-width:1040px;padding:0 12px;"
        "background:#ffffff;color:#1d2430}}\n"
        "@media (prefers-color-scheme:dark){{body{{background:#14181f;color:#e6e9ef}}}}\n"
        "svg{{max-width:100%;height:auto}}\n"
        "th{{text-align:left;font-weight:600;padding:2px 18px 2px 0;vertical-align:top}}\n"
        "td{{padding:2px 18px 2px 0;font-variant-numeric:tabular-nums}}\n"
        "</style>\n</head>\n<body>\n<h1>{0}</h1>\n<table class=\"facts\">\n{1}</table>\n{2}"
        "<details>\n<summary>Every stamp</summary>\n<table class=\"events\">\n{3}</table>\n"
        "</details>\n</body>\n</html>\n",
        escaped(timeline.title), facts, timeline_svg(timeline), events);
}

}  // namespace gantry::cli
