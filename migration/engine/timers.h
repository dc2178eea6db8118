// TimerSet: a handful of named deadlines inside a state machine. Pure: the machine is told the
// time.
#pragma once

#include <array>
#include <optional>

#include "migration/engine/machine.h"

namespace gantry::engine {

/// Slot: an enum class whose values are 0 .. count - 1.
template <typename Slot, std::size_t count>
class TimerSet {
public:
    void set(Slot slot, TimePoint at) { at_[index(slot)] = at; }
    void clear(Slot slot) { at_[index(slot)].reset(); }
    void clear_all() { at_ = {}; }
    [[nodiscard]] bool is_set(Slot slot) const { return at_[index(slot)].has_value(); }

    /// True once when the slot's time has come; it is cleared then.
    bool take_due(Slot slot, TimePoint now) {
        std::optional<TimePoint>& at = at_[index(slot)];
        if (!at || *at > now) {
            return false;
        }
        at.reset();
        return true;
    }

    [[nodiscard]] std::optional<TimePoint> next() const {
        std::optional<TimePoint> next;
        for (const auto& at : at_) {
            if (at && (!next || *at < *next)) {
                next = at;
            }
        }
        return next;
    }

private:
    static std::size_t index(Slot slot) { return static_cast<std::size_t>(slot); }
    std::array<std::optional<TimePoint>, count> at_{};
};

/// Doubling interval between repeats of an unanswered message.
class Backoff {
public:
    void reset(Duration first) { next_ = first; }
    Duration take(Duration largest) {
        const Duration taken = next_;
        next_ = std::min(next_ * 2, largest);
        return taken;
    }

private:
    Duration next_{};
};

}  // namespace gantry::engine
