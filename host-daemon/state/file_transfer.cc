#include "host-daemon/state/file_transfer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <semaphore>
#include <thread>

#include "host-daemon/state/file_mapping.h"
#include "proto/snapshot/file_pages.h"
#include "proto/snapshot/large_pages.h"
#include "proto/snapshot/stream_copy.h"

namespace gantry::state {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kCopyThreadsMax = 16;
constexpr std::uint64_t kSlotBytes = 2U << 20;
constexpr std::size_t kSlots = 2;  ///< Of a thread.
/// Away from where a driver takes device addresses, as every mapping of a worker's
/// (channel_memory.cc).
void* const kFileHint = reinterpret_cast<void*>(0x6600'0000'0000);
void* const kStageHint = reinterpret_cast<void*>(0x6500'0000'0000);

/// Threads that get pages for the file, or have them locked, at a time: the kernel does neither
/// faster for more.
constexpr std::ptrdiff_t kAllocatingMax = 8;
constexpr std::ptrdiff_t kLockingMax = 8;

/// Where nobody has said what is faster, pages that are there are tried: one thread that has large
/// ones locked gets through 36 GB/s of them, of small ones through a tenth. Such as are to be made
/// and let go again take longer than a copy.
constexpr double kLockedPerSecondMin = 8e9;
constexpr std::chrono::milliseconds kLockingLeast{1};

/// Time that threads spend with one thing.
class Spent {
public:
    template <typename Work>
    auto on(Work work) {
        const auto begin = Clock::now();
        auto result = work();
        ns_ += (Clock::now() - begin).count();
        return result;
    }
    [[nodiscard]] std::chrono::nanoseconds time() const {
        return std::chrono::nanoseconds(ns_.load());
    }
    [[nodiscard]] std::int64_t ms() const { return ns_.load() / 1'000'000; }

private:
    std::atomic<Clock::rep> ns_{0};
};

/// The slots of all threads. Between two transfers there are none, as a rule (may_unlock_).
std::optional<Mapping>& stage_of_process() {
    static auto* const stage = new std::optional<Mapping>();  // Never ended: it may be locked.
    return *stage;
}

/// One store() or load().
class Transfer {
public:
    Transfer(worker::GuestProcess& process, CUstream stream, int file, Direction direction,
             FileWay way, std::span<const FileChunk> chunks, const PreparedFile* prepared)
        : process_(process),
          api_(process.device.api()),
          device_(process.device),
          stream_(stream),
          file_(file),
          direction_(direction),
          chunks_(chunks),
          prepared_(prepared),
          may_unlock_(!process.held.active()),
          tries_(way == FileWay::kAuto && direction == Direction::kFromFile &&
                 snapshot::is_on_tmpfs(file)),
          registers_((way == FileWay::kRegistered || tries_) && may_unlock_) {}

    Result<void> run() {
        if (chunks_.empty()) {
            return {};
        }
        const auto begin = Clock::now();
        map_from_ = chunks_.front().begin() / snapshot::kLargePageBytes *
                    snapshot::kLargePageBytes;
        const bool writes = direction_ == Direction::kToFile;
        map_.emplace(kFileHint, chunks_.back().end() - map_from_,
                     writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file_, map_from_);
        if (map_->at() == nullptr && writes) {
            return Error{Code::kUnavailable, "snapshot.io",
                         fmt::format("cannot map the file: {}", std::strerror(errno))};
        }
        registers_ = registers_ && map_->at() != nullptr;  // Else pread() does.
        const std::size_t threads = std::min<std::size_t>(
            chunks_.size(), std::clamp(std::thread::hardware_concurrency(), 1U, kCopyThreadsMax));
        if (tries_ && registers_) {
            try_first();
        }
        {
            std::vector<std::jthread> helpers;
            for (std::size_t i = 1; i < threads; ++i) {
                helpers.emplace_back([this, i] { take_chunks(i); });
            }
            take_chunks(0);
        }
        if (stage_ && may_unlock_) {
            api_.cuMemHostUnregister(stage_->at());  // Refused where it was not registered.
            stage_.reset();
        }
        if (!locked_.empty()) {
            leaving_ = std::make_unique<LeavingPages>(process_, map_->release(),
                                                      std::move(locked_));
        }
        map_.reset();
        threads_ = threads;
        took_ms_ = (Clock::now() - begin) / std::chrono::milliseconds(1);
        return outcome_;
    }

    std::unique_ptr<LeavingPages> take_leaving() { return std::move(leaving_); }

    [[nodiscard]] std::string how() const {
        return fmt::format(
            "{} in {} ms by {} threads, of each on average: pages {}, registering {}, device {}, "
            "copying {} ms{}{}",
            registers_ ? "registered" : "staged", took_ms_, threads_, mean(pages_),
            mean(registering_), mean(waiting_), mean(copying_),
            prepared_ == nullptr
                ? ""
                : fmt::format("; of {} chunks {} were page-locked before", chunks_.size(),
                              locked_chunks_.load()),
            refused_ == 0 ? ""
                          : fmt::format("; the file cannot be registered (error {})",
                                        refused_.load()));
    }

private:
    struct Lane {
        std::byte* slots = nullptr;
        std::array<CUevent, kSlots> events{};
        std::uint64_t chunk_from = 0;  ///< Of the file, and where it is mapped:
        std::byte* chunk_at = nullptr;
        [[nodiscard]] std::byte* at(std::uint64_t offset) const {
            return chunk_at + (offset - chunk_from);
        }
    };

    [[nodiscard]] std::int64_t mean(const Spent& spent) const {
        return threads_ == 0 ? 0 : spent.ms() / static_cast<std::int64_t>(threads_);
    }

    /// One chunk, alone: were its pages locked faster than they are copied?
    void try_first() {
        with_lane([this](Lane& lane) { return move(chunks_[next_++], 0, lane); });
        const auto bytes = static_cast<double>(chunks_[0].end() - chunks_[0].begin());
        const std::chrono::duration<double> took = registering_.time();
        if (took > kLockingLeast && bytes / took.count() < kLockedPerSecondMin) {
            registers_ = false;
        }
    }

    void take_chunks(std::size_t thread) {
        with_lane([this, thread](Lane& lane) -> Result<void> {
            for (std::size_t next = next_++; next < chunks_.size() && !failed_; next = next_++) {
                GANTRY_TRY(move(chunks_[next], thread, lane));
            }
            return {};
        });
    }

    template <typename Work>
    void with_lane(Work work) {
        device_.bind_thread();
        Lane lane;
        Result<void> done = open(lane);
        if (done) {
            done = work(lane);
        }
        for (const CUevent event : lane.events) {
            if (event != nullptr) {
                // Also after a failure: the device must not write to what is unmapped then.
                const Result<void> landed = wait(event);
                done = done ? landed : done;
                api_.cuEventDestroy_v2(event);
            }
        }
        if (!done) {
            const std::lock_guard lock(mutex_);
            if (outcome_) {
                outcome_ = done.error();
            }
            failed_ = true;
        }
    }

    Result<void> open(Lane& lane) {
        for (CUevent& event : lane.events) {
            GANTRY_TRY(check(api_.cuEventCreate(
                &event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC)));
        }
        return {};
    }

    Result<void> check(CUresult result) const {
        return result == CUDA_SUCCESS
                   ? Result<void>{}
                   : driver::to_error(api_, result, "state.file",
                                      direction_ == Direction::kToFile
                                          ? "copying blocks to the file"
                                          : "copying blocks from the file");
    }

    Result<void> move(const FileChunk& chunk, std::size_t thread, Lane& lane) {
        const std::uint64_t bytes = chunk.end() - chunk.begin();
        const PreparedFile::Place ready = prepared_ == nullptr
                                              ? PreparedFile::Place{}
                                              : prepared_->find(chunk.begin(), bytes);
        lane.chunk_from = chunk.begin();
        lane.chunk_at = ready.at;
        if (ready.at == nullptr && map_->at() != nullptr) {
            lane.chunk_at = map_->at() + (chunk.begin() - map_from_);
        }
        if (ready.is_locked) {
            ++locked_chunks_;
            const Result<void> queued = queue_all(chunk, lane);
            // Waited for in the end, also for what was queued before a failure.
            const CUresult recorded = api_.cuEventRecord(lane.events[0], stream_);
            GANTRY_TRY(queued);
            return check(recorded);
        }
        if (direction_ == Direction::kToFile && ready.at == nullptr) {
            GANTRY_TRY(pages_.on([&] { return allocate(chunk, lane); }));
        }
        if (registers_) {
            const CUresult result = registering_.on([&] { return lock(chunk, lane); });
            if (result == CUDA_SUCCESS && direction_ == Direction::kFromFile) {
                keep_locked({lane.chunk_at, bytes});
                const Result<void> queued = queue_all(chunk, lane);
                const CUresult recorded = api_.cuEventRecord(lane.events[0], stream_);
                GANTRY_TRY(queued);
                return check(recorded);  // Waited for in the end.
            }
            if (result == CUDA_SUCCESS) {
                const Result<void> moved = queue_all(chunk, lane);
                // What was queued before a failure has landed before the pages are let go.
                const CUresult landed = api_.cuEventRecord(lane.events[0], stream_);
                (void)wait(lane.events[0]);
                registering_.on([&] { return api_.cuMemHostUnregister(lane.chunk_at); });
                GANTRY_TRY(moved);
                return check(landed);
            }
            refused_ = result;
            registers_ = false;
        }
        GANTRY_TRY(take_slots(thread, lane));
        return direction_ == Direction::kToFile ? store_staged(chunk, lane)
                                                : load_staged(chunk, lane);
    }

    /// The chunk's pages in the file, and in this process's table of them.
    Result<void> allocate(const FileChunk& chunk, const Lane& lane) {
        allocating_.acquire();
        Result<void> done = snapshot::make_pages(file_, "the file", chunk.begin(), lane.chunk_at,
                                                 chunk.end() - chunk.begin());
        allocating_.release();
        return done;
    }

    CUresult lock(const FileChunk& chunk, const Lane& lane) {
        const bool writes = direction_ == Direction::kToFile;
        locking_.acquire();
        const CUresult result = api_.cuMemHostRegister_v2(
            lane.chunk_at, chunk.end() - chunk.begin(),
            CU_MEMHOSTREGISTER_PORTABLE | (writes ? 0U : CU_MEMHOSTREGISTER_READ_ONLY));
        locking_.release();
        return result;
    }

    /// Until the guest is served: nothing waits for it then.
    void keep_locked(std::span<std::byte> stretch) {
        const std::lock_guard lock(mutex_);
        locked_.push_back(stretch);
    }

    Result<void> queue_all(const FileChunk& chunk, const Lane& lane) const {
        for (const FilePiece& piece : chunk.pieces) {
            GANTRY_TRY(check(queue(piece, lane.at(piece.offset))));
        }
        return {};
    }

    CUresult queue(const FilePiece& piece, std::byte* host) const {
        return direction_ == Direction::kToFile
                   ? api_.cuMemcpyDtoHAsync_v2(host, piece.address, piece.bytes, stream_)
                   : api_.cuMemcpyHtoDAsync_v2(piece.address, host, piece.bytes, stream_);
    }

    Result<void> wait(CUevent event) {
        return check(waiting_.on([&] { return api_.cuEventSynchronize(event); }));
    }

    /// The first that needs slots makes them for all.
    Result<void> take_slots(std::size_t thread, Lane& lane) {
        if (lane.slots != nullptr) {
            return {};
        }
        const std::lock_guard lock(mutex_);
        if (!stage_) {
            const std::uint64_t bytes =
                std::clamp(std::thread::hardware_concurrency(), 1U, kCopyThreadsMax) * kSlots *
                kSlotBytes;
            stage_.emplace(kStageHint, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (stage_->at() == nullptr) {
                stage_.reset();
                return Error{Code::kResourceExhausted, "state.file",
                             fmt::format("no memory to copy through: {}", std::strerror(errno))};
            }
            // Where it cannot be, the driver copies all the same, and more slowly.
            api_.cuMemHostRegister_v2(stage_->at(), bytes, CU_MEMHOSTREGISTER_PORTABLE);
        }
        lane.slots = stage_->at() + thread * kSlots * kSlotBytes;
        return {};
    }

    /// The next pieces that are neighbours in the file and fit a slot.
    struct Cursor {
        std::span<const FilePiece> left;
        std::uint64_t done = 0;  ///< Of the first one.

        std::vector<FilePiece> take() {
            std::vector<FilePiece> out;
            std::uint64_t room = kSlotBytes;
            while (!left.empty() && room != 0) {
                FilePiece part = left.front();
                part.address += done;
                part.offset += done;
                part.bytes = std::min(part.bytes - done, room);
                if (!out.empty() && out.back().offset + out.back().bytes != part.offset) {
                    break;
                }
                out.push_back(part);
                room -= part.bytes;
                done += part.bytes;
                if (done == left.front().bytes) {
                    left = left.subspan(1);
                    done = 0;
                }
            }
            return out;
        }
    };

    Result<void> store_staged(const FileChunk& chunk, Lane& lane) {
        std::array<std::vector<FilePiece>, kSlots> filled;
        Cursor cursor{chunk.pieces};
        const auto empty = [&](std::size_t slot) -> Result<void> {
            if (filled[slot].empty()) {
                return {};
            }
            GANTRY_TRY(wait(lane.events[slot]));
            const FilePiece& last = filled[slot].back();
            const std::uint64_t offset = filled[slot].front().offset;
            copying_.on([&] {
                snapshot::stream_copy(lane.at(offset), lane.slots + slot * kSlotBytes,
                                      last.offset + last.bytes - offset);
                return 0;
            });
            filled[slot].clear();
            return {};
        };
        std::size_t turn = 0;
        for (auto parts = cursor.take(); !parts.empty(); parts = cursor.take(), ++turn) {
            const std::size_t slot = turn % kSlots;
            GANTRY_TRY(empty(slot));
            filled[slot] = std::move(parts);
            for (const FilePiece& part : filled[slot]) {
                GANTRY_TRY(check(queue(part, lane.slots + slot * kSlotBytes +
                                                 (part.offset - filled[slot].front().offset))));
            }
            GANTRY_TRY(check(api_.cuEventRecord(lane.events[slot], stream_)));
        }
        for (std::size_t i = 0; i < kSlots; ++i) {
            GANTRY_TRY(empty((turn + i) % kSlots));
        }
        return {};
    }

    Result<void> load_staged(const FileChunk& chunk, Lane& lane) {
        const bool is_mapped =
            map_->at() != nullptr &&
            pages_.on([&] {
                return ::madvise(lane.chunk_at, chunk.end() - chunk.begin(),
                                 MADV_POPULATE_READ);
            }) == 0;
        Cursor cursor{chunk.pieces};
        std::size_t turn = 0;
        for (auto parts = cursor.take(); !parts.empty(); parts = cursor.take(), ++turn) {
            const std::size_t slot = turn % kSlots;
            GANTRY_TRY(wait(lane.events[slot]));  // The device has read what was there before.
            std::byte* const to = lane.slots + slot * kSlotBytes;
            const std::uint64_t offset = parts.front().offset;
            const std::uint64_t bytes = parts.back().offset + parts.back().bytes - offset;
            GANTRY_TRY(copying_.on([&]() -> Result<void> {
                if (!is_mapped) {
                    return read(offset, {to, bytes});
                }
                snapshot::stream_copy(to, lane.at(offset), bytes);
                return {};
            }));
            for (const FilePiece& part : parts) {
                GANTRY_TRY(check(queue(part, to + (part.offset - offset))));
            }
            GANTRY_TRY(check(api_.cuEventRecord(lane.events[slot], stream_)));
        }
        return {};
    }

    Result<void> read(std::uint64_t offset, std::span<std::byte> to) const {
        while (!to.empty()) {
            const ssize_t got = ::pread(file_, to.data(), to.size(), static_cast<off_t>(offset));
            if (got < 0 && errno == EINTR) {
                continue;
            }
            if (got < 0) {
                return Error{Code::kUnavailable, "snapshot.io",
                             fmt::format("cannot read at offset {}: {}", offset,
                                         std::strerror(errno))};
            }
            if (got == 0) {
                return Error{Code::kDataLoss, "snapshot.truncated",
                             fmt::format("offset {}: the file ends where {} more bytes are due; "
                                         "take another copy of the snapshot",
                                         offset, to.size())};
            }
            offset += static_cast<std::uint64_t>(got);
            to = to.subspan(static_cast<std::size_t>(got));
        }
        return {};
    }

    worker::GuestProcess& process_;
    const driver::DriverApi& api_;
    worker::Device& device_;
    CUstream stream_;
    int file_;
    Direction direction_;
    std::span<const FileChunk> chunks_;
    const PreparedFile* prepared_;
    /// A driver may wait for the device before it gives page-locked memory back, and a device with
    /// an open host callback never comes to rest: then the slots stay, for the next time.
    const bool may_unlock_;
    const bool tries_;  ///< Nobody has said whether to register.
    std::atomic<bool> registers_;
    std::atomic<int> refused_{0};
    std::atomic<std::size_t> locked_chunks_{0};
    std::optional<Mapping> map_;
    std::uint64_t map_from_ = 0;
    std::atomic<std::size_t> next_{0};
    std::atomic<bool> failed_{false};
    std::counting_semaphore<> allocating_{kAllocatingMax};
    std::counting_semaphore<> locking_{kLockingMax};
    std::mutex mutex_;  // outcome_, stage_ and locked_
    Result<void> outcome_;
    std::vector<std::span<std::byte>> locked_;
    std::unique_ptr<LeavingPages> leaving_;
    std::optional<Mapping>& stage_ = stage_of_process();
    Spent pages_;
    Spent registering_;
    Spent waiting_;
    Spent copying_;
    std::size_t threads_ = 0;
    std::int64_t took_ms_ = 0;
};

}  // namespace

Result<Transferred> transfer(worker::GuestProcess& process, CUstream stream, int file,
                             Direction direction, FileWay way, std::span<const FileChunk> chunks,
                             const PreparedFile* prepared) {
    Transfer one(process, stream, file, direction, way, chunks, prepared);
    GANTRY_TRY(one.run());
    return Transferred{one.how(), one.take_leaving()};
}

}  // namespace gantry::state
