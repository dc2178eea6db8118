// Arguments of the gantry command: what is wrong with them is said in either form, and every
// command has --json, before and behind its name.
#include "migration/cli/command_line.h"

#include "migration/cli/client.h"
#include "tests/unit/cli/ran.h"

namespace gantry::cli {
namespace {

Ran gantry(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "gantry");
    return capture(
        [&] { return run_command_line(static_cast<int>(arguments.size()), arguments.data()); });
}

const std::vector<std::vector<const char*>> kWrong = {
    {},
    {"nonsense"},
    {"preflight"},
    {"watch", "g1", "g2"},
    {"status", "--nonsense"},
    {"snapshot", "g1"},
    {"pull", "s"},
    {"hook"},
    {"hook", "migrate-begin"},
    {"--socket"},
};

TEST(CliCommandLine, WrongUsageIsSaidAsText) {
    for (const auto& arguments : kWrong) {
        const Ran ran = gantry(arguments);
        EXPECT_EQ(ran.status, kUsage);
        EXPECT_EQ(ran.out, "");
        EXPECT_EQ(ran.err.rfind("gantry: ", 0), 0U) << ran.err;
        EXPECT_NE(ran.err.find("--help`"), std::string::npos) << ran.err;
        EXPECT_NE(ran.err.find("[command.usage]\n"), std::string::npos) << ran.err;
    }
    EXPECT_EQ(gantry({"nonsense"}).err,
              "gantry: there is no command 'nonsense'; see `gantry --help` [command.usage]\n");
    EXPECT_EQ(gantry({"hook", "nonsense"}).err,
              "gantry: there is no command 'nonsense'; see `gantry hook --help` [command.usage]\n");
    EXPECT_NE(gantry({"preflight"}).err.find("session is required; see `gantry preflight --help`"),
              std::string::npos);
}

TEST(CliCommandLine, WrongUsageIsSaidAsJsonWhereverTheFlagStands) {
    for (const auto& arguments : kWrong) {
        for (const bool is_first : {true, false}) {
            auto with_flag = arguments;
            with_flag.insert(is_first ? with_flag.begin() : with_flag.end(), "--json");
            const Ran ran = gantry(with_flag);
            EXPECT_EQ(ran.status, kUsage);
            EXPECT_EQ(ran.out, "");
            const auto errors = Ran::lines(ran.err);
            ASSERT_EQ(errors.size(), 1U) << ran.err;
            EXPECT_EQ(errors[0]["error"]["reason"], "command.usage");
            EXPECT_NE(errors[0]["error"]["text"], "");
        }
    }
}

TEST(CliCommandLine, EveryCommandFailsInTheFormAskedFor) {
    const std::string socket = testing::TempDir() + "no_gantryd.sock";
    const std::vector<std::vector<const char*>> commands = {{"status"},
                                                            {"preflight", "g1"},
                                                            {"watch", "g1"},
                                                            {"abort", "g1"},
                                                            {"inspect", "g1"},
                                                            {"snapshot", "g1", "x"},
                                                            {"restore", "g1", "x"},
                                                            {"replace-worker", "g1"},
                                                            {"reassign", "g1", "--device", "1"},
                                                            {"pull", "g1", "--from", "a:1"},
                                                            {"fenced", "g1"},
                                                            {"discard", "g1"}};
    for (auto arguments : commands) {
        SCOPED_TRACE(arguments[0]);
        arguments.insert(arguments.begin(), {"--socket", socket.c_str()});
        const Ran text = gantry(arguments);
        EXPECT_EQ(text.status, kUnreachable);
        EXPECT_EQ(text.err.rfind("gantry: no gantryd answers", 0), 0U) << text.err;
        arguments.push_back("--json");
        const Ran json = gantry(arguments);
        EXPECT_EQ(json.status, kUnreachable);
        EXPECT_EQ(json.out, "");
        const auto errors = Ran::lines(json.err);
        ASSERT_EQ(errors.size(), 1U) << json.err;
        EXPECT_EQ(errors[0]["error"]["reason"], "daemon.unreachable");
    }
}

TEST(CliCommandLine, HelpAndVersionAreNoErrors) {
    const Ran help = gantry({"--help"});
    EXPECT_EQ(help.status, kDone);
    EXPECT_NE(help.out.find("errors too, on standard error"), std::string::npos);
    EXPECT_EQ(help.err, "");
    const Ran version = gantry({"--version"});
    EXPECT_EQ(version.status, kDone);
    EXPECT_EQ(version.out.rfind("gantry ", 0), 0U);
    const Ran json = gantry({"--json", "--version"});
    EXPECT_EQ(json.status, kDone);
    ASSERT_EQ(json.json().size(), 1U);
    EXPECT_EQ("gantry " + json.json()[0]["version"].get<std::string>() + "\n", version.out);
}

TEST(CliCommandLine, HelpAndVersionThatCannotBePrintedAreErrors) {
    for (const std::vector<const char*>& arguments : std::vector<std::vector<const char*>>{
             {"gantry", "--help"}, {"gantry", "--version"}, {"gantry", "--json", "--version"}}) {
        const Ran ran = run_unheard(
            [&] { return run_command_line(static_cast<int>(arguments.size()), arguments.data()); });
        EXPECT_EQ(ran.status, kRefused);
        EXPECT_NE(ran.err.find("command.output"), std::string::npos) << ran.err;
    }
}

}  // namespace
}  // namespace gantry::cli
