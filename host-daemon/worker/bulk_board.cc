#include "host-daemon/worker/bulk_board.h"

#include <algorithm>
#include <array>

namespace gantry::worker {

using std::chrono::steady_clock;

BulkBoard::~BulkBoard() {
    attach(nullptr);
    for (const CUevent event : events_) {
        device_.api().cuEventDestroy_v2(event);
    }
}

void BulkBoard::attach(wire::HostWords* words) {
    std::lock_guard lock(mutex_);
    words_ = words;
    announced_ = false;
    for (const Copy& copy : copies_) {
        events_.push_back(copy.event);
    }
    copies_.clear();
    note_count_locked();
    is_locked_ = false;
    tell_guest_locked();
}

void BulkBoard::announce(bool migrating) {
    std::lock_guard lock(mutex_);
    announced_ = migrating;
}

void BulkBoard::locked(bool is_locked) {
    std::lock_guard lock(mutex_);
    is_locked_ = is_locked;
    tell_guest_locked();
}

void BulkBoard::capturing(bool begins) {
    std::lock_guard lock(mutex_);
    captures_ = begins ? captures_ + 1 : captures_ - 1;
    tell_guest_locked();
}

void BulkBoard::tell_guest_locked() {
    if (words_ != nullptr) {
        words_->bulk_locked.store(is_locked_ && captures_ == 0 ? 1 : 0,
                                  std::memory_order_release);
    }
}

void BulkBoard::note_count_locked() {
    count_ = copies_.size();
    arrivals_ = static_cast<std::size_t>(
        std::count_if(copies_.begin(), copies_.end(),
                      [](const Copy& copy) { return copy.way == Way::kToGuest; }));
}

CUevent BulkBoard::take_event_locked() {
    CUevent event = nullptr;
    if (!events_.empty()) {
        event = events_.back();
        events_.pop_back();
    } else if (device_.api().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        event = nullptr;
    }
    return event;
}

void BulkBoard::started(std::uint32_t word, std::uint64_t position, Way way, CUstream stream) {
    std::lock_guard lock(mutex_);
    std::erase_if(copies_, [&](const Copy& copy) {  // The guest knows its end in another way.
        if (copy.word == word) {
            events_.push_back(copy.event);
        }
        return copy.word == word;
    });
    const CUevent event = take_event_locked();
    if (event != nullptr && device_.api().cuEventRecord(event, stream) == CUDA_SUCCESS) {
        copies_.push_back({word, way, position, event, stream});
        last_start_.store(steady_clock::now().time_since_epoch().count());
    } else {
        if (event != nullptr) {
            events_.push_back(event);
        }
        // Nothing tells of its end, so wait for it.
        if (device_.api().cuStreamSynchronize(stream) == CUDA_SUCCESS && !announced_) {
            show_locked(word, position);
        }
    }
    note_count_locked();
}

void BulkBoard::ended(std::uint32_t word, std::uint64_t position) {
    std::lock_guard lock(mutex_);
    show_locked(word, position);
}

void BulkBoard::show_locked(std::uint32_t word, std::uint64_t position) {
    if (words_ == nullptr) {
        return;
    }
    auto& shown = words_->bulk_done[word];
    if (shown.load(std::memory_order_relaxed) < position + 1) {
        shown.store(position + 1, std::memory_order_release);
    }
}

CUresult BulkBoard::look(const std::function<void(CUstream)>& before_arrivals) {
    if (count_.load(std::memory_order_acquire) == 0) {
        return CUDA_SUCCESS;
    }
    std::lock_guard lock(mutex_);
    std::array<CUstream, 8> busy{};
    std::size_t busy_count = 0;
    CUresult worst = CUDA_SUCCESS;
    std::vector<Copy> ended;
    std::erase_if(copies_, [&](const Copy& copy) {
        const auto* end = busy.begin() + busy_count;
        if (busy_count == busy.size() || std::find(busy.cbegin(), end, copy.stream) != end) {
            return false;
        }
        const bool is_from_guest = copy.way == Way::kFromGuest;
        if (!is_from_guest && announced_) {
            return false;
        }
        const CUresult result = device_.api().cuEventQuery(copy.event);
        if (result == CUDA_ERROR_NOT_READY) {
            busy[busy_count++] = copy.stream;
            return false;
        }
        if (result == CUDA_SUCCESS || is_from_guest) {
            ended.push_back(copy);
        }
        worst = result != CUDA_SUCCESS ? result : worst;
        events_.push_back(copy.event);
        return true;
    });
    for (const Copy& copy : ended) {
        if (copy.way == Way::kToGuest) {
            before_arrivals(copy.stream);
        }
    }
    for (const Copy& copy : ended) {
        show_locked(copy.word, copy.position);
    }
    note_count_locked();
    return worst;
}

void BulkBoard::look_at(std::uint32_t word, std::uint64_t position) {
    std::lock_guard lock(mutex_);
    const bool is_in_flight =
        std::any_of(copies_.begin(), copies_.end(),
                    [&](const Copy& copy) { return copy.position == position; });
    if (!is_in_flight) {
        show_locked(word, position);
    }
}

bool BulkBoard::is_pending(steady_clock::time_point now,
                           std::chrono::microseconds patience) const {
    if (count_.load(std::memory_order_acquire) == 0) {
        return false;
    }
    const steady_clock::time_point last{steady_clock::duration(last_start_.load())};
    return now - last < patience;
}

}  // namespace gantry::worker
