#include <cstring>

#include "guest-shim/session/connection.h"

namespace gantry::session {

// No other thread uses it yet.
void BulkArea::attach(std::byte* base,
                      std::uint64_t bytes) noexcept GANTRY_NO_THREAD_SAFETY_ANALYSIS {
    base_ = base;
    bytes_ = bytes;
    std::memset(used_, 0, sizeof(used_));
}

bool BulkArea::try_allocate(std::uint32_t pages, std::uint32_t* first) noexcept {
    const auto total = static_cast<std::uint32_t>(bytes_ / wire::kPageBytes);
    Guard guard(mutex_);
    std::uint32_t run = 0;
    for (std::uint32_t page = 0; page < total; ++page) {
        run = used_[page] ? 0 : run + 1;
        if (run == pages) {
            *first = page + 1 - pages;
            std::memset(used_ + *first, 1, pages);
            return true;
        }
    }
    return false;
}

bool BulkArea::allocate(std::uint32_t pages, std::uint32_t* first) noexcept {
    if (pages == 0 || pages > bytes_ / wire::kPageBytes) {
        return false;
    }
    wire::Backoff backoff;
    while (!try_allocate(pages, first)) {
        if (gate() != CUDA_SUCCESS) {
            return false;
        }
        backoff.pause();
    }
    return true;
}

void BulkArea::free(std::uint32_t first, std::uint32_t pages) noexcept {
    Guard guard(mutex_);
    std::memset(used_ + first, 0, pages);
}

}  // namespace gantry::session
