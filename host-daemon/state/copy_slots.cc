#include "host-daemon/state/copy_slots.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

namespace gantry::state {
namespace {

/// What a thread makes pages of.
constexpr std::uint64_t kPartBytes = 8U << 20;
static_assert(CopySlots::kBytes % kPartBytes == 0);
/// Away from where a driver takes device addresses, as every mapping of a worker's
/// (channel_memory.cc).
void* const kSlotsHint = reinterpret_cast<void*>(0x6500'0000'0000);

}  // namespace

Result<void> CopySlots::make(std::size_t count) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t bytes = count * kBytes;
    if (memory_ && memory_->bytes() >= bytes) {
        return {};
    }
    end();
    memory_.emplace(kSlotsHint, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_->at() == nullptr) {
        memory_.reset();
        return Error{Code::kResourceExhausted, "state.file",
                     fmt::format("no memory to copy through: {}", std::strerror(errno))};
    }
    {
        std::vector<std::jthread> helpers;
        for (std::uint64_t done = 0; done < bytes; done += kPartBytes) {
            helpers.emplace_back([at = memory_->at() + done] {
                ::madvise(at, kPartBytes, MADV_POPULATE_WRITE);  // A hint only.
            });
        }
    }
    process_.device.bind_thread();
    // Where it cannot be, the driver copies all the same, and more slowly.
    process_.device.api().cuMemHostRegister_v2(memory_->at(), bytes, CU_MEMHOSTREGISTER_PORTABLE);
    return {};
}

void CopySlots::give_back() {
    const std::lock_guard lock(mutex_);
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
