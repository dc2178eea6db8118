// Objects that the guest knows by handle. Look-up takes no lock: a slot's memory stays valid for
// the life of the process, and its handle changes with every new owner (handle_bits.h). Creating
// and destroying take a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "guest-shim/session/base/futex_mutex.h"
#include "proto/cuda/handle_bits.h"

namespace gantry::shim {

template <typename T>
class SlotTable {
public:
    /// A new object, value-initialised; null when memory or slots are out.
    T* create(cuda::HandleKind kind, std::uint64_t* handle) noexcept {
        session::Guard guard(mutex_);
        Slot* slot = free_;
        std::uint64_t index = 0;
        if (slot != nullptr) {
            free_ = slot->next_free;
            index = slot->index;
        } else {
            index = count_.load(std::memory_order_relaxed);
            if (index == kChunks * kPerChunk) {
                return nullptr;
            }
            slot = slot_at(index);
            if (slot == nullptr) {
                return nullptr;
            }
            slot->index = index;
            count_.store(index + 1, std::memory_order_release);
        }
        slot->generation = slot->generation % kLastGeneration + 1;
        new (&slot->value) T{};
        const std::uint64_t name = cuda::slot_handle(kind, slot->generation, index);
        slot->handle.store(name, std::memory_order_release);
        *handle = name;
        return &slot->value;
    }

    /// The object, or null for anything that is not the handle of a live one.
    T* find(std::uint64_t handle) noexcept {
        const std::uint64_t index = cuda::handle_slot(handle);
        Slot* chunk = chunks_[index / kPerChunk].load(std::memory_order_acquire);
        if (chunk == nullptr) {
            return nullptr;
        }
        Slot& slot = chunk[index % kPerChunk];
        return slot.handle.load(std::memory_order_acquire) == handle && handle != 0 ? &slot.value
                                                                                    : nullptr;
    }

    /// False when the handle was not (or no longer) live: of two that destroy, one wins.
    bool destroy(std::uint64_t handle) noexcept {
        if (find(handle) == nullptr) {
            return false;
        }
        session::Guard guard(mutex_);
        const std::uint64_t index = cuda::handle_slot(handle);
        Slot& slot = chunks_[index / kPerChunk].load(std::memory_order_relaxed)[index % kPerChunk];
        std::uint64_t expected = handle;
        if (!slot.handle.compare_exchange_strong(expected, 0)) {
            return false;
        }
        slot.next_free = free_;
        free_ = &slot;
        return true;
    }

    /// Calls visit(handle, object) for each live object. Objects made meanwhile may be missed.
    template <typename Visitor>
    void for_each(Visitor visit) noexcept {
        const std::uint64_t count = count_.load(std::memory_order_acquire);
        for (std::uint64_t index = 0; index < count; ++index) {
            Slot& slot =
                chunks_[index / kPerChunk].load(std::memory_order_acquire)[index % kPerChunk];
            const std::uint64_t handle = slot.handle.load(std::memory_order_acquire);
            if (handle != 0) {
                visit(handle, &slot.value);
            }
        }
    }

private:
    static constexpr std::uint64_t kPerChunk = 1024;
    static constexpr std::uint64_t kChunks = cuda::kHandleSlots / kPerChunk;
    static constexpr std::uint32_t kLastGeneration = cuda::kHandleGenerations - 1;

    struct Slot {
        std::atomic<std::uint64_t> handle;
        std::uint64_t index;
        std::uint32_t generation;
        Slot* next_free;
        T value;
    };

    Slot* slot_at(std::uint64_t index) noexcept GANTRY_REQUIRES(mutex_) {
        std::atomic<Slot*>& chunk = chunks_[index / kPerChunk];
        if (chunk.load(std::memory_order_relaxed) == nullptr) {
            void* memory = std::calloc(kPerChunk, sizeof(Slot));
            if (memory == nullptr) {
                return nullptr;
            }
            chunk.store(static_cast<Slot*>(memory), std::memory_order_release);
        }
        return chunk.load(std::memory_order_relaxed) + index % kPerChunk;
    }

    session::FutexMutex mutex_;
    std::atomic<std::uint64_t> count_{0};  ///< Changed with the mutex.
    Slot* free_ GANTRY_GUARDED_BY(mutex_) = nullptr;
    std::atomic<Slot*> chunks_[kChunks] = {};
};

}  // namespace gantry::shim
