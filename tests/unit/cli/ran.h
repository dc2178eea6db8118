// What a command of `gantry` printed and returned, as its tests see it.
#pragma once

#include <gtest/gtest.h>

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

}  // namespace gantry::cli
