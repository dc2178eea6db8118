// Arguments of the gantry command: what is wrong with them is said in either form, and every
// command has --json, before and behind its name.
#include "migration/cli/command_line.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>

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
    {"profile"},
    {"profile", "g1", "--level"},
    {"profile", "g1", "--level", "3"},
    {"profile", "g1", "--level", "-1"},
    {"profile", "g1", "--level", "all"},
    {"profile", "g1", "--pdf", "x"},
    {"snapshot", "g1"},
    {"pull", "s"},
    {"hook"},
    {"hook", "migrate-begin"},
    {"pki"},
    {"pki", "issue"},
    {"pki", "init", "--days", "0"},
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

TEST(CliCommandLine, AMisspeltWordIsNamedForWhatItIsWithWhatItMayHaveMeant) {
    const std::vector<std::pair<std::vector<const char*>, std::string>> cases = {
        {{"--bogus"}, "there is no option '--bogus'; see `gantry --help`"},
        {{"-V"}, "there is no option '-V'; see `gantry --help`"},
        {{"--jsno", "status"},
         "there is no option '--jsno'; did you mean '--json'?; see `gantry status --help`"},
        {{"stauts"}, "there is no command 'stauts'; did you mean 'status'?; see `gantry --help`"},
        {{"snap"}, "there is no command 'snap'; did you mean 'snapshot'?; see `gantry --help`"},
        {{"hook", "relased"},
         "there is no command 'relased'; did you mean 'released'?; see `gantry hook --help`"},
        {{"snapshot", "g1", "f", "--suspnd"},
         "there is no option '--suspnd'; did you mean '--suspend'?; see `gantry snapshot --help`"},
        {{"snapshot", "g1", "f", "--sokcet=x"},
         "there is no option '--sokcet'; did you mean '--socket'?; see `gantry snapshot --help`"},
        {{"abort", "g1", "g2"}, "'g2' is one argument too many; see `gantry abort --help`"},
        {{"help", "wacth"},
         "there is no command 'wacth'; did you mean 'watch'?; see `gantry --help`"},
    };
    for (const auto& [arguments, says] : cases) {
        const Ran ran = gantry(arguments);
        EXPECT_EQ(ran.status, kUsage);
        EXPECT_EQ(ran.err, "gantry: " + says + " [command.usage]\n");
    }
}

TEST(CliCommandLine, HelpIsACommandToo) {
    EXPECT_EQ(gantry({"help"}).out, gantry({"--help"}).out);
    EXPECT_EQ(gantry({"help", "status"}).out, gantry({"status", "--help"}).out);
    EXPECT_EQ(gantry({"help", "status"}).status, kDone);
    EXPECT_NE(gantry({"status", "--help"}).out.find("--json, --socket"), std::string::npos);
}

/// What another user gets: the socket's folder is closed to whoever asks.
TEST(CliCommandLine, ASocketThatMayNotBeOpenedIsNoGantrydThatHasEnded) {
    const std::string folder = testing::TempDir() + "closed" + std::to_string(::getpid());
    std::filesystem::create_directory(folder);
    std::filesystem::permissions(folder, std::filesystem::perms::none);
    const bool is_root = ::geteuid() == 0;
    ASSERT_EQ(is_root ? ::seteuid(65534) : 0, 0);
    const Ran ran = gantry({"--socket", (folder + "/operator.sock").c_str(), "status"});
    ASSERT_EQ(is_root ? ::seteuid(0) : 0, 0);
    std::filesystem::remove(folder);
    EXPECT_EQ(ran.status, kUnreachable);
    EXPECT_NE(ran.err.find("you may not open it"), std::string::npos) << ran.err;
    EXPECT_NE(ran.err.find("operator.group"), std::string::npos) << ran.err;
    EXPECT_NE(ran.err.find("[daemon.denied]"), std::string::npos) << ran.err;
}

TEST(CliCommandLine, ASocketThatIsNotThereAndOneThatNobodyServesAreToldApart) {
    const std::string path = testing::TempDir() + "left" + std::to_string(::getpid()) + ".sock";
    std::filesystem::remove(path);
    EXPECT_NE(gantry({"--socket", path.c_str(), "status"}).err.find("there is no such socket"),
              std::string::npos);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ::close(fd);
    EXPECT_NE(gantry({"--socket", path.c_str(), "status"}).err.find("it has ended"),
              std::string::npos);
    std::filesystem::remove(path);
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
                                                            {"top", "--once"},
                                                            {"timeline", "g1"},
                                                            {"abort", "g1"},
                                                            {"force-complete", "g1"},
                                                            {"inspect", "g1"},
                                                            {"profile", "g1", "--level", "2"},
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
