// Mapping: a piece of address space for file_blocks.cc, of a file or of memory. Internal.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <utility>

#include "proto/snapshot/large_pages.h"

namespace gantry::state {

/// A mapping that ends with its owner. It begins where a large page can, also where others have
/// what the hint says: with pages of 4 KiB a file of 16 GiB takes three times as long to be read.
class Mapping {
public:
    Mapping(void* hint, std::uint64_t bytes, int protection, int flags, int file,
            std::uint64_t offset)
        : bytes_(bytes) {
        void* got = snapshot::map_aligned(file, offset, bytes, protection, flags, hint);
        at_ = got == MAP_FAILED ? nullptr : static_cast<std::byte*>(got);
        if (at_ != nullptr) {
            ::madvise(at_, bytes, MADV_HUGEPAGE);  // A hint only.
        }
    }
    ~Mapping() {
        if (at_ != nullptr) {
            ::munmap(at_, bytes_);
        }
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    [[nodiscard]] std::byte* at() const { return at_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    /// Ends it piece by piece, so that the process's other threads, which cannot map anything while
    /// one unmaps, wait for no more than a piece: all of 16 GiB takes 6 ms. Between two it naps:
    /// the kernel gives a thread that asks again at once its turn before those that wait.
    void end_in_pieces() {
        constexpr std::uint64_t kPieceBytes = 64U << 20;
        for (std::uint64_t done = 0; at_ != nullptr && done < bytes_; done += kPieceBytes) {
            ::munmap(at_ + done, std::min(kPieceBytes, bytes_ - done));
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
        at_ = nullptr;
    }
    /// Somebody else's from here on.
    std::span<std::byte> release() { return {std::exchange(at_, nullptr), bytes_}; }

private:
    std::byte* at_ = nullptr;
    std::uint64_t bytes_ = 0;
};

}  // namespace gantry::state
