// What `gantry validate` and `gantryd --validate` look at: whether this host can serve and move
// sessions as its configuration says. Starts a worker for a moment, to learn what the driver says;
// changes nothing. Takes some seconds.
#pragma once

#include <string>
#include <vector>

#include "host-daemon/supervisor/config/config.h"

namespace gantry::supervisor {

enum class Verdict { kOk, kWarning, kFailed, kNotTried };

struct Check {
    std::string name;
    Verdict verdict = Verdict::kOk;
    std::string reason;  ///< Of a warning or failure: a stable id.
    std::string text;    ///< What was found.
    std::string remedy;  ///< Of a warning or failure: what to do.
};

/// `root`: where /etc, /proc and /sys of the host are looked for; empty: there.
std::vector<Check> check_whole_host(const Config& config, const std::string& root);
/// The same list where the configuration cannot be read: its error, and nothing else was tried.
std::vector<Check> unreadable_config(const Error& error);

[[nodiscard]] bool is_fit(const std::vector<Check>& checks);
[[nodiscard]] std::string checks_text(const std::vector<Check>& checks);
[[nodiscard]] std::string checks_json(const std::vector<Check>& checks);

}  // namespace gantry::supervisor
