#include "host-daemon/state/files/prepared_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>

#include "host-daemon/state/blocks/locked_pages.h"
#include "host-daemon/state/files/file_pieces.h"
#include "proto/snapshot/large_pages.h"

namespace gantry::state {
namespace {

using Clock = std::chrono::steady_clock;

static_assert(PreparedFile::kPieceBytes % FilePlan::kStoreChunkBytes == 0);

/// Away from where a driver takes device addresses, as every mapping of a worker's
/// (channel_memory.cc).
void* const kPreparedHint = reinterpret_cast<void*>(0x6700'0000'0000);
/// The kernel makes pages no faster for more, and the guest's work needs processors too.
constexpr unsigned kThreadsMax = 8;

std::int64_t ms_since(Clock::time_point begin) {
    return (Clock::now() - begin) / std::chrono::milliseconds(1);
}

}  // namespace

PreparedFile::PreparedFile(worker::GuestProcess& process, control::UniqueFd file,
                           snapshot::FileRange range)
    : process_(process),
      file_(std::move(file)),
      range_(range),
      threads_(std::clamp(std::thread::hardware_concurrency() / 2, 1U, kThreadsMax)),
      helpers_(threads_),
      pieces_((range.end + kPieceBytes - 1) / kPieceBytes - range.begin / kPieceBytes) {}

Result<std::unique_ptr<PreparedFile>> PreparedFile::begin(worker::GuestProcess& process,
                                                          control::UniqueFd file,
                                                          snapshot::FileRange range) {
    struct stat status {};
    if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
        !snapshot::is_on_tmpfs(file.get())) {
        return Error{Code::kInvalidArgument, "worker.protocol", "files on tmpfs are prepared"};
    }
    if (range.begin >= range.end || range.begin % snapshot::kLargePageBytes != 0 ||
        range.end % snapshot::kLargePageBytes != 0 ||
        range.end > static_cast<std::uint64_t>(status.st_size)) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     fmt::format("offsets {} to {} of a file of {} bytes cannot be prepared",
                                 range.begin, range.end, status.st_size)};
    }
    std::unique_ptr<PreparedFile> prepared(new PreparedFile(process, std::move(file), range));
    prepared->device_number_ = status.st_dev;
    prepared->file_number_ = status.st_ino;
    void* got =
        ::mmap(kPreparedHint, range.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
               prepared->file_.get(), static_cast<off_t>(range.begin));
    if (got == MAP_FAILED) {
        return Error{Code::kUnavailable, "snapshot.io",
                     fmt::format("cannot map the file: {}", std::strerror(errno))};
    }
    ::madvise(got, range.bytes(), MADV_HUGEPAGE);  // A hint only.
    prepared->at_ = static_cast<std::byte*>(got);
    prepared->thread_ = std::thread([raw = prepared.get()] { raw->run(); });
    return prepared;
}

PreparedFile::~PreparedFile() {
    {
        const MutexLock lock(mutex_);
        is_ending_ = true;
    }
    give_up();
    if (thread_.joinable()) {
        thread_.join();
    }
}

bool PreparedFile::settle() {
    MutexLock lock(mutex_);
    is_settled_ = true;
    changed_.wait(lock, [&]() GANTRY_REQUIRES(mutex_) { return state_ != State::kMaking; });
    return state_ == State::kReady && !is_given_up_;
}

void PreparedFile::give_up() {
    const MutexLock lock(mutex_);
    is_settled_ = true;
    is_given_up_ = true;
    changed_.notify_all();
}

bool PreparedFile::is_over() const {
    const MutexLock lock(mutex_);
    return state_ == State::kOver;
}

bool PreparedFile::is_wanted() const {
    const MutexLock lock(mutex_);
    return !is_settled_;
}

void PreparedFile::set_state(State state) {
    const MutexLock lock(mutex_);
    state_ = state;
    changed_.notify_all();
}

PreparedFile::Progress PreparedFile::progress() const {
    const MutexLock lock(mutex_);
    const std::uint64_t pages = page_bytes_;
    const std::uint64_t locked = locked_bytes_;
    const int refused = refused_;
    return {state_ != State::kMaking, pages, locked, outcome_,
            fmt::format("{} MiB of pages in {} ms, {} MiB page-locked in {} ms by {} threads{}",
                        pages >> 20, pages_ms_, locked >> 20, locking_ms_, threads_,
                        refused == 0
                            ? ""
                            : fmt::format("; the file cannot be registered (error {})", refused))};
}

bool PreparedFile::is_of(int file) const {
    struct stat status {};
    return ::fstat(file, &status) == 0 && status.st_dev == device_number_ &&
           status.st_ino == file_number_;
}

PreparedFile::Place PreparedFile::find(std::uint64_t offset, std::uint64_t bytes) const {
    if (offset < range_.begin || offset > range_.end || bytes > range_.end - offset) {
        return {};
    }
    const Piece state = pieces_.at(offset / kPieceBytes - range_.begin / kPieceBytes);
    return {state == Piece::kNothing ? nullptr : at(offset), state == Piece::kLocked};
}

snapshot::FileRange PreparedFile::piece(std::size_t index) const {
    const std::uint64_t begin = (range_.begin / kPieceBytes + index) * kPieceBytes;
    return {std::max(begin, range_.begin), std::min(begin + kPieceBytes, range_.end)};
}

void PreparedFile::run() {
    make();
    {
        MutexLock lock(mutex_);
        state_ = State::kReady;
        changed_.notify_all();
        changed_.wait(lock, [&]() GANTRY_REQUIRES(mutex_) { return is_given_up_; });
        state_ = State::kLeaving;
    }
    file_.reset();
    leave();
    set_state(State::kOver);
}

void PreparedFile::make() {
    for (std::size_t next = 0; next < pieces_.size() && is_wanted();) {
        const std::size_t count = std::min<std::size_t>(threads_, pieces_.size() - next);
        const auto begin = Clock::now();
        const Result<void> made = make_pieces(next, count);
        const std::int64_t pages_ms = ms_since(begin);
        if (made && refused_ == 0) {
            lock_pieces(next, count);
        }
        next += count;
        const MutexLock lock(mutex_);
        pages_ms_ += pages_ms;
        locking_ms_ += ms_since(begin) - pages_ms;
        if (!made) {
            outcome_ = made;
            return;
        }
    }
}

Result<void> PreparedFile::make_pieces(std::size_t first, std::size_t count) {
    Mutex mutex;
    Result<void> outcome;
    helpers_.run(count, [&, first](std::size_t index) {
        const std::size_t i = first + index;
        const snapshot::FileRange part = piece(i);
        const Result<void> made =
            snapshot::make_pages(file_.get(), "the file", part.begin, at(part.begin), part.bytes());
        const MutexLock lock(mutex);
        if (!made) {
            outcome = outcome ? made : outcome;
            return;
        }
        pieces_[i] = Piece::kPages;
        page_bytes_ += part.bytes();
    });
    return outcome;
}

void PreparedFile::lock_pieces(std::size_t first, std::size_t count) {
    const MutexLock gate(process_.graphs.captures.gate);
    if (!may_lock_pages(process_)) {
        return;  // These are copied through slots.
    }
    helpers_.run(count, [&, first](std::size_t index) {
        const std::size_t i = first + index;
        process_.device.bind_thread();
        const snapshot::FileRange part = piece(i);
        const CUresult result = process_.device.api().cuMemHostRegister_v2(
            at(part.begin), part.bytes(), CU_MEMHOSTREGISTER_PORTABLE);
        if (result == CUDA_SUCCESS) {
            pieces_[i] = Piece::kLocked;
            locked_bytes_ += part.bytes();
        } else {
            refused_ = result;
        }
    });
}

void PreparedFile::leave() {
    std::vector<std::span<std::byte>> locked;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        if (pieces_[i] == Piece::kLocked) {
            locked.emplace_back(at(piece(i).begin), piece(i).bytes());
        }
    }
    const auto rest = [this](std::chrono::microseconds time) {
        MutexLock lock(mutex_);
        return changed_.wait_for(lock, time,
                                 [this]() GANTRY_REQUIRES(mutex_) { return is_ending_; });
    };
    if (unlock_pages(process_, locked, rest)) {
        ::munmap(at_, range_.bytes());
    }
}

}  // namespace gantry::state
