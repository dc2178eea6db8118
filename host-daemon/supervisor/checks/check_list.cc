#include "host-daemon/supervisor/checks/check_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace gantry::supervisor {
namespace {

const char* word(Verdict verdict) {
    switch (verdict) {
        case Verdict::kOk: return "ok";
        case Verdict::kWarning: return "warning";
        case Verdict::kFailed: return "failed";
        case Verdict::kNotTried: return "not tried";
    }
    return "?";
}

}  // namespace

void CheckList::ok(const char* name, std::string text) {
    checks_.push_back({name, Verdict::kOk, std::move(text), "", "", ""});
}

void CheckList::not_tried(const char* name, std::string text) {
    checks_.push_back({name, Verdict::kNotTried, std::move(text), "", "", ""});
}

void CheckList::warn(const char* name, std::string where, Error found, std::string remedy) {
    checks_.push_back({name, Verdict::kWarning, std::move(found.text), std::move(where),
                       std::move(found.reason), std::move(remedy)});
}

void CheckList::fail(const char* name, std::string where, Error found, std::string remedy) {
    checks_.push_back({name, Verdict::kFailed, std::move(found.text), std::move(where),
                       std::move(found.reason), std::move(remedy)});
}

bool CheckList::is_fit() const {
    return std::ranges::none_of(checks_,
                                [](const Check& one) { return one.verdict == Verdict::kFailed; });
}

std::string CheckList::text() const {
    std::string out;
    for (const Check& one : checks_) {
        out += fmt::format("{:<9} {:<20} {}", word(one.verdict), one.name, one.text);
        out += one.reason.empty() ? "" : " [" + one.reason + "]";
        out += "\n";
        if (!one.remedy.empty()) {
            out += fmt::format("{:<30} -> {}\n", "", one.remedy);
        }
    }
    return out + (is_fit() ? "This host is fit.\n" : "This host is not fit.\n");
}

std::string CheckList::json() const {
    nlohmann::ordered_json json{{"fit", is_fit()}};
    for (const Check& one : checks_) {
        json["checks"].push_back({{"name", one.name},
                                  {"verdict", word(one.verdict)},
                                  {"reason", one.reason},
                                  {"where", one.where},
                                  {"text", one.text},
                                  {"remedy", one.remedy}});
    }
    return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<void> CheckList::result() const {
    std::string failed;
    for (const Check& one : checks_) {
        if (one.verdict == Verdict::kFailed) {
            failed += (failed.empty() ? "" : "\n") + one.text + " [" + one.reason + "]";
        }
    }
    return failed.empty() ? Result<void>{} : Error{Code::kNotFound, "config.file", failed};
}

}  // namespace gantry::supervisor
