// gantry: the operator's command. Every command asks the gantryd of this host; words and forms are
// virsh's where it has any.
#include "migration/cli/command_line.h"

int main(int argc, char** argv) { return gantry::cli::run_command_line(argc, argv); }
