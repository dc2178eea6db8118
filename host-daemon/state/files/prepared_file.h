// PreparedFile: a part of a snapshot's file made ready while the guest still runs: its pages are
// there, mapped, and page-locked for the device, so that a store finds nothing left to do but to
// copy (file_blocks.h).
//
// To make pages and to lock them takes ten times as long as to fill them, which the guest would
// stand still for. So it is done before, by a thread that has others help it, piece by piece, and
// where pages may be locked (locked_pages.h). What is not locked is copied through slots.
//
// Given up: the pieces are let go again in the background, under the same conditions, and the
// mapping ends. The file is somebody else's: it may be cut, or gone, by then.
// Threads: find() and is_of() any, while it is settled; the rest the worker's control thread.
// Failure: what cannot be locked stays pages; pages that there are none of are `snapshot.disk_full`
// in progress().
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "host-daemon/execution/process/guest_process.h"
#include "proto/base/mutex.h"
#include "proto/base/thread_pool.h"
#include "proto/control/unique_fd.h"
#include "proto/snapshot/file_pages.h"

namespace gantry::state {

class PreparedFile {
public:
    /// A multiple of FilePlan::kStoreChunkBytes, so that no chunk of a store crosses pieces.
    static constexpr std::uint64_t kPieceBytes = 64U << 20;

    /// Begins at once, and goes on in the background. The file is on tmpfs and at least as long as
    /// `range`, whose ends are multiples of a large page.
    static Result<std::unique_ptr<PreparedFile>> begin(worker::GuestProcess& process,
                                                       control::UniqueFd file,
                                                       snapshot::FileRange range);
    /// Gives up, and waits for it; the worker is about to end.
    ~PreparedFile();
    PreparedFile(const PreparedFile&) = delete;
    PreparedFile& operator=(const PreparedFile&) = delete;

    struct Progress {
        bool is_done = false;  ///< Nothing more is made.
        std::uint64_t page_bytes = 0;
        std::uint64_t locked_bytes = 0;
        Result<void> outcome;
        std::string how;  ///< For a log.
    };
    [[nodiscard]] Progress progress() const;

    /// Makes no more, and waits until what is under way has ended. False: it is being let go.
    bool settle();
    /// Lets everything go, in the background.
    void give_up();
    /// There is nothing left to let go.
    [[nodiscard]] bool is_over() const;

    [[nodiscard]] bool is_of(int file) const;
    struct Place {
        std::byte* at = nullptr;  ///< Null: not all of its pages are here.
        bool is_locked = false;
    };
    /// Bytes of the file that cross no multiple of kPieceBytes.
    [[nodiscard]] Place find(std::uint64_t offset, std::uint64_t bytes) const;

private:
    enum class State : std::uint8_t { kMaking, kReady, kLeaving, kOver };
    enum class Piece : std::uint8_t { kNothing, kPages, kLocked };

    PreparedFile(worker::GuestProcess& process, control::UniqueFd file, snapshot::FileRange range);
    void run();
    void make();
    void leave();
    Result<void> make_pieces(std::size_t first, std::size_t count);
    void lock_pieces(std::size_t first, std::size_t count);
    [[nodiscard]] snapshot::FileRange piece(std::size_t index) const;
    [[nodiscard]] std::byte* at(std::uint64_t offset) const {
        return at_ + (offset - range_.begin);
    }
    void set_state(State state);
    [[nodiscard]] bool is_wanted() const;

    worker::GuestProcess& process_;
    control::UniqueFd file_;
    const snapshot::FileRange range_;
    dev_t device_number_ = 0;
    ino_t file_number_ = 0;
    std::byte* at_ = nullptr;
    const unsigned threads_;
    ThreadPool helpers_;
    std::vector<Piece> pieces_;  ///< The threads' while making, anybody's once settled.
    std::atomic<std::uint64_t> page_bytes_{0};
    std::atomic<std::uint64_t> locked_bytes_{0};
    std::atomic<int> refused_{0};  ///< A driver's first refusal to lock.

    mutable Mutex mutex_;  // all below
    mutable CondVar changed_;
    State state_ GANTRY_GUARDED_BY(mutex_) = State::kMaking;
    bool is_settled_ GANTRY_GUARDED_BY(mutex_) = false;  ///< Nothing more is to be made.
    bool is_given_up_ GANTRY_GUARDED_BY(mutex_) = false;
    /// With the worker: there is no better moment to wait for.
    bool is_ending_ GANTRY_GUARDED_BY(mutex_) = false;
    Result<void> outcome_ GANTRY_GUARDED_BY(mutex_);
    std::int64_t pages_ms_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::int64_t locking_ms_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::thread thread_;
};

}  // namespace gantry::state
