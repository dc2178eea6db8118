#include "host-daemon/supervisor/memory_slot.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

namespace gantry::supervisor {
namespace {

std::mutex g_mutex;  // Claiming, clearing and removing a page.

Error page_error(const std::string& path, const char* what) {
    return Error{Code::kUnavailable, "memory.page",
                 std::string("cannot ") + what + " " + path + ": " + std::strerror(errno)};
}

}  // namespace

MemorySlot::~MemorySlot() { unmap(); }

MemorySlot::MemorySlot(MemorySlot&& other) noexcept { *this = std::move(other); }

MemorySlot& MemorySlot::operator=(MemorySlot&& other) noexcept {
    if (this != &other) {
        unmap();
        path_ = std::move(other.path_);
        file_ = std::move(other.file_);
        page_ = std::exchange(other.page_, nullptr);
        index_ = other.index_;
    }
    return *this;
}

void MemorySlot::unmap() {
    if (page_ != nullptr) {
        munmap(page_, sizeof(*page_));
        page_ = nullptr;
    }
}

Result<MemorySlot> MemorySlot::open(const std::string& path, bool create) {
    MemorySlot slot;
    slot.path_ = path;
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0);
    slot.file_ = control::UniqueFd(::open(path.c_str(), flags, 0600));
    if (!slot.file_.valid() ||
        (create && ::ftruncate(slot.file_.get(), sizeof(control::MemoryPage)) != 0)) {
        return page_error(path, "open");
    }
    void* mapped = mmap(nullptr, sizeof(control::MemoryPage), PROT_READ | PROT_WRITE, MAP_SHARED,
                        slot.file_.get(), 0);
    if (mapped == MAP_FAILED) {
        return page_error(path, "map");
    }
    slot.page_ = static_cast<control::MemoryPage*>(mapped);
    return slot;
}

Result<MemorySlot> MemorySlot::claim(const std::string& path) {
    const std::lock_guard lock(g_mutex);
    GANTRY_ASSIGN(MemorySlot slot, open(path, true));
    for (std::uint32_t i = 0; i < control::MemoryPage::kSlots; ++i) {
        if (slot.page_->slots[i].taken.exchange(1) == 0) {
            slot.page_->slots[i].bytes.store(0);
            slot.index_ = i;
            return slot;
        }
    }
    return Error{Code::kResourceExhausted, "memory.page",
                 "every slot of " + path + " is taken: the session has too many workers"};
}

Result<MemorySlot> MemorySlot::adopt(const std::string& path, std::uint32_t index) {
    GANTRY_ASSIGN(MemorySlot slot, open(path, false));
    if (index >= control::MemoryPage::kSlots) {
        return Error{Code::kDataLoss, "record.corrupt", "a worker's record names no slot"};
    }
    slot.index_ = index;
    return slot;
}

void MemorySlot::release() {
    if (page_ == nullptr) {
        return;
    }
    const std::lock_guard lock(g_mutex);
    page_->slots[index_].bytes.store(0);
    page_->slots[index_].taken.store(0);
    const bool last = std::all_of(std::begin(page_->slots), std::end(page_->slots),
                                  [](const auto& slot) { return slot.taken.load() == 0; });
    if (last) {
        ::unlink(path_.c_str());
    }
    unmap();
}

}  // namespace gantry::supervisor
