#include "guest-shim/session/outbox.h"

namespace gantry::session {
namespace {

std::uint64_t bits_from(std::uint32_t first, std::uint32_t count) {
    return (count >= 64 ? ~0ull : (1ull << count) - 1) << first;
}

}  // namespace

// No other thread uses it yet.
void Outbox::attach(std::byte* base, std::uint64_t bulk_offset, std::uint64_t bytes,
                    wire::HostWords* host) noexcept GANTRY_NO_THREAD_SAFETY_ANALYSIS {
    base_ = base;
    bulk_offset_ = bulk_offset;
    cell_bytes_ = bytes / kCells;
    host_ = host;
    used_ = 0;
    lent_ = 0;
}

std::uint64_t Outbox::mask_of(std::uint32_t first) const { return bits_from(first, cells_[first]); }

void Outbox::collect_locked() noexcept {
    for (std::uint64_t left = lent_; left != 0; left &= left - 1) {
        const auto first = static_cast<std::uint32_t>(__builtin_ctzll(left));
        if (host_->bulk_done[first].load(std::memory_order_acquire) == positions_[first] + 1) {
            lent_ &= ~(1ull << first);
            used_ &= ~mask_of(first);
            returned_.fetch_add(1, std::memory_order_relaxed);
        }
    }
}

bool Outbox::take(std::uint64_t bytes, std::uint32_t* first) noexcept {
    const std::uint64_t count = (bytes + cell_bytes_ - 1) / cell_bytes_;
    if (count == 0 || count > kCells) {
        return false;
    }
    const auto cells = static_cast<std::uint32_t>(count);
    Guard guard(mutex_);
    collect_locked();
    for (std::uint32_t cell = 0; cell + cells <= kCells; ++cell) {
        if ((used_ & bits_from(cell, cells)) == 0) {
            used_ |= bits_from(cell, cells);
            cells_[cell] = cells;
            *first = cell;
            return true;
        }
    }
    return false;
}

void Outbox::lend(std::uint32_t first, std::uint64_t position) noexcept {
    Guard guard(mutex_);
    positions_[first] = position;
    epochs_[first] = host_->epoch.load(std::memory_order_acquire);
    lent_ |= 1ull << first;
}

void Outbox::put_back(std::uint32_t first) noexcept {
    Guard guard(mutex_);
    used_ &= ~mask_of(first);
}

bool Outbox::next_unsure(std::uint32_t* first, std::uint64_t* position) noexcept {
    const std::uint64_t epoch = host_->epoch.load(std::memory_order_acquire);
    Guard guard(mutex_);
    for (std::uint64_t left = lent_; left != 0; left &= left - 1) {
        const auto cell = static_cast<std::uint32_t>(__builtin_ctzll(left));
        if (epochs_[cell] != epoch) {
            epochs_[cell] = epoch;
            *first = cell;
            *position = positions_[cell];
            return true;
        }
    }
    return false;
}

}  // namespace gantry::session
