// SmallCopies: a little from page-locked memory to the device, taken along in the driver's command.
//
// What is page-locked the device fetches over the bus once it is at the copy. What is not the
// driver takes along in its command, so that the device has it sooner (an H100, 4 KiB and a word
// behind them: 6.4 us, not 7.1; proto/decisions/0011-small-copies.md). But then it is read when the
// call is made, not in the stream's turn. That comes to the same where nothing before the copy is
// left to write the bytes: where the stream that was given work last has been waited for since, and
// the copy is for that stream. Its last work was queued behind whatever the legacy stream had for
// it, so the wait for the one was a wait for the other.
//
// Invariant: the buffer is used again only after the stream that had it last was waited for, as no
// driver promises to have read all when the call returns. Threads: the command loop's only.
// Failure: none; where there is no buffer, the copy is queued as any other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "proto/cuda/abi.h"

namespace gantry::worker {

class SmallCopies {
public:
    static constexpr std::size_t kBytesMax = 4096;

    /// A command has given this stream work.
    void queued(CUstream stream) {
        last_ = stream;
        is_drained_ = false;
        ++order_;
    }
    /// A command may have given any stream work.
    void unknown() {
        last_.reset();
        is_drained_ = false;
        ++order_;
    }
    /// Tells whether a command came meanwhile, as it is another one then.
    [[nodiscard]] std::uint64_t order() const { return order_; }
    /// A wait for all that the stream had at that order has ended well.
    void drained(CUstream stream, std::uint64_t order) {
        if (last_ != stream || order != order_) {
            return;
        }
        is_drained_ = true;
        if (taken_by_ == stream) {
            taken_by_.reset();
        }
    }
    /// Room for kBytesMax that a copy to `stream` may be made from now; null: there is none.
    std::byte* take(CUstream stream) {
        if (!is_drained_ || last_ != stream || taken_by_) {
            return nullptr;
        }
        taken_by_ = stream;
        return bytes_.data();
    }

private:
    std::optional<CUstream> last_;  ///< Given work last; none: not known.
    bool is_drained_ = false;       ///< ... and waited for since.
    std::uint64_t order_ = 0;
    std::optional<CUstream> taken_by_;  ///< May still read the buffer.
    alignas(kBytesMax) std::array<std::byte, kBytesMax> bytes_{};
};

}  // namespace gantry::worker
