// What was wrong with the arguments of a program with CLI11, in one style for all: the word that
// is not known, what it may have meant, and where help is. For `gantry` and gantryd.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "proto/base/did_you_mean.h"
#include "proto/base/result.h"

namespace gantry::cli {

namespace usage_detail {

inline std::vector<std::string> options_of(const CLI::App* command) {
    std::vector<std::string> names;
    for (; command != nullptr; command = command->get_parent()) {
        for (const CLI::Option* option : command->get_options()) {
            for (const std::string& name : option->get_lnames()) {
                names.push_back("--" + name);
            }
        }
    }
    return names;
}

inline std::vector<std::string> commands_of(const CLI::App& command) {
    std::vector<std::string> names;
    for (const CLI::App* one : command.get_subcommands([](const CLI::App*) { return true; })) {
        names.push_back(one->get_name());
    }
    return names;
}

}  // namespace usage_detail

/// `program`: its name. The help named is that of the command given, if any.
inline Error usage_error(const char* program, const CLI::App& app, const CLI::ParseError& error) {
    std::string help = program;
    const CLI::App* command = &app;
    while (!command->get_subcommands().empty()) {
        command = command->get_subcommands().front();
        help += " " + command->get_name();
    }
    // CLI11 would say that a command is missing, and not which one it does not know.
    const std::vector<std::string> unknown = app.remaining(true);
    std::string text = error.what();
    if (!unknown.empty() && unknown.front().starts_with("-")) {
        const std::string word = unknown.front().substr(0, unknown.front().find('='));
        text = "there is no option '" + word + "'" +
               did_you_mean(word, usage_detail::options_of(command));
    } else if (!unknown.empty() && command->get_require_subcommand_min() != 0) {
        text = "there is no command '" + unknown.front() + "'" +
               did_you_mean(unknown.front(), usage_detail::commands_of(*command));
    } else if (!unknown.empty()) {
        text = "'" + unknown.front() + "' is one argument too many";
    }
    return {Code::kInvalidArgument, "command.usage", text + "; see `" + help + " --help`"};
}

}  // namespace gantry::cli
