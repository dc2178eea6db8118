// ErrorLedger: the errors of one guest process that no call has told yet, and the one that ends it.
//
// An error of a command without an answer is kept for its lane and told by that lane's next answer
// that may tell one. A sticky error poisons the context: natively every later call of the device
// gives that same error until the process ends, whatever the context held. So a process in that
// state is moved as its channel and the error alone: no object, no memory, no code. Its new worker
// has a sound context, which it must not touch (lose_context()).
//
// Owner: GuestProcess. Threads: any; attach(), load() and lose_context() while no command is
// executed. Cost: take() is one load where nothing is kept.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "host-daemon/driver/driver_library.h"
#include "host-daemon/execution/ring/event_board.h"
#include "proto/wire/region.h"

namespace gantry::worker {

class ErrorLedger {
public:
    using OfLanes = std::array<std::uint32_t, wire::kLaneCount>;

    explicit ErrorLedger(EventBoard& event_board) : event_board_(event_board) {}

    /// Where the guest reads the sticky error; null: nowhere any more.
    void attach(wire::HostWords* words) { words_.store(words); }

    /// A command of the lane has ended with this result.
    void note(std::uint32_t lane, CUresult result, bool is_answered);
    void note_sticky(CUresult result);
    /// The lane's error, which is told once. 0: none.
    [[nodiscard]] std::uint32_t take(std::uint32_t lane) {
        return of_lanes_[lane].load(std::memory_order_relaxed) == 0 ? 0
                                                                    : of_lanes_[lane].exchange(0);
    }

    [[nodiscard]] std::uint32_t sticky() const { return sticky_.load(); }
    /// A sticky error has come: nothing of the device can be used any more. All that is left to
    /// carry is the error, and the channel.
    [[nodiscard]] bool is_broken() const { return sticky() != 0; }
    /// The context stayed behind with its error, which is what every call of the device gets here.
    void lose_context(CUresult error);
    [[nodiscard]] bool has_lost_context() const { return has_lost_context_; }

    [[nodiscard]] OfLanes save() const;
    void load(const OfLanes& of_lanes);

private:
    EventBoard& event_board_;
    std::atomic<wire::HostWords*> words_{nullptr};
    std::atomic<std::uint32_t> sticky_{0};
    std::array<std::atomic<std::uint32_t>, wire::kLaneCount> of_lanes_{};
    bool has_lost_context_ = false;
};

}  // namespace gantry::worker
