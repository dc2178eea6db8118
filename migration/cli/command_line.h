// The gantry command's arguments: from main()'s to one call of commands.h.
#pragma once

namespace gantry::cli {

/// Runs what the arguments say; returns the exit status (client.h). Wrong usage is said like any
/// other error, as JSON if --json stands anywhere among the arguments.
int run_command_line(int argc, const char* const* argv);

}  // namespace gantry::cli
