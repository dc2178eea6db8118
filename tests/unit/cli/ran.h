// What a command of `gantry` printed and returned, as its tests see it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace gantry::cli {

struct Ran {
    int status;
    std::string out;
    std::string err;
    [[nodiscard]] std::vector<nlohmann::json> json() const { return lines(out); }
    static std::vector<nlohmann::json> lines(const std::string& text) {
        std::vector<nlohmann::json> found;
        std::istringstream stream(text);
        while (stream >> std::ws && !stream.eof()) {
            nlohmann::json one;
            stream >> one;
            found.push_back(std::move(one));
        }
        return found;
    }
};

template <typename Command>
Ran capture(Command command) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int status = command();
    std::string out = testing::internal::GetCapturedStdout();
    return {status, std::move(out), testing::internal::GetCapturedStderr()};
}

/// The same with a standard output that takes nothing: `out` is empty.
template <typename Command>
Ran run_unheard(Command command) {
    return capture([&] {
        const int before = ::dup(STDOUT_FILENO);
        const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
        ::dup2(full, STDOUT_FILENO);
        const int status = command();
        ::__fpurge(stdout);  // What is still to be written.
        ::dup2(before, STDOUT_FILENO);
        ::close(before);
        ::close(full);
        return status;
    });
}

}  // namespace gantry::cli
