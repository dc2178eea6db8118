#include "host-daemon/softgpu/memory/map.h"

#include <mutex>

namespace gantry::softgpu {

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
