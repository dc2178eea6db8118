#include "host-daemon/worker/event_board.h"

#include <algorithm>

#include "proto/cuda/handle_bits.h"

namespace gantry::worker {

void EventBoard::attach(wire::HostWords* words, std::uint64_t executed) {
    std::lock_guard lock(mutex_);
    words_ = words;
    announced_ = false;
    open_.clear();
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
    std::lock_guard lock(mutex_);
    announced_ = migrating;
}

void EventBoard::recorded(std::uint64_t event, std::uint64_t position, CUevent native,
                          CUstream stream) {
    std::lock_guard lock(mutex_);
    std::erase_if(open_, [event](const Open& open) { return open.event == event; });
    if (open_.size() == kOpenMax) {
        open_.erase(open_.begin());
    }
    open_.push_back({event, position, native, stream});
    open_count_ = open_.size();
}

void EventBoard::forget(std::uint64_t event) {
    if (open_count_.load(std::memory_order_relaxed) == 0) {
        return;
    }
    std::lock_guard lock(mutex_);
    std::erase_if(open_, [event](const Open& open) { return open.event == event; });
    open_count_ = open_.size();
}

void EventBoard::show_locked(std::uint64_t event, std::uint64_t position) {
    auto& word = words_->event_done[cuda::handle_slot(event) % wire::kEventWords];
    if (word.load(std::memory_order_relaxed) < position + 1) {
        word.store(position + 1, std::memory_order_release);
    }
}

CUresult EventBoard::look(std::size_t most) {
    if (open_count_.load(std::memory_order_acquire) == 0) {
        return CUDA_SUCCESS;
    }
    std::lock_guard lock(mutex_);
    if (words_ == nullptr || announced_) {
        return CUDA_SUCCESS;
    }
    std::array<CUstream, 8> busy{};
    std::size_t busy_count = 0;
    CUresult worst = CUDA_SUCCESS;
    std::erase_if(open_, [&](const Open& open) {
        const auto* end = busy.begin() + busy_count;
        if (most == 0 || busy_count == busy.size() ||
            std::find(busy.cbegin(), end, open.stream) != end) {
            return false;
        }
        --most;
        const CUresult result = device_.api().cuEventQuery(open.native);
        if (result == CUDA_ERROR_NOT_READY) {
            busy[busy_count++] = open.stream;
            return false;
        }
        if (result == CUDA_SUCCESS) {
            show_locked(open.event, open.position);
        } else {
            worst = result;
        }
        return true;
    });
    open_count_ = open_.size();
    return worst;
}

CUresult EventBoard::look_at(std::uint64_t event, std::uint64_t recorded, CUevent native,
                             std::uint64_t position) {
    std::lock_guard lock(mutex_);
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
    std::lock_guard lock(mutex_);
    if (words_ != nullptr) {
        words_->late_errors.fetch_add(1, std::memory_order_release);
    }
}

}  // namespace gantry::worker
