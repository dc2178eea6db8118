// Conditions: values that kernels set and conditional nodes look at.
//
// A condition's number is the lowest that is free: where the same conditions live, they can be made
// again with the same numbers. Threads: all calls lock; values are atomic.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace gantry::softgpu {

class Condition {
public:
    static std::shared_ptr<Condition> create(std::uint32_t default_value, bool assigns);
    /// Null when there is none of this number.
    static std::shared_ptr<Condition> find(std::uint64_t number);
    ~Condition();
    Condition(const Condition&) = delete;
    Condition& operator=(const Condition&) = delete;

    [[nodiscard]] std::uint64_t number() const { return number_; }
    void set(std::uint32_t value) { value_.store(value, std::memory_order_relaxed); }
    [[nodiscard]] std::uint32_t value() const { return value_.load(std::memory_order_relaxed); }
    /// A launch begins.
    void begin() {
        if (assigns_) {
            set(default_);
        }
    }
    /// False when a node looks at it already.
    bool claim() { return !is_claimed_.exchange(true); }
    [[nodiscard]] bool is_claimed() const { return is_claimed_.load(); }

private:
    Condition(std::uint32_t default_value, bool assigns)
        : default_(default_value), assigns_(assigns), value_(default_value) {}

    std::uint64_t number_ = 0;
    const std::uint32_t default_;
    const bool assigns_;
    std::atomic<std::uint32_t> value_;
    std::atomic<bool> is_claimed_{false};
};

}  // namespace gantry::softgpu
