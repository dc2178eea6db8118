#include "host-daemon/softgpu/memory/map.h"

#include <mutex>

#include "host-daemon/softgpu/memory/kernel_reach.h"

namespace gantry::softgpu {

namespace {

/// Memory that kernels may touch exactly as long as it is in the map. Other kinds are mapped in
/// larger units, which whoever maps them makes known.
bool is_reach(const MemoryRange& range) {
    return range.on_host() || range.kind == MemoryKind::kImported;
}

/// Page-locked memory is whole pages, whatever was asked for.
std::uint64_t reach_bytes(const MemoryRange& range) {
    constexpr std::uint64_t kPage = 4096;
    return range.kind == MemoryKind::kPinned ? (range.bytes + kPage - 1) / kPage * kPage
                                             : range.bytes;
}

}  // namespace

MemoryMap& MemoryMap::instance() {
    static auto* map = new MemoryMap;
    return *map;
}

MemoryMap::Ranges::const_iterator MemoryMap::locate(std::uint64_t address) const {
    auto at = ranges_.upper_bound(address);
    if (at == ranges_.begin()) {
        return ranges_.end();
    }
    --at;
    return address - at->second.base < at->second.bytes ? at : ranges_.end();
}

bool MemoryMap::insert(MemoryRange range) {
    const std::unique_lock lock(mutex_);
    const auto next = ranges_.lower_bound(range.base);
    const bool hits_next = next != ranges_.end() && next->first < range.end();
    const bool hits_previous =
        next != ranges_.begin() && std::prev(next)->second.end() > range.base;
    if (hits_next || hits_previous || range.bytes == 0 || range.end() < range.base) {
        return false;
    }
    range.id = next_id_++;
    if (is_reach(range)) {
        kernel_reach().add(range.base, reach_bytes(range));
    }
    ranges_.emplace(range.base, std::move(range));
    return true;
}

std::optional<MemoryRange> MemoryMap::find(std::uint64_t address) const {
    const std::shared_lock lock(mutex_);
    const auto at = locate(address);
    return at == ranges_.end() ? std::nullopt : std::optional(at->second);
}

std::optional<MemoryRange> MemoryMap::erase(std::uint64_t base, MemoryKind kind) {
    const std::unique_lock lock(mutex_);
    const auto at = ranges_.find(base);
    if (at == ranges_.end() || at->second.kind != kind) {
        return std::nullopt;
    }
    MemoryRange range = std::move(at->second);
    ranges_.erase(at);
    if (is_reach(range)) {
        kernel_reach().remove(range.base, reach_bytes(range));
    }
    return range;
}

bool MemoryMap::covers(std::uint64_t address, std::uint64_t bytes) const {
    const std::shared_lock lock(mutex_);
    if (address + bytes < address) {
        return false;
    }
    std::uint64_t at = address;
    const std::uint64_t end = address + bytes;
    do {
        const auto range = locate(at);
        if (range == ranges_.end()) {
            return false;
        }
        at = range->second.end();
    } while (at < end);
    return true;
}

bool MemoryMap::touches(std::uint64_t address, std::uint64_t bytes) const {
    const std::shared_lock lock(mutex_);
    if (locate(address) != ranges_.end()) {
        return true;
    }
    const auto next = ranges_.lower_bound(address);
    return next != ranges_.end() && next->first - address < bytes;
}

std::vector<MemoryRange> MemoryMap::list(MemoryKind kind) const {
    const std::shared_lock lock(mutex_);
    std::vector<MemoryRange> result;
    for (const auto& [base, range] : ranges_) {
        if (range.kind == kind) {
            result.push_back(range);
        }
    }
    return result;
}

}  // namespace gantry::softgpu
