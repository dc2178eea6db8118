// CopySlots: page-locked memory of this process through which chunks of a file and of the device's
// memory go (file_transfer.cc): the device fills or empties one slot while the CPU does another.
//
// They are large, since the device's engine rests for some 3 us after each copy (2 MiB at a time it
// reaches 0.93 of the link's rate, 16 MiB at a time 0.99), and few, so that they stay in the CPU's
// caches: then what goes through them is read from memory, or written there, once only. A load's
// are smaller, so that they fit the caches of the cores themselves
// (proto/decisions/0004-snapshot-copies.md).
// Threads: any. Failure: `state.file`. Cost: to make them takes 6 to 20 ms, of which the driver is
// held up for 1 to 3. A worker that waits for its restore has the pages ready (make_pages()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "host-daemon/execution/process/guest_process.h"
#include "host-daemon/state/blocks/file_mapping.h"
#include "proto/base/mutex.h"

namespace gantry::state {

class CopySlots {
public:
    static constexpr std::uint64_t kBytesMax = 16U << 20;  ///< Of a slot.
    static constexpr std::size_t kCount = 4;

    /// `pages`: for the first that are made; null: they are not ready.
    explicit CopySlots(worker::GuestProcess& process, std::unique_ptr<Mapping> pages = nullptr)
        : process_(process), pages_(std::move(pages)) {}
    /// For kCount slots of so many bytes each. No driver is needed. Null: there is no memory.
    static std::unique_ptr<Mapping> make_pages(std::uint64_t bytes);
    ~CopySlots();
    CopySlots(const CopySlots&) = delete;
    CopySlots& operator=(const CopySlots&) = delete;

    /// At least `count`, kCount at most, of `bytes` each; none is in use. Nothing where they are
    /// there.
    Result<void> make(std::size_t count, std::uint64_t bytes);
    /// A slot; they are there.
    // Without the lock: nobody makes slots, or gives them back, while one is in use.
    [[nodiscard]] std::byte* of(std::size_t slot) const GANTRY_NO_THREAD_SAFETY_ANALYSIS {
        return memory_->at() + slot * bytes_;
    }
    /// Unless the driver might wait for ever: for a device with an open host callback, which never
    /// comes to rest. Then they are there for the next time.
    void give_back();

private:
    /// What the driver might wait for ever to give back stays where it is.
    void end() GANTRY_REQUIRES(mutex_);
    worker::GuestProcess& process_;
    Mutex mutex_;                                                // make() and give_back()
    std::unique_ptr<Mapping> pages_ GANTRY_GUARDED_BY(mutex_);   ///< Not page-locked.
    std::unique_ptr<Mapping> memory_ GANTRY_GUARDED_BY(mutex_);  ///< Page-locked.
    std::uint64_t bytes_ GANTRY_GUARDED_BY(mutex_) = kBytesMax;  ///< Of a slot.
};

}  // namespace gantry::state
