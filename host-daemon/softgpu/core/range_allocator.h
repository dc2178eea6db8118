// First-fit allocator over a span of numbers (addresses, file offsets); holds no memory itself.
// Not thread-safe: its owner locks. Cost: linear in the number of holes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace gantry::softgpu {

class RangeAllocator {
public:
    RangeAllocator(std::uint64_t base, std::uint64_t bytes) { holes_[base] = bytes; }

    /// A range of `bytes` at a multiple of `align` (a power of two), lowest address first.
    std::optional<std::uint64_t> allocate(std::uint64_t bytes, std::uint64_t align) {
        for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
            const std::uint64_t start = (hole->first + align - 1) & ~(align - 1);
            const std::uint64_t end = hole->first + hole->second;
            if (start >= end || end - start < bytes) {
                continue;
            }
            carve(hole, start, bytes);
            return start;
        }
        return std::nullopt;
    }

    /// Takes exactly this range; false when part of it is in use or outside.
    bool allocate_at(std::uint64_t start, std::uint64_t bytes) {
        auto hole = holes_.upper_bound(start);
        if (hole == holes_.begin()) {
            return false;
        }
        --hole;
        if (start - hole->first > hole->second || hole->second - (start - hole->first) < bytes) {
            return false;
        }
        carve(hole, start, bytes);
        return true;
    }

    void free(std::uint64_t start, std::uint64_t bytes) {
        auto next = holes_.lower_bound(start);
        if (next != holes_.end() && start + bytes == next->first) {
            bytes += next->second;
            next = holes_.erase(next);
        }
        if (next != holes_.begin()) {
            auto previous = std::prev(next);
            if (previous->first + previous->second == start) {
                previous->second += bytes;
                return;
            }
        }
        holes_[start] = bytes;
    }

    /// True when nothing is allocated from a span of this size.
    [[nodiscard]] bool is_whole(std::uint64_t bytes) const {
        return holes_.size() == 1 && holes_.begin()->second == bytes;
    }

private:
    using Holes = std::map<std::uint64_t, std::uint64_t>;

    void carve(Holes::iterator hole, std::uint64_t start, std::uint64_t bytes) {
        const std::uint64_t hole_start = hole->first;
        const std::uint64_t hole_end = hole->first + hole->second;
        holes_.erase(hole);
        if (start > hole_start) {
            holes_[hole_start] = start - hole_start;
        }
        if (start + bytes < hole_end) {
            holes_[start + bytes] = hole_end - start - bytes;
        }
    }

    Holes holes_;
};

}  // namespace gantry::softgpu
