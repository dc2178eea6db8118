#include "host-daemon/softgpu/streams/shared_event.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <mutex>
#include <thread>
#include <vector>

#include "host-daemon/softgpu/core/clock.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/peer_process.h"

namespace gantry::softgpu {

static_assert(sizeof(SharedEvent::Handle) == sizeof(CUipcEventHandle_v1));

/// All zeros: an event that nobody has made.
struct SharedEventPage {
    struct Slot {
        std::atomic<std::uint64_t> claim;  ///< The ticket's low half, then who recorded.
        std::atomic<std::uint64_t> done;   ///< The last ticket here that has come to pass.
    };
    std::atomic<std::uint64_t> serial;  ///< Of the event that the page is; 0: of none.
    std::atomic<std::uint64_t> newest;
    std::atomic<std::uint32_t> changes;  ///< The futex word: counts marks.
    std::atomic<std::uint32_t> waiters;
    std::atomic<std::uint32_t> openers;  ///< In other processes.
    std::uint32_t reserved[9];
    Slot slots[SharedEvent::kSlots];
};
static_assert(sizeof(SharedEventPage) == 16384);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

namespace {

constexpr std::uint64_t kPagesMax = 16384;
constexpr std::uint64_t kEventFileBytes = kPagesMax * sizeof(SharedEventPage);
constexpr char kEventsFileName[] = "gantry-soft-events";

/// A process's number and the low bits of its start: of two that share the number one is gone.
constexpr std::uint32_t kProcessBits = 22;  // The kernel has no larger numbers.
constexpr std::uint32_t kStartMask = (1u << (32 - kProcessBits)) - 1;

std::uint32_t name_of(std::int32_t process, std::uint64_t started) {
    return (static_cast<std::uint32_t>(started) & kStartMask) << kProcessBits |
           static_cast<std::uint32_t>(process);
}

std::uint32_t own_name() {
    static const std::uint32_t name = name_of(getpid(), own_start());
    return name;
}

bool is_gone(std::uint32_t name) {
    const auto process = static_cast<std::int32_t>(name & ((1u << kProcessBits) - 1));
    const auto started = process_start(process);
    return started && (*started == 0 || name_of(process, *started) != name);
}

bool is_of(std::uint64_t claim, std::uint64_t ticket) {
    return claim >> 32 == (ticket & UINT32_MAX);
}

template <typename T>
void raise_to(std::atomic<T>& word, T value) {
    T before = word.load();
    while (before < value && !word.compare_exchange_weak(before, value)) {
    }
}

/// Not the private kind: the word's other users are other processes.
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
    const auto ns = std::chrono::nanoseconds(SharedEvent::kLookEvery).count();
    const timespec most{ns / 1'000'000'000, ns % 1'000'000'000};
    syscall(SYS_futex, &word, FUTEX_WAIT, seen, &most, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

SharedEventPage* map_pages(int file, std::uint64_t offset, std::uint64_t bytes) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file,
                        static_cast<off_t>(offset));
    return mapped != MAP_FAILED ? static_cast<SharedEventPage*>(mapped) : nullptr;
}

/// The pages of this process's own events.
class EventFile {
public:
    static EventFile& instance() {
        static auto* file = new EventFile;  // Driver threads may outlive exit().
        return *file;
    }

    SharedEventPage* take(std::uint64_t* index) {
        const std::lock_guard lock(mutex_);
        if (pages_ == nullptr && !make()) {
            return nullptr;
        }
        // What others still had open when it was given back, and by now have not.
        const auto left = std::find_if(left_.begin(), left_.end(), [this](std::uint64_t each) {
            return pages_[each].openers.load() == 0;
        });
        if (left != left_.end()) {
            *index = *left;
            left_.erase(left);
            clear(pages_[*index]);
        } else if (used_ < kPagesMax) {
            *index = used_++;
        } else {
            return nullptr;
        }
        pages_[*index].serial.store(next_serial_++);
        return &pages_[*index];
    }

    void give_back(std::uint64_t index) {
        const std::lock_guard lock(mutex_);
        pages_[index].serial.store(0);  // First: whoever opens it now will see that.
        left_.push_back(index);
    }

    [[nodiscard]] int descriptor() const { return file_; }

private:
    bool make() {
        file_ = memfd_create(kEventsFileName, MFD_CLOEXEC);
        if (file_ < 0) {
            return false;
        }
        pages_ = ftruncate(file_, static_cast<off_t>(kEventFileBytes)) == 0
                     ? map_pages(file_, 0, kEventFileBytes)
                     : nullptr;
        if (pages_ == nullptr) {
            close(file_);
            return false;
        }
        return true;
    }

    /// The openers' count stays: one that came too late may be about to take itself off it.
    static void clear(SharedEventPage& page) {
        page.newest.store(0);
        for (SharedEventPage::Slot& slot : page.slots) {
            slot.claim.store(0);
            slot.done.store(0);
        }
    }

    std::mutex mutex_;
    int file_ = -1;
    SharedEventPage* pages_ = nullptr;
    std::uint64_t used_ = 0;
    std::uint64_t next_serial_ = 1;
    std::vector<std::uint64_t> left_;
};

}  // namespace

std::shared_ptr<SharedEvent> SharedEvent::create() {
    std::uint64_t index = 0;
    SharedEventPage* page = EventFile::instance().take(&index);
    return page != nullptr ? std::shared_ptr<SharedEvent>(new SharedEvent(page, index, true))
                           : nullptr;
}

CUresult SharedEvent::open(const Handle& handle, std::shared_ptr<SharedEvent>& event) {
    if (handle.magic != Handle::kMagic || handle.process <= 0 || handle.file < 0 ||
        handle.index >= kPagesMax || handle.serial == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    GANTRY_REFUSE_IF(handle.process == getpid(), CUDA_ERROR_INVALID_CONTEXT);
    const int file = open_peer_file(handle.process, handle.started, handle.file, kEventsFileName);
    GANTRY_REFUSE_IF(file < 0, CUDA_ERROR_INVALID_VALUE);
    SharedEventPage* page =
        map_pages(file, handle.index * sizeof(SharedEventPage), sizeof(SharedEventPage));
    close(file);
    GANTRY_REFUSE_IF(page == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    page->openers.fetch_add(1);
    event.reset(new SharedEvent(page, handle.index, false));
    if (page->serial.load() != handle.serial) {
        event.reset();
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

SharedEvent::~SharedEvent() {
    if (is_own_) {
        EventFile::instance().give_back(index_);
    } else {
        page_->openers.fetch_sub(1);
        munmap(page_, sizeof(*page_));
    }
}

SharedEvent::Handle SharedEvent::handle() const {
    Handle handle;
    handle.process = getpid();
    handle.started = own_start();
    handle.file = EventFile::instance().descriptor();
    handle.index = index_;
    handle.serial = page_->serial.load();
    return handle;
}

std::uint64_t SharedEvent::newest() const { return page_->newest.load(); }

std::uint64_t SharedEvent::begin_record() {
    for (;;) {
        const std::uint64_t ticket = page_->newest.load() + 1;
        SharedEventPage::Slot& slot = page_->slots[ticket % kSlots];
        std::uint64_t claim = slot.claim.load();
        if (!is_of(claim, ticket)) {
            if (ticket > kSlots && !has_ended(ticket - kSlots)) {
                wait(ticket - kSlots);
                if (poison() != CUDA_SUCCESS) {
                    return 0;
                }
                continue;
            }
            if (slot.claim.compare_exchange_strong(claim, ticket << 32 | own_name())) {
                raise_to(page_->newest, ticket);
                return ticket;
            }
        }
        raise_to(page_->newest, ticket);  // Somebody else's, who may not have come to it.
    }
}

void SharedEvent::end_record(std::uint64_t ticket) {
    if (ticket == 0) {
        return;
    }
    raise_to(page_->slots[ticket % kSlots].done, ticket);
    page_->changes.fetch_add(1);
    if (page_->waiters.load() != 0) {
        wake_all(page_->changes);
    }
}

bool SharedEvent::is_marked(std::uint64_t ticket) const {
    return page_->slots[ticket % kSlots].done.load() >= ticket;
}

bool SharedEvent::has_ended(std::uint64_t ticket) {
    if (is_marked(ticket)) {
        return true;
    }
    const std::int64_t now = now_ns();
    std::int64_t looked = looked_ns_.load();
    if (now - looked < std::chrono::nanoseconds(kLookEvery).count() ||
        !looked_ns_.compare_exchange_strong(looked, now)) {
        return false;
    }
    const std::uint64_t claim = page_->slots[ticket % kSlots].claim.load();
    const auto name = static_cast<std::uint32_t>(claim);
    if (!is_of(claim, ticket) || name == own_name() || !is_gone(name)) {
        return is_marked(ticket);
    }
    end_record(ticket);
    return true;
}

void SharedEvent::wait(std::uint64_t ticket) {
    // A short look first: it may end before a sleeper would have been woken.
    for (int look = 0; look < 64; ++look) {
        if (is_marked(ticket)) {
            return;
        }
        std::this_thread::yield();
    }
    while (!has_ended(ticket) && poison() == CUDA_SUCCESS) {
        page_->waiters.fetch_add(1);
        const std::uint32_t seen = page_->changes.load();
        if (!is_marked(ticket)) {
            sleep_on(page_->changes, seen);
        }
        page_->waiters.fetch_sub(1);
    }
}

}  // namespace gantry::softgpu
