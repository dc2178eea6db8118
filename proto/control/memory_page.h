// The page in which the workers of one VM count their device memory, so that the VM's quota holds
// for all of them together. gantryd makes it, gives each worker a slot, and clears the slot when
// the worker has ended, however it did.
//
// A worker adds to its slot first and then looks at the sum: two at once may both be refused the
// last bytes, but together they never get more than the quota. A worker may lie here only at the
// expense of its own VM.
#pragma once

#include <atomic>
#include <cstdint>

namespace gantry::control {

struct MemoryPage {
    static constexpr std::uint32_t kSlots = 256;
    struct Slot {
        std::atomic<std::uint32_t> taken;  ///< gantryd's: 1 while a worker has it.
        std::uint32_t reserved;
        std::atomic<std::uint64_t> bytes;
    };
    Slot slots[kSlots];

    [[nodiscard]] std::uint64_t used_bytes() const {
        std::uint64_t sum = 0;
        for (const Slot& slot : slots) {
            sum += slot.bytes.load();
        }
        return sum;
    }
};
static_assert(sizeof(MemoryPage) == 4096 && std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace gantry::control
