#include "host-daemon/execution/ring/event_board.h"

#include <algorithm>
#include <limits>

#include "proto/cuda/handle_bits.h"

namespace gantry::worker {
namespace {

/// What one look() of the loop may cost: questions to the driver, and records passed over.
constexpr std::size_t kAskedAtOnce = 4;
constexpr std::size_t kSeenAtOnce = 64;

}  // namespace

void EventBoard::attach(wire::HostWords* words, std::uint64_t executed) {
    MutexLock lock(mutex_);
    words_ = words;
    announced_ = false;
    open_.clear();
    by_event_.clear();
    open_count_ = 0;
    if (words == nullptr) {
        return;
    }
    // What the guest has here may be older than what another host has shown: its own last question
    // may have been answered there.
    words->looked.store(std::max(words->looked.load(std::memory_order_relaxed), executed),
                        std::memory_order_release);
    words->shows_events.store(1, std::memory_order_release);
}

void EventBoard::announce(bool migrating) {
    MutexLock lock(mutex_);
    announced_ = migrating;
}

void EventBoard::recorded(std::uint64_t event, std::uint64_t position, CUevent native,
                          CUstream stream) {
    MutexLock lock(mutex_);
    if (const auto known = by_event_.find(event); known != by_event_.end()) {
        end_locked(known->second);
    }
    by_event_[event] = open_.insert(open_.end(), {event, position, native, stream});
    open_count_ = open_.size();
}

void EventBoard::forget(std::uint64_t event) {
    if (open_count_.load(std::memory_order_relaxed) == 0) {
        return;
    }
    MutexLock lock(mutex_);
    if (const auto known = by_event_.find(event); known != by_event_.end()) {
        end_locked(known->second);
    }
}

void EventBoard::end_locked(Records::iterator open) {
    by_event_.erase(open->event);
    open_.erase(open);
    open_count_ = open_.size();
}

void EventBoard::show_locked(std::uint64_t event, std::uint64_t position) {
    auto& word = words_->event_done[cuda::handle_slot(event) % wire::kEventWords];
    if (word.load(std::memory_order_relaxed) < position + 1) {
        word.store(position + 1, std::memory_order_release);
    }
}

CUresult EventBoard::look() { return ask(kAskedAtOnce, kSeenAtOnce); }

CUresult EventBoard::look_at_all() {
    constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
    return ask(kAll, kAll);
}

CUresult EventBoard::ask(std::size_t ask_most, std::size_t see_most) {
    if (open_count_.load(std::memory_order_acquire) == 0) {
        return CUDA_SUCCESS;
    }
    MutexLock lock(mutex_);
    if (words_ == nullptr || announced_) {
        return CUDA_SUCCESS;
    }
    std::vector<CUstream> busy;
    CUresult worst = CUDA_SUCCESS;
    for (auto next = open_.begin(); next != open_.end() && ask_most != 0 && see_most != 0;
         --see_most) {
        const auto open = next++;
        if (std::find(busy.begin(), busy.end(), open->stream) != busy.end()) {
            continue;
        }
        --ask_most;
        const CUresult result = device_.api().cuEventQuery(open->native);
        if (result == CUDA_ERROR_NOT_READY) {
            busy.push_back(open->stream);
            continue;
        }
        if (result == CUDA_SUCCESS) {
            show_locked(open->event, open->position);
        } else {
            worst = result;
        }
        end_locked(open);
    }
    return worst;
}

CUresult EventBoard::look_at(std::uint64_t event, std::uint64_t recorded, CUevent native,
                             std::uint64_t position) {
    MutexLock lock(mutex_);
    if (words_ == nullptr) {
        return CUDA_SUCCESS;
    }
    CUresult result = CUDA_SUCCESS;
    if (native != nullptr && !announced_) {
        result = device_.api().cuEventQuery(native);
        if (result == CUDA_SUCCESS) {
            show_locked(event, recorded);
        } else if (result == CUDA_ERROR_NOT_READY) {
            result = CUDA_SUCCESS;
        }
    }
    words_->looked.store(position + 1, std::memory_order_release);
    return result;
}

void EventBoard::late_error() {
    MutexLock lock(mutex_);
    if (words_ != nullptr) {
        words_->late_errors.fetch_add(1, std::memory_order_release);
    }
}

}  // namespace gantry::worker
