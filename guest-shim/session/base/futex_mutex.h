// A mutex of one word that needs libc only and no destructor. Not held across calls to the host
// except by threads that share a lane. Uncontended cost: one compare-and-swap each way.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "proto/base/thread_annotations.h"

namespace gantry::session {

class GANTRY_CAPABILITY("mutex") FutexMutex {
public:
    void lock() noexcept GANTRY_ACQUIRE() {
        std::uint32_t seen = kFree;
        if (word_.compare_exchange_strong(seen, kHeld, std::memory_order_acquire)) {
            return;
        }
        while (word_.exchange(kContended, std::memory_order_acquire) != kFree) {
            syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, kContended, nullptr, nullptr, 0);
        }
    }

    void unlock() noexcept GANTRY_RELEASE() {
        if (word_.exchange(kFree, std::memory_order_release) == kContended) {
            syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
        }
    }

    [[nodiscard]] bool is_held() const noexcept {
        return word_.load(std::memory_order_relaxed) != kFree;
    }

private:
    static constexpr std::uint32_t kFree = 0;
    static constexpr std::uint32_t kHeld = 1;
    static constexpr std::uint32_t kContended = 2;
    std::atomic<std::uint32_t> word_{kFree};
};

class GANTRY_SCOPED_CAPABILITY Guard {
public:
    explicit Guard(FutexMutex& mutex) noexcept GANTRY_ACQUIRE(mutex) : mutex_(mutex) {
        mutex.lock();
    }
    ~Guard() GANTRY_RELEASE() { mutex_.unlock(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

private:
    FutexMutex& mutex_;
};

}  // namespace gantry::session
