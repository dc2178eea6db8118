// SharedEvent: what processes share of an event made with CU_EVENT_INTERPROCESS.
//
// Layout. Each process has one memory file with a page for each of its events. A record takes the
// next ticket (1, 2, ...) and, when its stream comes past it, marks the ticket's slot as done. Who
// waits, in whichever process, waits for the ticket that was the newest when it began to: as with
// any event, a later record does not concern it, and records may end in any order.
// Order. What a stream wrote before its record is seen by whoever has seen the slot: the mark is a
// release, the look an acquire. Sleepers are woken through a futex word in the page.
// Failure. A process that ends takes its work with it, and no mark comes: whoever waits sees that
// it is gone (within kLookEvery) and goes on. A page lives as long as anybody has the event open.
// Cost. 16 KiB an event; slots are used again, so that the record kSlots after one that has not
// ended waits for it in its call, as a full queue would make it.
// Threads: any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "proto/cuda/abi.h"

namespace gantry::softgpu {

struct SharedEventPage;

class SharedEvent {
public:
    static constexpr std::uint64_t kSlots = 1020;
    static constexpr std::chrono::milliseconds kLookEvery{50};

    /// What a CUipcEventHandle holds.
    struct Handle {
        static constexpr std::uint64_t kMagic = 0x5645'4354'464f'5347;  // "GSOFTCEV"
        std::uint64_t magic = kMagic;
        std::uint64_t started = 0;  ///< Tells the process from a later one of its number.
        std::int32_t process = 0;
        std::int32_t file = -1;
        std::uint64_t index = 0;
        std::uint64_t serial = 0;
        std::uint64_t reserved[3] = {};
    };

    /// Null when there is no room.
    static std::shared_ptr<SharedEvent> create();
    /// Another process's. CUDA_ERROR_INVALID_CONTEXT for one of this process, INVALID_VALUE for
    /// what names no event that lives.
    static CUresult open(const Handle& handle, std::shared_ptr<SharedEvent>& event);
    ~SharedEvent();
    SharedEvent(const SharedEvent&) = delete;
    SharedEvent& operator=(const SharedEvent&) = delete;

    [[nodiscard]] bool is_own() const { return is_own_; }
    [[nodiscard]] Handle handle() const;

    /// The ticket of a new record; 0 when waiting for room ended with the driver's sticky error.
    std::uint64_t begin_record();
    /// The record has come to pass.
    void end_record(std::uint64_t ticket);
    /// Of the newest record; 0: there is none.
    [[nodiscard]] std::uint64_t newest() const;
    /// The record has come to pass, or never will.
    [[nodiscard]] bool has_ended(std::uint64_t ticket);
    /// Also returns once the driver has a sticky error.
    void wait(std::uint64_t ticket);

private:
    SharedEvent(SharedEventPage* page, std::uint64_t index, bool is_own)
        : page_(page), index_(index), is_own_(is_own) {}
    [[nodiscard]] bool is_marked(std::uint64_t ticket) const;

    SharedEventPage* const page_;
    const std::uint64_t index_;
    const bool is_own_;
    std::atomic<std::int64_t> looked_ns_{0};  ///< When the recording process was last looked for.
};

}  // namespace gantry::softgpu
