#include "host-daemon/softgpu/memory/texture_table.h"

#include <algorithm>
#include <utility>

#include "host-daemon/softgpu/engine/reach.h"

namespace gantry::softgpu {

TextureTable& TextureTable::instance() {
    static auto* table = new TextureTable;
    return *table;
}

std::uint64_t TextureTable::add(std::shared_ptr<const Entry> entry, std::uint64_t wanted) {
    std::shared_ptr<const Entry> old;
    const std::uint64_t number = put(std::move(entry), wanted, old);
    if (old != nullptr) {
        Reach::await_kernels();  // One may have looked it up before it was removed.
    }
    return number;
}

std::uint64_t TextureTable::put(std::shared_ptr<const Entry> entry, std::uint64_t wanted,
                                std::shared_ptr<const Entry>& old) {
    const std::lock_guard lock(mutex_);
    std::uint64_t number = wanted;
    if (wanted == 0) {
        number = lowest_free_;
        while (number < kSlots && slots_[number].load() != nullptr) {
            ++number;
        }
        lowest_free_ = number + 1;
    }
    if (number >= kSlots || slots_[number].load() != nullptr) {
        return 0;
    }
    if (owners_.size() <= number) {
        owners_.resize(number + 1);
    }
    old = std::exchange(owners_[number], std::move(entry));
    slots_[number].store(owners_[number].get(), std::memory_order_release);
    return number;
}

bool TextureTable::remove(std::uint64_t handle, bool is_surface) {
    const std::lock_guard lock(mutex_);
    const Entry* entry = live(handle);
    if (entry == nullptr || entry->is_surface != is_surface) {
        return false;
    }
    slots_[handle].store(nullptr, std::memory_order_release);
    lowest_free_ = std::min(lowest_free_, handle);
    return true;
}

std::shared_ptr<const TextureTable::Entry> TextureTable::find(std::uint64_t handle,
                                                              bool is_surface) const {
    const std::lock_guard lock(mutex_);
    const Entry* entry = live(handle);
    return entry != nullptr && entry->is_surface == is_surface ? owners_[handle] : nullptr;
}

const TextureDescription* TextureTable::texture(std::uint64_t handle) const {
    const Entry* entry = live(handle);
    return entry != nullptr && !entry->is_surface ? &entry->texture : nullptr;
}

const SurfaceDescription* TextureTable::surface(std::uint64_t handle) const {
    const Entry* entry = live(handle);
    return entry != nullptr && entry->is_surface ? &entry->surface : nullptr;
}

}  // namespace gantry::softgpu
