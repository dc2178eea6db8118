// The profile of this process's operations (proto/decisions/0039-profile-of-operations.md).
//
// Each thread keeps its own times (thread_times.h); all of them share a table of rows, and send
// what has changed with a call that they leave, at most every 50 ms. Threads: any. Failure: without
// memory nothing is noted. Cost: off, two loads for each call; on, two stamps for each call, two
// more for each wait.
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/wire/profile.h"

namespace gantry::session {

struct Thread;

/// Where the host says what to note: a word of zeros while there is no session.
extern std::atomic<const std::atomic<std::uint32_t>*> g_profile_word;

inline bool profiled() noexcept {
    const auto* const word = g_profile_word.load(std::memory_order_relaxed);
    return __builtin_expect(wire::profile_level(word->load(std::memory_order_relaxed)) != 0, 0);
}

// Only where profiled().
void note_call_begun() noexcept;
void note_call_ended() noexcept;
void note_launch() noexcept;

/// All of what a wait's other parts leave was for the device.
inline constexpr std::uint64_t kWholeWait = ~std::uint64_t{0};

/// Around a wait of the calling thread inside of a call.
class ProfiledWait {
public:
    ProfiledWait() noexcept {
        if (profiled()) {
            begin();
        }
    }
    ~ProfiledWait() {
        if (is_noted_) {
            end();
        }
    }
    ProfiledWait(const ProfiledWait&) = delete;
    ProfiledWait& operator=(const ProfiledWait&) = delete;

    /// So long the device was waited for, as the host has told.
    void device(std::uint64_t ns) noexcept { device_ns_ = ns; }

private:
    void begin() noexcept;
    void end() noexcept;
    std::uint64_t device_ns_ = 0;
    bool is_noted_ = false;
};

// NVTX ranges; what they return is NVTX's.
int push_range(const char* name) noexcept;
int pop_range() noexcept;
std::uint64_t start_range(const char* name) noexcept;
void end_range(std::uint64_t range) noexcept;

/// The thread ends.
void end_profile(Thread* thread) noexcept;

}  // namespace gantry::session
