#include "host-daemon/state/blocks/copy_slots.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "proto/snapshot/large_pages.h"

namespace gantry::state {
namespace {

/// Away from where a driver takes device addresses, as every mapping of a worker's
/// (channel_memory.cc).
void* const kSlotsHint = reinterpret_cast<void*>(0x6500'0000'0000);

/// Null, with errno: there is no memory.
std::unique_ptr<Mapping> pages_of(std::uint64_t bytes) {
    auto pages = std::make_unique<Mapping>(kSlotsHint, bytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages->at() == nullptr) {
        return nullptr;
    }
    const snapshot::PagesAhead made(pages->at(), pages->bytes());  // Waited for at once.
    return pages;
}

}  // namespace

std::unique_ptr<Mapping> CopySlots::make_pages(std::uint64_t bytes) {
    return pages_of(kCount * bytes);
}

Result<void> CopySlots::make(std::size_t count, std::uint64_t bytes) {
    const MutexLock lock(mutex_);
    bytes_ = bytes;
    if (memory_ && memory_->bytes() >= count * bytes) {
        return {};
    }
    end();
    if (pages_ && pages_->bytes() >= count * bytes) {
        memory_ = std::move(pages_);
    } else {
        pages_.reset();
        memory_ = pages_of(count * bytes);
        if (memory_ == nullptr) {
            return Error{Code::kResourceExhausted, "state.file",
                         fmt::format("no memory to copy through: {}", std::strerror(errno))};
        }
    }
    process_.device.bind_thread();
    // Where it cannot be, the driver copies all the same, and more slowly.
    process_.device.api().cuMemHostRegister_v2(memory_->at(), memory_->bytes(),
                                               CU_MEMHOSTREGISTER_PORTABLE);
    return {};
}

void CopySlots::give_back() {
    const MutexLock lock(mutex_);
    pages_.reset();
    if (!process_.held.active()) {
        end();
    }
}

void CopySlots::end() {
    if (memory_ && process_.held.active()) {
        (void)memory_->release();
    } else if (memory_) {
        process_.device.bind_thread();
        process_.device.api().cuMemHostUnregister(memory_->at());  // Refused if it never was.
    }
    memory_.reset();
}

CopySlots::~CopySlots() { end(); }

}  // namespace gantry::state
