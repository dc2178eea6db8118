#include "host-daemon/supervisor/workers/memory_slot.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "proto/base/mutex.h"

namespace gantry::supervisor {
namespace {

using control::MemoryPage;

Mutex g_mutex;  // Claiming, clearing and removing a page.

Error page_error(const std::string& path, const char* what) {
    return Error{Code::kUnavailable, "memory.page",
                 std::string("cannot ") + what + " " + path + ": " + std::strerror(errno)};
}

/// Read and written, never mapped: a worker may cut the file.
bool is_taken(int file, std::uint32_t index) {
    std::uint32_t taken = 0;
    const auto at =
        static_cast<off_t>(index * sizeof(MemoryPage::Slot) + offsetof(MemoryPage::Slot, taken));
    return ::pread(file, &taken, sizeof(taken), at) == sizeof(taken) && taken != 0;
}

/// Of no bytes.
bool write_slot(int file, std::uint32_t index, bool is_taken) {
    std::byte slot[sizeof(MemoryPage::Slot)]{};
    const std::uint32_t taken = is_taken ? 1 : 0;
    std::memcpy(slot + offsetof(MemoryPage::Slot, taken), &taken, sizeof(taken));
    return ::pwrite(file, slot, sizeof(slot), static_cast<off_t>(index * sizeof(slot))) ==
           sizeof(slot);
}

bool has_taken(int file) {
    for (std::uint32_t i = 0; i < MemoryPage::kSlots; ++i) {
        if (is_taken(file, i)) {
            return true;
        }
    }
    return false;
}

}  // namespace

Result<MemorySlot> MemorySlot::open(const std::string& path, bool create) {
    MemorySlot slot;
    slot.path_ = path;
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0);
    slot.file_ = control::UniqueFd(::open(path.c_str(), flags, 0600));
    if (!slot.file_.valid() || (create && ::ftruncate(slot.file_.get(), sizeof(MemoryPage)) != 0)) {
        return page_error(path, "open");
    }
    return slot;
}

Result<MemorySlot> MemorySlot::claim(const std::string& path) {
    const MutexLock lock(g_mutex);
    GANTRY_ASSIGN(MemorySlot slot, open(path, true));
    for (std::uint32_t i = 0; i < MemoryPage::kSlots; ++i) {
        if (!is_taken(slot.file_.get(), i)) {
            if (!write_slot(slot.file_.get(), i, true)) {
                return page_error(path, "write");
            }
            slot.index_ = i;
            return slot;
        }
    }
    return Error{Code::kResourceExhausted, "memory.page",
                 "every slot of " + path + " is taken: the session has too many workers"};
}

Result<MemorySlot> MemorySlot::adopt(const std::string& path, std::uint32_t index) {
    GANTRY_ASSIGN(MemorySlot slot, open(path, false));
    if (index >= MemoryPage::kSlots) {
        return Error{Code::kDataLoss, "record.corrupt", "a worker's record names no slot"};
    }
    slot.index_ = index;
    return slot;
}

void MemorySlot::release() {
    const MutexLock lock(g_mutex);
    const control::UniqueFd file = std::exchange(file_, control::UniqueFd());
    if (!file.valid()) {
        return;
    }
    (void)write_slot(file.get(), index_, false);
    if (!has_taken(file.get())) {
        ::unlink(path_.c_str());
    }
}

}  // namespace gantry::supervisor
