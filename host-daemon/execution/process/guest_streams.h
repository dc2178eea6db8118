// GuestStreams: the streams of one guest process and the lanes' own; what the driver says of them,
// and how their ends are waited for and shown to the guest.
//
// WORDS. A device can write a word behind the work in a stream (wait_words.h). It shows the end of
// that work sooner than the driver does, but tells no error, and so it is used only where no error
// is to be expected (may_use_words()).
//
// Owner: GuestProcess. Threads: any; the calls concern the calling thread's current context.
// Failure: the driver's results.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "host-daemon/execution/device/event_pool.h"
#include "host-daemon/execution/device/event_times.h"
#include "host-daemon/execution/device/lane_streams.h"
#include "host-daemon/execution/device/wait_words.h"
#include "host-daemon/execution/objects/objects.h"
#include "host-daemon/execution/process/captures.h"
#include "host-daemon/execution/process/contexts.h"
#include "host-daemon/execution/process/error_ledger.h"
#include "host-daemon/execution/process/guest_code.h"
#include "host-daemon/execution/process/held_work.h"
#include "host-daemon/execution/ring/bulk_board.h"
#include "host-daemon/execution/ring/event_board.h"

namespace gantry::worker {

class GuestStreams {
public:
    /// What streams depend on; all outlive them.
    struct Needs {
        Device& device;
        const ObjectTable& objects;
        const GuestCode& code;
        Contexts& contexts;
        Captures& captures;
        HeldWork& held;
        ErrorLedger& errors;
        EventBoard& event_board;
        EventPool& own_events;
    };

    /// `word_patience`: how long a thread looks at a word before the driver waits.
    GuestStreams(const Needs& needs, std::chrono::microseconds word_patience);
    GuestStreams(const GuestStreams&) = delete;
    GuestStreams& operator=(const GuestStreams&) = delete;

    EventTimes event_times;
    WaitWords wait_words;
    BulkBoard bulk_board;

    // ---- which stream
    /// 0, 1: the legacy stream; 2: the lane's own; else a stream handle.
    CUresult resolve(std::uint64_t stream, std::uint32_t lane, CUstream* out);
    /// The same without a use: the stream is not noted as touched, and a lane's own is not made.
    [[nodiscard]] std::optional<CUstream> find(std::uint64_t stream, std::uint32_t lane) const;
    [[nodiscard]] const LaneStreams& of_lanes() const { return lanes_; }
    /// No stream but the legacy one exists, or may still be at work.
    [[nodiscard]] bool has_one() const;

    // ---- their ends
    /// Asking streams is cheap and allowed, and they are all there is: few of them, one context,
    /// no capture going on, none destroyed at work since the context was last synchronised.
    [[nodiscard]] bool may_query() const;
    CUresult query(CUstream stream);
    struct Seen {
        /// CUDA_SUCCESS when all are idle, CUDA_ERROR_NOT_READY, or the error that a driver told.
        CUresult result = CUDA_SUCCESS;
        std::optional<CUstream> busy;  ///< The one that is, where all others are idle.
    };
    enum class Which { kAll, kAllButLegacy };
    Seen query_all(Which which = Which::kAll);
    /// A call that waits for what was just seen to have ended may be answered at once.
    [[nodiscard]] bool may_skip_waits() const { return !code_.may_print() && !held_.active(); }
    /// A word in a stream tells all that there is to know of its end, but for errors.
    [[nodiscard]] bool may_use_words() const;

    // ---- waiting. The calling thread may block.
    /// What cuStreamSynchronize does; it looks at a word where the stream is the busy one.
    CUresult synchronise(CUstream stream, const std::optional<BusyStream>& busy = {});
    /// Synchronises the calling thread's context; it looks at a word where the busy stream is the
    /// only one.
    CUresult synchronise_context(const std::optional<BusyStream>& busy = {});
    /// Synchronises every context of the guest.
    CUresult synchronise_device();

    // ---- the end of streams
    /// The stream is about to be destroyed.
    void leave(CUstream stream);
    /// A thread's own stream ends with it, and its capture too; the next one with its lane has
    /// both.
    void drop_lane_capture(std::uint32_t lane);
    /// Destroys a context, whose objects have ended and whose work was waited for; the calling
    /// thread is in the primary one then.
    CUresult end_context(CUcontext context);
    /// Destroys the lanes' streams.
    void clear() { lanes_.clear(); }

    // ---- what the guest is shown
    enum class Look : std::uint8_t { kSome, kAll };
    void look_at_events(Look look);
    void look_at_bulk_copies();
    /// A word was seen to have landed in this stream.
    void note_landed(CUstream stream, std::chrono::steady_clock::time_point now);

private:
    /// Waits for what runs while streams are captured: to wait for a context then is refused, and
    /// costs its captures.
    CUresult synchronise_beside_captures();

    Device& device_;
    const ObjectTable& objects_;
    const GuestCode& code_;
    Contexts& contexts_;
    Captures& captures_;
    HeldWork& held_;
    ErrorLedger& errors_;
    EventBoard& event_board_;
    EventPool& own_events_;
    const std::chrono::microseconds word_patience_;
    LaneStreams lanes_;
    /// Streams that were destroyed and may still be at work, and how many of them are known not to.
    std::atomic<std::uint64_t> left_{0};
    std::atomic<std::uint64_t> settled_{0};
    std::atomic<CUstream> landed_stream_{nullptr};  ///< Where a word was seen to have landed last.
    std::atomic<std::chrono::steady_clock::time_point> landed_at_{};
};

}  // namespace gantry::worker
