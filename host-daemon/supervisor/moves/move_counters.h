// MoveCounters: what has become of the moves of this host since gantryd's start, for metrics.
// Not thread-safe.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "proto/control/gantryd.pb.h"

namespace gantry::supervisor {

/// Seconds by buckets of fixed bounds.
template <std::size_t bounds>
class SecondsHistogram {
public:
    explicit constexpr SecondsHistogram(const std::array<double, bounds>& upper) : upper_(upper) {}

    void note(double seconds) {
        std::size_t bucket = 0;
        while (bucket < bounds && seconds > upper_[bucket]) {
            ++bucket;
        }
        ++counts_[bucket];
        sum_ += seconds;
    }
    [[nodiscard]] const std::array<double, bounds>& upper() const { return upper_; }
    /// Of each bucket alone; the last has no bound.
    [[nodiscard]] const std::array<std::uint64_t, bounds + 1>& counts() const { return counts_; }
    [[nodiscard]] double sum() const { return sum_; }

private:
    std::array<double, bounds> upper_;
    std::array<std::uint64_t, bounds + 1> counts_{};
    double sum_ = 0.0;
};

class MoveCounters {
public:
    struct End {
        std::string direction;  ///< "outgoing" or "incoming"
        std::string outcome;    ///< as in MoveProgress
        std::string reason;     ///< Reason id of one that was not moved; else empty.
        friend auto operator<=>(const End&, const End&) = default;
    };
    /// Whose moves: a VM has its own, until there are kVmsMax; then, as for programs of the host
    /// itself, the names are empty.
    struct Whose {
        std::string direction;
        std::string vm_name;
        std::string vm_uuid;
        friend auto operator<=>(const Whose&, const Whose&) = default;
    };
    static constexpr std::size_t kVmsMax = 256;
    struct Moves {
        SecondsHistogram<10> duration{{1, 2, 5, 10, 30, 60, 120, 300, 600, 1800}};
        /// Of outgoing moves: the pause is measured where it begins.
        SecondsHistogram<11> downtime{{0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30, 60}};
        std::uint64_t wire_bytes = 0;
    };

    /// `status` has a move that has its outcome.
    void note(const control::SessionStatus& status);
    [[nodiscard]] const std::map<End, std::uint64_t>& ends() const { return ends_; }
    [[nodiscard]] const std::map<Whose, Moves>& moves() const { return moves_; }

private:
    std::map<End, std::uint64_t> ends_;
    std::map<Whose, Moves> moves_;
};

}  // namespace gantry::supervisor
