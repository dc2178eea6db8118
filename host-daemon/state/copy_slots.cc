#include "host-daemon/state/copy_slots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

namespace gantry::state {
namespace {

/// What a thread makes pages of.
constexpr std::uint64_t kPartBytes = 4U << 20;
/// Away from where a driver takes device addresses, as every mapping of a worker's
/// (channel_memory.cc).
void* const kSlotsHint = reinterpret_cast<void*>(0x6500'0000'0000);

void populate(const Mapping& pages) {
    std::vector<std::jthread> helpers;
    for (std::uint64_t done = 0; done < pages.bytes(); done += kPartBytes) {
        const std::uint64_t bytes = std::min(kPartBytes, pages.bytes() - done);
        helpers.emplace_back([at = pages.at() + done, bytes] {
            ::madvise(at, bytes, MADV_POPULATE_WRITE);  // A hint only.
        });
    }
}

}  // namespace

std::unique_ptr<Mapping> CopySlots::make_pages(std::uint64_t bytes) {
    auto pages = std::make_unique<Mapping>(kSlotsHint, kCount * bytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages->at() == nullptr) {
        return nullptr;
    }
    populate(*pages);
    return pages;
}

Result<void> CopySlots::make(std::size_t count, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_ = bytes;
    if (memory_ && memory_->bytes() >= count * bytes) {
        return {};
    }
    end();
    if (pages_ && pages_->bytes() >= count * bytes) {
        memory_ = std::move(pages_);
    } else {
        pages_.reset();
        memory_ = std::make_unique<Mapping>(kSlotsHint, count * bytes, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory_->at() == nullptr) {
            memory_.reset();
            return Error{Code::kResourceExhausted, "state.file",
                         fmt::format("no memory to copy through: {}", std::strerror(errno))};
        }
        populate(*memory_);
    }
    process_.device.bind_thread();
    // Where it cannot be, the driver copies all the same, and more slowly.
    process_.device.api().cuMemHostRegister_v2(memory_->at(), memory_->bytes(),
                                               CU_MEMHOSTREGISTER_PORTABLE);
    return {};
}

void CopySlots::give_back() {
    const std::lock_guard lock(mutex_);
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
