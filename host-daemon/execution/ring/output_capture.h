// OutputCapture: what device code prints, on its way to the guest's own stdout and stderr.
//
// A driver with Gantry's extension hands the bytes to push(). One without it writes to this
// process's descriptors 1 and 2, which redirect() has pointed at memory files; collect() reads
// them. The worker's own log goes to the descriptor that redirect() saved.
//
// Threads: push(), collect() and take() lock. Failure: when the guest does not fetch its output,
// the oldest is dropped beyond kPendingBytesMax and a line says so, as a printf FIFO would.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/cuda/soft_extension.h"

namespace gantry::worker {

class OutputCapture {
public:
    static constexpr std::size_t kPendingBytesMax = 8u << 20;

    /// Points descriptors 1 and 2 at memory files. Returns the saved stderr.
    Result<int> redirect();

    /// Has a driver with the extension hand its output over; null: nothing to do.
    void attach(const GantrySoftExtension* extension);

    /// `descriptor` is 1 or 2.
    void push(std::uint32_t descriptor, std::span<const std::byte> bytes);
    /// Takes over what the driver wrote to descriptors 1 and 2. Without a system call when there is
    /// nothing: each synchronising call does it.
    void collect();
    /// Asked with every answer: one load.
    [[nodiscard]] bool pending() const { return pending_bytes_ != 0; }

    /// Moves pieces {u32 descriptor, u32 bytes, bytes} into `out`; returns the bytes used.
    std::size_t take(std::span<std::byte> out);

    /// Everything still pending, in take()'s form; for a snapshot, and back.
    [[nodiscard]] std::vector<std::byte> save() const;
    void load(std::span<const std::byte> pieces);

private:
    struct Piece {
        std::uint32_t descriptor = 1;
        std::vector<std::byte> bytes;
    };
    [[nodiscard]] bool may_have_grown(int i) const;
    void push_locked(std::uint32_t descriptor, std::span<const std::byte> bytes)
        GANTRY_REQUIRES(mutex_);

    mutable Mutex mutex_;
    std::vector<Piece> pieces_ GANTRY_GUARDED_BY(mutex_);
    std::atomic<std::size_t> pending_bytes_{0};  ///< Changed under mutex_; no piece is empty.
    /// For stdout and stderr. Made by redirect(), before there are other threads.
    int files_[2] = {-1, -1};
    const std::byte* first_bytes_[2] = {};  ///< Of the files, mapped for the life of the process.
    std::uint32_t collections_ GANTRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace gantry::worker
