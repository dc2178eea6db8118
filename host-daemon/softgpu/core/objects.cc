#include "host-daemon/softgpu/core/objects.h"

#include <sys/mman.h>

#include <deque>
#include <mutex>
#include <new>

#include "proto/base/assert.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kSlotCount = std::uint64_t{1} << 24;
constexpr std::size_t kReuseDistance = 1024;  ///< A freed handle stays invalid for a while.

}  // namespace

struct alignas(64) HandleTable::Slot {
    std::atomic_flag lock;
    std::shared_ptr<Object> object;

    void enter() {
        while (lock.test_and_set(std::memory_order_acquire)) {
        }
    }
    void leave() { lock.clear(std::memory_order_release); }
};

struct HandleTable::FreeList {
    std::mutex mutex;
    std::deque<Slot*> slots;
};

HandleTable& HandleTable::instance() {
    static auto* table = new HandleTable;  // Never destroyed: threads may outlive exit().
    return *table;
}

HandleTable::HandleTable() : free_(new FreeList) {
    void* region = mmap(nullptr, kSlotCount * sizeof(Slot), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    GANTRY_ASSERT(region != MAP_FAILED, "no address space for %lu handles", kSlotCount);
    slots_ = static_cast<Slot*>(region);
}

HandleTable::Slot* HandleTable::slot_of(const void* handle) const {
    const auto at = reinterpret_cast<std::uintptr_t>(handle);
    const auto base = reinterpret_cast<std::uintptr_t>(slots_);
    const std::uint64_t index = (at - base) / sizeof(Slot);
    if (at < base || (at - base) % sizeof(Slot) != 0 ||
        index >= used_.load(std::memory_order_acquire)) {
        return nullptr;
    }
    return slots_ + index;
}

void* HandleTable::publish(const std::shared_ptr<Object>& object) {
    Slot* slot = nullptr;
    {
        const std::lock_guard lock(free_->mutex);
        if (free_->slots.size() > kReuseDistance) {
            slot = free_->slots.front();
            free_->slots.pop_front();
        } else {
            const std::uint64_t index = used_.load(std::memory_order_relaxed);
            GANTRY_ASSERT(index < kSlotCount, "%lu handles in use", index);
            slot = new (slots_ + index) Slot;
            used_.store(index + 1, std::memory_order_release);
        }
    }
    object->handle_ = slot;
    slot->enter();
    slot->object = object;
    slot->leave();
    return slot;
}

bool HandleTable::retract(const Object& object) {
    Slot* slot = slot_of(object.handle());
    if (slot == nullptr) {
        return false;
    }
    std::shared_ptr<Object> held;  // Destroyed after the slot's lock is released.
    slot->enter();
    if (slot->object.get() == &object) {  // Else the slot has long been another's.
        held.swap(slot->object);
    }
    slot->leave();
    if (held == nullptr) {
        return false;
    }
    const std::lock_guard lock(free_->mutex);
    free_->slots.push_back(slot);
    return true;
}

std::shared_ptr<Object> HandleTable::find(const void* handle, ObjectKind kind) {
    Slot* slot = slot_of(handle);
    if (slot == nullptr) {
        return nullptr;
    }
    slot->enter();
    std::shared_ptr<Object> object =
        slot->object != nullptr && slot->object->kind() == kind ? slot->object : nullptr;
    slot->leave();
    return object;
}

ObjectKind HandleTable::kind_of(const void* handle) {
    Slot* slot = slot_of(handle);
    if (slot == nullptr) {
        return ObjectKind::kNone;
    }
    slot->enter();
    const ObjectKind kind = slot->object != nullptr ? slot->object->kind() : ObjectKind::kNone;
    slot->leave();
    return kind;
}

}  // namespace gantry::softgpu
