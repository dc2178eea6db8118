// What was looked at on a host, what was found, and how that is printed. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "proto/base/result.h"

namespace gantry::supervisor {

enum class Verdict { kOk, kWarning, kFailed, kNotTried };

struct Check {
    std::string name;
    Verdict verdict = Verdict::kOk;
    std::string text;    ///< What was found.
    std::string where;   ///< Of a warning or failure: the key, file or VM that it is about.
    std::string reason;  ///< Of a warning or failure: a stable id.
    std::string remedy;  ///< Of a warning or failure: what to do.
};

class CheckList {
public:
    void ok(const char* name, std::string text);
    void not_tried(const char* name, std::string text);
    void warn(const char* name, std::string where, Error found, std::string remedy);
    void fail(const char* name, std::string where, Error found, std::string remedy);

    [[nodiscard]] const std::vector<Check>& all() const { return checks_; }
    /// None has failed.
    [[nodiscard]] bool is_fit() const;
    /// One or two lines for each, and whether the host is fit.
    [[nodiscard]] std::string text() const;
    [[nodiscard]] std::string json() const;
    /// `config.file` with what has failed, one a line, each with its reason.
    [[nodiscard]] Result<void> result() const;

private:
    std::vector<Check> checks_;
};

}  // namespace gantry::supervisor
