#include "migration/cli/page.h"

#include <fmt/format.h>

namespace gantry::cli {
namespace {

constexpr char kPictureStyle[] =
    ".timeline{--back:#ffffff;--ink:#1d2430;--faint:#d7dce5;--soft:#5b6575;"
    "font-family:system-ui,sans-serif;font-size:12px}"
    "@media (prefers-color-scheme:dark){.timeline{--back:#14181f;--ink:#e6e9ef;--faint:#343c4a;"
    "--soft:#9aa5b5}}"
    ".timeline .back{fill:var(--back)}.timeline text{fill:var(--ink)}"
    ".timeline .soft{fill:var(--soft)}.timeline .head{font-size:15px;font-weight:600}"
    ".timeline .grid{stroke:var(--faint)}.timeline .mark{stroke:var(--ink);stroke-width:2}"
    ".timeline .frame{fill:var(--faint);stroke:var(--back)}"
    ".timeline .in{fill:#ffffff;font-size:11px}.timeline .curve{fill:none;stroke-width:2}";

}  // namespace

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

std::string page(const std::string& title, const Facts& facts, const std::string& body) {
    std::string rows;
    for (const auto& [name, value] : facts) {
        rows += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escaped(name), escaped(value));
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
        ".operations td,.operations th{{padding-right:12px;text-align:right;white-space:nowrap}}\n"
        ".operations td:first-child,.operations th:first-child{{text-align:left;"
        "white-space:normal;overflow-wrap:anywhere}}\n"
        "</style>\n</head>\n<body>\n<h1>{0}</h1>\n<table class=\"facts\">\n{1}</table>\n{2}"
        "</body>\n</html>\n",
        escaped(title), rows, body);
}

std::string picture(const std::string& title, double width, double height,
                    const std::string& drawn) {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"timeline\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n"
        "<style>{3}</style>\n<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n{4}</svg>\n",
        width, height, escaped(title), kPictureStyle, drawn);
}

}  // namespace gantry::cli
