// What a command prints. A full disk or a reader that has gone must not pass for a report: whoever
// reads an empty file with exit status 0 takes it for the answer.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "proto/base/result.h"

namespace gantry {

/// Writes the text on standard output, now.
inline Result<void> write_standard_output(const std::string& text) {
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
        return Error{Code::kUnavailable, "command.output",
                     "cannot write standard output: " + std::string(std::strerror(errno)) +
                         "; only the report is lost: see to where it is written"};
    }
    return {};
}

}  // namespace gantry
