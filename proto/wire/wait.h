// Waiting for a word in the region: spin, then sleep. Where both sides run under one kernel the
// sleep is a futex on the word's low half; across a VM border it is a short, growing nanosleep.
// libc only.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace gantry::wire {

enum class Sleep : std::uint32_t {
    kFutex,  ///< Both sides share a kernel.
    kPoll,   ///< They do not (VM border), or the word is mirrored.
};

inline void cpu_relax() { __builtin_ia32_pause(); }

inline void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected,
                       std::uint64_t timeout_ns) {
    timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000),
                     static_cast<long>(timeout_ns % 1'000'000'000)};
    syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

inline void futex_wake_all(const std::atomic<std::uint32_t>* word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline std::uint64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
}

/// Numbers a consumer's sleeps (HostWords.consumer_sleeps): never 0, and not those of the consumer
/// before it. Until one that was woken gets a processor its number stays, and ringing again would
/// cost each command a system call.
class SleepNumbers {
public:
    [[nodiscard]] std::uint32_t next() {
        last_ += last_ + 1 == 0 ? 2 : 1;
        return last_;
    }

private:
    std::uint32_t last_ = static_cast<std::uint32_t>(monotonic_ns());
};

/// Growing pauses for polling: spins first, then sleeps up to kLongestSleepNs.
class Backoff {
public:
    static constexpr std::uint32_t kSpins = 2000;  // About 30 us of PAUSE on current parts.
    static constexpr std::uint64_t kLongestSleepNs = 200'000;

    void pause() {
        if (round_ < kSpins) {
            ++round_;
            cpu_relax();
            return;
        }
        timespec nap{0, static_cast<long>(nap_ns_)};
        nanosleep(&nap, nullptr);
        nap_ns_ = nap_ns_ * 2 > kLongestSleepNs ? kLongestSleepNs : nap_ns_ * 2;
    }
    /// The caller has done that.
    void stop_spinning() { round_ = kSpins; }
    [[nodiscard]] bool spinning() const { return round_ < kSpins; }
    /// Between spins one takes as long as many of them: at first, and now and then.
    [[nodiscard]] bool affords_system_call() const { return !spinning() || round_ % 256 == 0; }
    void reset() {
        round_ = 0;
        nap_ns_ = 5'000;
    }

private:
    std::uint32_t round_ = 0;
    std::uint64_t nap_ns_ = 5'000;
};

}  // namespace gantry::wire
