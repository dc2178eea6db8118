// WaitWords: words of page-locked memory that the device writes when a stream has come that far.
//
// A driver's query costs what it does beside asking, and tells of the end late; a word is seen at
// once. What waits for a stream queues a write of a number into the stream, and looks at the word.
//
// Invariant: a word is used again only after the device has written what was queued last: so no
// write of an earlier wait can be taken for a later one's. All writes have landed when the device
// is idle. The page lies away from the addresses that drivers give out and is locked when the
// process begins, so that what a driver gives out later does not depend on it.
// Threads: any. Failure: without words (a driver
// or a device that cannot write them, all of them in use) queue() gives none, and its caller asks
// the driver.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "host-daemon/execution/device/device.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

class WaitWords {
public:
    struct Ticket {
        std::size_t word = 0;
        std::uint32_t value = 0;
    };

    explicit WaitWords(Device& device);
    ~WaitWords();
    WaitWords(const WaitWords&) = delete;
    WaitWords& operator=(const WaitWords&) = delete;

    /// Queues a write behind all that is in the stream now.
    std::optional<Ticket> queue(CUstream stream);
    /// Also when the word is in use again since.
    [[nodiscard]] bool has_landed(const Ticket& ticket) const {
        const std::uint32_t now = word(ticket.word).load(std::memory_order_acquire);
        return static_cast<std::int32_t>(now - ticket.value) >= 0;
    }

private:
    static constexpr std::size_t kWords = 32;
    static constexpr std::size_t kStepBytes = 128;  // One word a pair of cache lines.

    [[nodiscard]] const std::atomic<std::uint32_t>& word(std::size_t index) const {
        return *reinterpret_cast<const std::atomic<std::uint32_t>*>(page_ + index * kStepBytes);
    }

    Device& device_;
    std::byte* page_ = nullptr;  ///< Null: no words.
    CUdeviceptr address_ = 0;
    Mutex mutex_;  ///< Held while a word is chosen and queued.
    /// By word, what was queued last.
    std::array<std::uint32_t, kWords> queued_ GANTRY_GUARDED_BY(mutex_){};
};

/// A stream that was given work a moment ago, and the word behind that work if it is queued.
struct BusyStream {
    CUstream stream = nullptr;
    std::optional<WaitWords::Ticket> word = {};
};

}  // namespace gantry::worker
