// CallbackBroker: host callbacks that a stream has reached run in the guest, and the stream waits.
//
// The driver runs run() on a thread of its own when a stream reaches a host function. run() offers
// the callback to the guest, as the answer to the wait_callback command that the guest keeps
// posted, and returns when the guest has reported it done. One callback is with the guest at a
// time, in the order in which streams reached them, as a driver's single callback thread would do
// it.
//
// Invariant: a callback made by add() is outstanding until run() has returned; one made by
// add_repeating() (it lives in a graph) only while it runs. A freeze lets the guest finish them for
// a moment, and then carries those that are open to the next worker (held_work.h).
// Threads: run() on driver threads; everything else on the consumer or the control thread.
// Failure: cancel() ends every wait (the guest is gone) and later ones return at once.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/wire/control_ops.h"

namespace gantry::worker {

class CallbackBroker {
public:
    struct Callback {
        CallbackBroker* broker = nullptr;
        wire::CallbackReply reply{};
        bool repeats = false;
        std::uint64_t position = 0;  ///< Of the command that queued it; unless it repeats.
    };
    /// The callback that the guest has, as another worker must know it.
    struct Open {
        std::uint64_t position = 0;
        std::uint64_t ticket = 0;
    };
    struct Parked {
        std::uint64_t position = 0;
        std::uint32_t lane = 0;
    };
    using Answerer = std::function<void(const Parked&, const wire::CallbackReply&)>;

    /// `answer` publishes a callback as the answer to a parked command; any thread may call it.
    /// `help` is called now and then while a callback is with the guest: see CommandLoop.
    CallbackBroker(Answerer answer, std::function<void()> help)
        : answer_(std::move(answer)), help_(std::move(help)) {}

    /// Notes a callback that is about to be launched once; the driver hands the pointer to run().
    Callback* add(const wire::CallbackReply& reply, std::uint64_t position);
    /// One that a graph holds: it may run any number of times, until forget().
    Callback* add_repeating(const wire::CallbackReply& reply);
    /// Lets the guest run a function once that nothing waits for; not outstanding.
    void run_loose(const wire::CallbackReply& reply);
    /// Those that the guest has not got yet, in order.
    [[nodiscard]] std::vector<wire::CallbackReply> loose() const;
    /// What a pointer that a driver gives back stands for; nullopt when it is none of ours.
    [[nodiscard]] std::optional<wire::CallbackReply> find(const void* callback) const;
    /// Undoes add() when the launch has failed; ends a repeating one.
    void forget(Callback* callback);

    /// Called by the driver with a Callback. Returns when the guest has run it.
    static void run(void* callback, std::uint32_t status);

    /// The guest's wait_callback command. Answered at once if a callback is due.
    void wait(const Parked& parked);
    [[nodiscard]] std::optional<Parked> parked() const;
    /// The guest's callback_done command. False for a callback that is not with the guest.
    bool done(std::uint64_t callback_id);
    /// The callback that the guest has; position 0: no command waits for it.
    [[nodiscard]] std::optional<Open> open() const;
    /// The guest has this callback from another worker: when its command is executed here, it is
    /// not offered again. Before anything is executed.
    void load_open(const Open& open);
    /// True when streams have reached all of these (positions of commands).
    [[nodiscard]] bool has_reached(const std::set<std::uint64_t>& positions) const;

    [[nodiscard]] std::uint32_t outstanding() const;
    void cancel();

private:
    struct Due {
        std::uint64_t ticket = 0;
        std::uint64_t position = 0;
        wire::CallbackReply reply{};
        bool is_loose = false;
    };
    Callback* add_locked(const wire::CallbackReply& reply, bool repeats) GANTRY_REQUIRES(mutex_);
    void run_one(Callback* callback, std::uint32_t status);
    struct Offer {
        Parked parked;
        wire::CallbackReply reply{};
    };
    /// The oldest due callback, when the guest waits for one and has none: it is the guest's now,
    /// and the caller gives it to the guest without the lock, by answer_.
    std::optional<Offer> next_offer_locked() GANTRY_REQUIRES(mutex_);

    Answerer answer_;
    std::function<void()> help_;
    mutable Mutex mutex_;
    CondVar finished_;
    std::unordered_map<Callback*, std::unique_ptr<Callback>> callbacks_ GANTRY_GUARDED_BY(mutex_);
    std::deque<Due> due_ GANTRY_GUARDED_BY(mutex_);
    std::optional<Parked> parked_ GANTRY_GUARDED_BY(mutex_);
    std::uint64_t next_ticket_ GANTRY_GUARDED_BY(mutex_) = 1;
    /// Ticket of the callback the guest has; 0: none.
    std::uint64_t with_guest_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::uint64_t guest_position_ GANTRY_GUARDED_BY(mutex_) = 0;  ///< Position of that one.
    std::optional<Open> loaded_ GANTRY_GUARDED_BY(mutex_);        ///< Not reached again yet.
    /// Tickets below it are finished (they finish in order).
    std::uint64_t finished_below_ GANTRY_GUARDED_BY(mutex_) = 1;
    std::uint32_t outstanding_ GANTRY_GUARDED_BY(mutex_) = 0;
    bool cancelled_ GANTRY_GUARDED_BY(mutex_) = false;
};

}  // namespace gantry::worker
