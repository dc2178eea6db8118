// Phases: how long the steps of one job took, for its line in the log.
// Threads: one.
#pragma once

#include <chrono>
#include <string>

namespace gantry::supervisor {

class Phases {
public:
    /// The step that ends now; `how`: what else is to be said of it.
    void end(const char* step, const std::string& how = {}) {
        const auto now = Clock::now();
        const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now - last_).count();
        last_ = now;
        text_ += (text_.empty() ? "" : ", ") + std::string(step) + " " + std::to_string(us) + " us";
        text_ += how.empty() ? "" : " [" + how + "]";
    }
    [[nodiscard]] const std::string& text() const { return text_; }

private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point last_ = Clock::now();
    std::string text_;
};

}  // namespace gantry::supervisor
