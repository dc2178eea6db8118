// How a process ended, in words for an operator's log. Pure.
#pragma once

#include <signal.h>

#include <string>

namespace gantry::control {

/// Of a worker that waitid() told of: "exit status 3", "signal 11 (Segmentation fault): ..." with
/// where to look for the cause.
std::string describe_end(const siginfo_t& info);

/// What a worker wrote to its log last: the last line of the file, without what is not printable
/// and at most 300 bytes of it; empty when there is none.
std::string last_line_of(const std::string& path);

}  // namespace gantry::control
