#include "host-daemon/execution/ring/callback_broker.h"

#include <algorithm>
#include <chrono>

namespace gantry::worker {
namespace {

// A callback's end normally arrives by the ring within microseconds of it.
constexpr std::chrono::microseconds kHelpAfter{50};
constexpr std::chrono::microseconds kHelpEvery{1000};

}  // namespace

CallbackBroker::Callback* CallbackBroker::add_locked(const wire::CallbackReply& reply,
                                                     bool repeats) {
    auto callback = std::make_unique<Callback>(Callback{this, reply, repeats, 0});
    Callback* raw = callback.get();
    callbacks_.emplace(raw, std::move(callback));
    return raw;
}

CallbackBroker::Callback* CallbackBroker::add(const wire::CallbackReply& reply,
                                              std::uint64_t position) {
    MutexLock lock(mutex_);
    ++outstanding_;
    Callback* callback = add_locked(reply, false);
    callback->position = position;
    return callback;
}

CallbackBroker::Callback* CallbackBroker::add_repeating(const wire::CallbackReply& reply) {
    MutexLock lock(mutex_);
    return add_locked(reply, true);
}

void CallbackBroker::forget(Callback* callback) {
    MutexLock lock(mutex_);
    if (!callback->repeats) {
        --outstanding_;
    }
    callbacks_.erase(callback);
}

std::optional<wire::CallbackReply> CallbackBroker::find(const void* callback) const {
    MutexLock lock(mutex_);
    const auto known = callbacks_.find(static_cast<Callback*>(const_cast<void*>(callback)));
    return known == callbacks_.end() ? std::nullopt
                                     : std::optional<wire::CallbackReply>(known->second->reply);
}

void CallbackBroker::run(void* callback, std::uint32_t status) {
    auto* self = static_cast<Callback*>(callback);
    self->broker->run_one(self, status);
}

void CallbackBroker::run_one(Callback* callback, std::uint32_t status) {
    MutexLock lock(mutex_);
    if (callback->repeats) {
        ++outstanding_;
    }
    std::uint64_t ticket = 0;
    if (loaded_ && !callback->repeats && loaded_->position == callback->position) {
        ticket = loaded_->ticket;  // The guest has it, or has run it already.
        loaded_.reset();
    } else {
        ticket = next_ticket_++;
        wire::CallbackReply reply = callback->reply;
        reply.callback_id = ticket;
        reply.status = status;
        due_.push_back({ticket, callback->position, reply, false});
        if (const std::optional<Offer> offer = next_offer_locked()) {
            lock.unlock();
            answer_(offer->parked, offer->reply);
            lock.lock();
        }
    }
    const auto is_over = [&]() GANTRY_REQUIRES(mutex_) {
        return cancelled_ || ticket < finished_below_;
    };
    for (auto pause = kHelpAfter; !finished_.wait_for(lock, pause, is_over);) {
        lock.unlock();
        help_();
        lock.lock();
        pause = std::min(pause * 2, kHelpEvery);
    }
    --outstanding_;
    if (!callback->repeats) {
        callbacks_.erase(callback);
    }
}

void CallbackBroker::run_loose(const wire::CallbackReply& reply) {
    MutexLock lock(mutex_);
    if (cancelled_) {
        return;
    }
    const std::uint64_t ticket = next_ticket_++;
    wire::CallbackReply named = reply;
    named.callback_id = ticket;
    due_.push_back({ticket, 0, named, true});
    const std::optional<Offer> offer = next_offer_locked();
    lock.unlock();
    if (offer) {
        answer_(offer->parked, offer->reply);
    }
}

std::vector<wire::CallbackReply> CallbackBroker::loose() const {
    MutexLock lock(mutex_);
    std::vector<wire::CallbackReply> out;
    for (const Due& due : due_) {
        if (due.is_loose) {
            out.push_back(due.reply);
        }
    }
    return out;
}

std::optional<CallbackBroker::Offer> CallbackBroker::next_offer_locked() {
    if (!parked_ || due_.empty() || with_guest_ != 0) {
        return std::nullopt;
    }
    const Due due = due_.front();
    const Offer offer{*parked_, due.reply};
    parked_.reset();
    due_.pop_front();
    with_guest_ = due.ticket;
    guest_position_ = due.position;
    return offer;
}

void CallbackBroker::wait(const Parked& parked) {
    MutexLock lock(mutex_);
    parked_ = parked;
    const std::optional<Offer> offer = next_offer_locked();
    lock.unlock();
    if (offer) {
        answer_(offer->parked, offer->reply);
    }
}

std::optional<CallbackBroker::Parked> CallbackBroker::parked() const {
    MutexLock lock(mutex_);
    return parked_;
}

bool CallbackBroker::done(std::uint64_t callback_id) {
    MutexLock lock(mutex_);
    if (callback_id == 0 || callback_id != with_guest_) {
        return false;
    }
    with_guest_ = 0;
    guest_position_ = 0;
    finished_below_ = callback_id + 1;
    finished_.notify_all();
    const std::optional<Offer> offer = next_offer_locked();
    lock.unlock();
    if (offer) {
        answer_(offer->parked, offer->reply);
    }
    return true;
}

std::optional<CallbackBroker::Open> CallbackBroker::open() const {
    MutexLock lock(mutex_);
    return with_guest_ != 0 ? std::optional<Open>({guest_position_, with_guest_}) : std::nullopt;
}

void CallbackBroker::load_open(const Open& open) {
    MutexLock lock(mutex_);
    if (open.position != 0) {  // Else no stream comes to it again.
        loaded_ = open;
    }
    with_guest_ = open.ticket;
    guest_position_ = open.position;
    finished_below_ = open.ticket;
    next_ticket_ = open.ticket + 1;
}

bool CallbackBroker::has_reached(const std::set<std::uint64_t>& positions) const {
    MutexLock lock(mutex_);
    for (const std::uint64_t position : positions) {
        const bool is_due = std::any_of(due_.begin(), due_.end(), [position](const Due& due) {
            return due.position == position;
        });
        const bool is_with_guest = with_guest_ != 0 && guest_position_ == position;
        if (!is_due && !(is_with_guest && !loaded_)) {
            return false;
        }
    }
    return true;
}

std::uint32_t CallbackBroker::outstanding() const {
    MutexLock lock(mutex_);
    return outstanding_;
}

void CallbackBroker::cancel() {
    MutexLock lock(mutex_);
    cancelled_ = true;
    finished_.notify_all();
}

}  // namespace gantry::worker
