// What generated marshalling in the guest shim needs besides the session. Libc only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "proto/cuda/handle_kinds.h"

namespace gantry::marshal {

/// True for the handle of a live object of this process, as far as the guest's own tables tell
/// (default streams are known; of kinds without a table every handle is). Takes no lock. Defined
/// by the shim: a command that nobody waits for must not carry a handle that the host will refuse,
/// because the error would come back with a later, innocent call.
bool is_known(cuda::HandleKind kind, std::uint64_t handle) noexcept;

/// Trailing bytes of a command with more than one item: each item padded to 8 bytes. Small ones
/// stay on the stack; failed() tells that memory ran out.
class TrailingBuffer {
public:
    TrailingBuffer() noexcept = default;
    TrailingBuffer(const TrailingBuffer&) = delete;
    TrailingBuffer& operator=(const TrailingBuffer&) = delete;
    ~TrailingBuffer() { std::free(heap_); }

    void append(const void* bytes, std::uint64_t count) noexcept {
        const std::uint64_t padded = (count + 7) & ~std::uint64_t{7};
        if (failed_ || count > kMostBytes || used_ + padded > kMostBytes || !grow(used_ + padded)) {
            failed_ = true;
            return;
        }
        std::byte* const target = data() + used_;
        if (count != 0) {
            std::memcpy(target, bytes, count);
        }
        std::memset(target + count, 0, padded - count);
        used_ += padded;
    }

    [[nodiscard]] bool failed() const noexcept { return failed_; }
    [[nodiscard]] const void* bytes() const noexcept { return heap_ != nullptr ? heap_ : inline_; }
    [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(used_); }

private:
    // More than any ring record carries; keeps sizes inside 32 bits.
    static constexpr std::uint64_t kMostBytes = 64u << 20;

    std::byte* data() noexcept { return heap_ != nullptr ? heap_ : inline_; }

    bool grow(std::uint64_t needed) noexcept {
        if (needed <= capacity_) {
            return true;
        }
        const std::uint64_t capacity = needed * 2;
        auto* const fresh = static_cast<std::byte*>(std::malloc(capacity));
        if (fresh == nullptr) {
            return false;
        }
        std::memcpy(fresh, data(), used_);
        std::free(heap_);
        heap_ = fresh;
        capacity_ = capacity;
        return true;
    }

    std::uint64_t used_ = 0;
    std::uint64_t capacity_ = sizeof inline_;
    std::byte* heap_ = nullptr;
    bool failed_ = false;
    alignas(8) std::byte inline_[1024];
};

}  // namespace gantry::marshal
