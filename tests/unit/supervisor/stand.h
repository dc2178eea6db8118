// A process that stands where a worker's would, for tests.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace gantry::supervisor {

/// A process that can be killed in place of the worker's.
class Stand {
public:
    Stand() : pid_(::fork()) {
        if (pid_ == 0) {
            for (;;) {
                ::pause();
            }
        }
    }
    ~Stand() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    Stand(const Stand&) = delete;
    Stand& operator=(const Stand&) = delete;
    [[nodiscard]] pid_t pid() const { return pid_; }
    [[nodiscard]] std::uint64_t start_time() const {
        std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
        std::string text;
        std::getline(file, text);
        std::istringstream fields(text.substr(text.rfind(')') + 1));
        std::string field;
        for (int number = 3; number <= 22; ++number) {
            fields >> field;
        }
        return std::strtoull(field.c_str(), nullptr, 10);
    }

private:
    const pid_t pid_;
};

}  // namespace gantry::supervisor
