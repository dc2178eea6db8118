// LaunchWindow: how much of a limited session's work the driver may have at a time.
//
// Counted in predicted GPU time. One launch always may go where nothing is queued, however long it
// is: it cannot be cut. A launch of which nothing is known counts as a whole window.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

#include "host-daemon/scheduling/share.h"

namespace gantry::scheduling {

class LaunchWindow {
public:
    explicit LaunchWindow(Time budget) : budget_(budget) {}

    [[nodiscard]] Time cost_of(std::optional<Time> predicted) const {
        return predicted ? *predicted : budget_;
    }
    [[nodiscard]] bool may_add(Time cost) const {
        return count_ == 0 || (queued_ < budget_ && cost <= budget_ - queued_);
    }
    void add(Time cost) {
        queued_ += cost;
        ++count_;
    }
    void end(Time cost) {
        queued_ -= std::min(queued_, cost);
        count_ -= count_ != 0 ? 1 : 0;
    }
    [[nodiscard]] bool empty() const { return count_ == 0; }
    [[nodiscard]] Time queued() const { return queued_; }

private:
    Time budget_;
    Time queued_{};
    std::size_t count_ = 0;
};

}  // namespace gantry::scheduling
