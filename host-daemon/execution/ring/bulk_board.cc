#include "host-daemon/execution/ring/bulk_board.h"

#include <algorithm>
#include <array>

namespace gantry::worker {

using std::chrono::steady_clock;

namespace {

/// How often a stream is asked for errors while a word in it is looked at.
constexpr std::chrono::milliseconds kAskEvery{1};

}  // namespace

BulkBoard::~BulkBoard() { attach(nullptr); }

void BulkBoard::attach(wire::HostWords* words) {
    MutexLock lock(mutex_);
    words_ = words;
    announced_ = false;
    if (words != nullptr) {
        words->shares_bulk.store(1, std::memory_order_release);
    }
    for (const Copy& copy : copies_) {
        events_.keep(copy.event);
    }
    copies_.clear();
    note_count_locked();
    is_locked_ = false;
    tell_guest_locked();
}

void BulkBoard::announce(bool migrating) {
    MutexLock lock(mutex_);
    announced_ = migrating;
}

void BulkBoard::locked(bool is_locked) {
    MutexLock lock(mutex_);
    is_locked_ = is_locked;
    tell_guest_locked();
}

void BulkBoard::capturing(bool begins) {
    MutexLock lock(mutex_);
    captures_ = begins ? captures_ + 1 : captures_ - 1;
    tell_guest_locked();
}

void BulkBoard::tell_guest_locked() {
    if (words_ != nullptr) {
        words_->bulk_locked.store(is_locked_ && captures_ == 0 ? 1 : 0, std::memory_order_release);
    }
}

void BulkBoard::note_count_locked() {
    count_ = copies_.size();
    arrivals_ = static_cast<std::size_t>(
        std::count_if(copies_.begin(), copies_.end(),
                      [](const Copy& copy) { return copy.way == Way::kToGuest; }));
}

/// Puts into the stream what tells of the copy's end; false when there is nothing. Without the
/// lock: the driver may wait for room.
bool BulkBoard::add_sign(Copy* copy, Sign sign) {
    if (sign == Sign::kWord) {
        copy->ticket = wait_words_.queue(copy->stream);
    }
    if (copy->ticket) {
        return true;
    }
    copy->event = events_.record(copy->stream);
    return static_cast<bool>(copy->event);
}

void BulkBoard::started(std::uint32_t word, std::uint64_t position, Way way, CUstream stream,
                        Sign sign) {
    Copy copy{word, way, position, stream, {}, {}, {}};
    const bool has_sign = add_sign(&copy, sign);
    MutexLock lock(mutex_);
    std::erase_if(copies_, [&](const Copy& old) {  // The guest knows its end in another way.
        if (old.word == word) {
            events_.keep(old.event);
        }
        return old.word == word;
    });
    if (has_sign) {
        const auto now = steady_clock::now();
        copy.ask_at = now + kAskEvery;
        copies_.push_back(copy);
        last_start_.store(now.time_since_epoch().count());
    } else {
        // Nothing tells of its end, so wait for it.
        if (device_.api().cuStreamSynchronize(stream) == CUDA_SUCCESS && !announced_) {
            show_locked(word, position);
        }
    }
    note_count_locked();
}

void BulkBoard::leave(CUstream stream) {
    if (count_.load(std::memory_order_acquire) == 0) {
        return;
    }
    MutexLock lock(mutex_);
    for (Copy& copy : copies_) {
        if (copy.stream != stream || !copy.ticket) {
            continue;
        }
        copy.event = captures_ == 0 ? events_.record(stream) : EventPool::Event{};
        if (copy.event) {
            copy.ticket.reset();
        } else {
            copy.ask_at = steady_clock::time_point::max();  // Its word alone tells.
        }
    }
}

void BulkBoard::ended(std::uint32_t word, std::uint64_t position) {
    MutexLock lock(mutex_);
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

/// Whether the copy has ended: CUDA_SUCCESS, CUDA_ERROR_NOT_READY, or the error that a driver told.
CUresult BulkBoard::ask_locked(Copy* copy, steady_clock::time_point now) {
    if (!copy->ticket) {
        return events_.query(copy->event);
    }
    if (wait_words_.has_landed(*copy->ticket)) {
        return CUDA_SUCCESS;
    }
    if (now < copy->ask_at) {
        return CUDA_ERROR_NOT_READY;
    }
    copy->ask_at = now + kAskEvery;
    return device_.api().cuStreamQuery(copy->stream);
}

CUresult BulkBoard::look(const std::function<void(CUstream)>& before_arrivals) {
    if (count_.load(std::memory_order_acquire) == 0) {
        return CUDA_SUCCESS;
    }
    MutexLock lock(mutex_);
    std::array<CUstream, 8> busy{};
    std::size_t busy_count = 0;
    CUresult worst = CUDA_SUCCESS;
    std::vector<Copy> ended;
    const auto now = steady_clock::now();
    std::erase_if(copies_, [&](Copy& copy) GANTRY_REQUIRES(mutex_) {
        const auto* end = busy.begin() + busy_count;
        if (busy_count == busy.size() || std::find(busy.cbegin(), end, copy.stream) != end) {
            return false;
        }
        const bool is_from_guest = copy.way == Way::kFromGuest;
        if (!is_from_guest && announced_) {
            return false;
        }
        const CUresult result = ask_locked(&copy, now);
        if (result == CUDA_ERROR_NOT_READY) {
            busy[busy_count++] = copy.stream;
            return false;
        }
        if (result == CUDA_SUCCESS || is_from_guest) {
            ended.push_back(copy);
        }
        worst = result != CUDA_SUCCESS ? result : worst;
        events_.keep(copy.event);
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
    MutexLock lock(mutex_);
    const bool is_in_flight = std::any_of(copies_.begin(), copies_.end(), [&](const Copy& copy) {
        return copy.position == position;
    });
    if (!is_in_flight) {
        show_locked(word, position);
    }
}

bool BulkBoard::is_pending(steady_clock::time_point now, std::chrono::microseconds patience) const {
    if (count_.load(std::memory_order_acquire) == 0) {
        return false;
    }
    const steady_clock::time_point last{steady_clock::duration(last_start_.load())};
    return now - last < patience;
}

}  // namespace gantry::worker
