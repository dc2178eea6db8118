#include "host-daemon/state/files/file_transfer.h"

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
#include <deque>
#include <optional>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/stream_copy.h"
#include "proto/snapshot/file_pages.h"
#include "proto/snapshot/large_pages.h"
#include "proto/wire/wait.h"

namespace gantry::state {
namespace {

using Clock = std::chrono::steady_clock;

/// Away from where a driver takes device addresses, as every mapping of a worker's
/// (channel_memory.cc).
void* const kFileHint = reinterpret_cast<void*>(0x6600'0000'0000);

/// More threads copy no faster: 8 to 16 keep a link of 55 GB/s busy.
constexpr unsigned kCopyThreadsMax = 12;
/// Threads that get pages for the file at a time: the kernel gives them no faster to more.
constexpr std::ptrdiff_t kAllocatingMax = 8;
/// What a thread copies in one go: a load's, and a store's, which may have to make a large page.
constexpr std::uint64_t kLoadBytes = 256U << 10;
constexpr std::uint64_t kStoreBytes = snapshot::kLargePageBytes;
static_assert(FilePlan::kStoreChunkBytes <= CopySlots::kBytesMax &&
              FilePlan::kLoadChunkBytes <= CopySlots::kBytesMax);
/// What memcpy() copies in one go: more it would send past the caches.
constexpr std::size_t kCachedBytes = 256U << 10;
/// Chunks of which landed() is told in one go.
constexpr std::size_t kToldAtOnce = 16;
/// Between two looks whether the device is done with a slot. A thread that sleeps in the driver
/// instead costs the device's engine time between copies.
constexpr std::chrono::microseconds kLookAgain{20};
/// How long a thread looks without sleep first: longer than the device takes for a slot. From a
/// sleep it comes back 50 us late and more, and the device rests once all slots wait for such a
/// thread.
constexpr std::chrono::microseconds kAwake{500};
/// Between two looks without sleep; the driver has one lock for them and for queueing copies.
constexpr unsigned kRelaxes = 40;  // 1 to 2 us.

/// Of a thread that waits for a slot, between its looks.
class Backoff {
public:
    explicit Backoff(Clock::duration awake) : awake_until_(Clock::now() + awake) {}
    void wait() const {
        if (Clock::now() > awake_until_) {
            std::this_thread::sleep_for(kLookAgain);
            return;
        }
        for (unsigned i = 0; i < kRelaxes; ++i) {
            wire::cpu_relax();
        }
        std::this_thread::yield();  // To whoever fills it, where there are fewer processors.
    }

private:
    Clock::time_point awake_until_;
};

/// Time that threads spend with one thing.
class Stopwatch {
public:
    template <typename Work>
    auto on(Work work) {
        const auto begin = Clock::now();
        auto result = work();
        add(Clock::now() - begin);
        return result;
    }
    void add(Clock::duration time) { ns_ += time.count(); }
    [[nodiscard]] std::int64_t ms() const { return ns_.load() / 1'000'000; }

private:
    std::atomic<Clock::rep> ns_{0};
};

/// Time that threads wait: for the device's copies, and for other threads to have one queued.
struct Waits {
    Stopwatch device;
    Stopwatch others;
};

/// One store() or load().
class Transfer {
public:
    Transfer(worker::GuestProcess& process, CUstream stream, CopySlots& slots, int file,
             Direction direction, std::span<const FileChunk> chunks, const PreparedFile* prepared,
             const CopyHooks& beside)
        : api_(process.device.api()),
          device_(process.device),
          stream_(stream),
          slots_(slots),
          file_(file),
          is_store_(direction == Direction::kToFile),
          chunks_(chunks),
          prepared_(prepared),
          beside_(beside) {}

    Result<void> run() {
        if (chunks_.empty()) {
            return meanwhile();
        }
        const auto begin = Clock::now();
        GANTRY_TRY(map_file());
        Result<void> done = create_events();
        if (done) {
            done = queue_locked();
        }
        if (done && !staged_.empty()) {
            done = copy_staged();
        } else if (done) {
            done = meanwhile();
        }
        // Also after a failure: the device must not write to what is unmapped then.
        for (const CUevent event : events_) {
            if (event != nullptr) {
                const Result<void> landed = wait(event);
                done = done ? landed : done;
                api_.cuEventDestroy_v2(event);
            }
        }
        took_ms_ = (Clock::now() - begin) / std::chrono::milliseconds(1);
        return done;
    }

    /// Once it has run.
    std::unique_ptr<Mapping> take_map() { return std::move(map_); }

    [[nodiscard]] std::string how() const {
        return fmt::format(
            "{} ms by {} threads, of each on average: pages {}, device {}, others {}, copying {} "
            "ms{}",
            took_ms_, threads_, mean(pages_), mean(waits_.device), mean(waits_.others),
            mean(copying_),
            prepared_ == nullptr ? ""
                                 : fmt::format("; of {} chunks {} were page-locked before",
                                               chunks_.size(), chunks_.size() - staged_.size()));
    }

private:
    enum class State : std::uint8_t { kIdle, kQueued, kLanded };
    /// A chunk that goes through a slot, that of its number modulo CopySlots::kCount.
    struct Staged {
        const FileChunk* chunk;
        std::byte* at = nullptr;  ///< Where its part of the file is mapped. Null: it is not.
        bool has_pages = false;
        std::atomic<State> state{State::kIdle};  ///< Of the device's copy.
        std::atomic<std::uint32_t> steps_left{0};
        Staged(const FileChunk* of, std::byte* mapped, bool ready)
            : chunk(of), at(mapped), has_pages(ready) {}
    };
    /// [begin, end) of the file.
    struct Step {
        std::size_t staged = 0;
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
    };

    [[nodiscard]] std::int64_t mean(const Stopwatch& spent) const {
        return threads_ == 0 ? 0 : spent.ms() / static_cast<std::int64_t>(threads_);
    }

    Result<void> check(CUresult result) const {
        if (result == CUDA_SUCCESS) {
            return {};
        }
        return driver::to_error(
            api_, result, "state.file",
            is_store_ ? "copying blocks to the file" : "copying blocks from the file");
    }

    Result<void> map_file() {
        map_from_ = chunks_.front().begin() / snapshot::kLargePageBytes * snapshot::kLargePageBytes;
        map_ = std::make_unique<Mapping>(kFileHint, chunks_.back().end() - map_from_,
                                         is_store_ ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                                         file_, map_from_);
        if (map_->at() == nullptr && is_store_) {
            return Error{Code::kUnavailable, "snapshot.io",
                         fmt::format("cannot map the file: {}", std::strerror(errno))};
        }
        return {};
    }

    Result<void> create_events() {
        for (CUevent& event : events_) {
            GANTRY_TRY(check(api_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)));
        }
        return {};
    }

    /// What the device can write to the file itself. The others are staged_ then.
    Result<void> queue_locked() {
        const Result<void> queued = queue_what_is_locked();
        // Waited for in the end, also for what was queued before a failure.
        const CUresult recorded = api_.cuEventRecord(events_[kLockedEvent], stream_);
        GANTRY_TRY(queued);
        return check(recorded);
    }

    Result<void> queue_what_is_locked() {
        for (const FileChunk& chunk : chunks_) {
            const PreparedFile::Place ready =
                prepared_ == nullptr ? PreparedFile::Place{}
                                     : prepared_->find(chunk.begin(), chunk.end() - chunk.begin());
            if (ready.is_locked) {
                GANTRY_TRY(queue(chunk, ready.at));
                continue;
            }
            std::byte* at = ready.at;
            if (at == nullptr && map_->at() != nullptr) {
                at = map_->at() + (chunk.begin() - map_from_);
            }
            staged_.emplace_back(&chunk, at, ready.at != nullptr);
        }
        return {};
    }

    /// All of a chunk, which lies at `host`.
    Result<void> queue(const FileChunk& chunk, std::byte* host) const {
        for (const FilePiece& piece : chunk.pieces) {
            std::byte* const at = host + (piece.offset - chunk.begin());
            GANTRY_TRY(check(
                is_store_ ? api_.cuMemcpyDtoHAsync_v2(at, piece.address, piece.bytes, stream_)
                          : api_.cuMemcpyHtoDAsync_v2(piece.address, at, piece.bytes, stream_)));
        }
        return {};
    }

    Result<void> queue_staged(std::size_t number) {
        Staged& staged = staged_[number];
        const Result<void> queued = queue(*staged.chunk, slots_.of(number % CopySlots::kCount));
        // Waited for in the end, also for what was queued before a failure.
        const CUresult recorded = api_.cuEventRecord(events_[number % CopySlots::kCount], stream_);
        GANTRY_TRY(queued);
        GANTRY_TRY(check(recorded));
        staged.state.store(State::kQueued, std::memory_order_release);
        return {};
    }

    Result<void> copy_staged() {
        GANTRY_TRY(slots_.make(std::min(staged_.size(), CopySlots::kCount),
                               is_store_ ? FilePlan::kStoreChunkBytes : FilePlan::kLoadChunkBytes));
        const std::uint64_t step_bytes = is_store_ ? kStoreBytes : kLoadBytes;
        std::vector<Step> steps;
        for (std::size_t i = 0; i < staged_.size(); ++i) {
            const FileChunk& chunk = *staged_[i].chunk;
            for (std::uint64_t at = chunk.begin(); at < chunk.end();) {
                const std::uint64_t end =
                    std::min(chunk.end(), at / step_bytes * step_bytes + step_bytes);
                steps.push_back({i, at, end});
                ++staged_[i].steps_left;
                at = end;
            }
        }
        for (std::size_t i = 0; is_store_ && i < std::min(staged_.size(), CopySlots::kCount); ++i) {
            GANTRY_TRY(queue_staged(i));
        }
        threads_ = std::min<std::size_t>(
            steps.size(), std::clamp(std::thread::hardware_concurrency(), 1U, kCopyThreadsMax));
        {
            std::vector<std::jthread> helpers;
            for (std::size_t i = is_store_ ? 1 : 0; i < threads_; ++i) {
                helpers.emplace_back([&] { take_steps(steps); });
            }
            if (!is_store_) {
                if (beside_.landed) {
                    helpers.emplace_back([&] { tell_what_landed(); });
                }
                note(meanwhile());
            }
            take_steps(steps);
        }
        const MutexLock lock(mutex_);
        return outcome_;
    }

    Result<void> meanwhile() const {
        return beside_.meanwhile ? beside_.meanwhile() : Result<void>{};
    }

    /// The first failure ends it all.
    void note(const Result<void>& done) {
        if (!done) {
            const MutexLock lock(mutex_);
            outcome_ = outcome_ ? done : outcome_;
            failed_ = true;
        }
    }

    void take_steps(std::span<const Step> steps) {
        device_.bind_thread();
        for (std::size_t next = next_++; next < steps.size() && !failed_; next = next_++) {
            note(is_store_ ? store(steps[next]) : load(steps[next]));
        }
    }

    /// Of a load, all of whose chunks are staged. A chunk may be filled, and queued, before the one
    /// that it follows.
    void tell_what_landed() {
        device_.bind_thread();
        Waits untold;  // Nobody copies less for these.
        std::size_t begin = 0;
        for (std::size_t i = 0; i < staged_.size() && !failed_; ++i) {
            note(await(i, {}, untold));
            if (!failed_ && (i + 1 - begin == kToldAtOnce || i + 1 == staged_.size())) {
                note(beside_.landed(chunks_.subspan(begin, i + 1 - begin)));
                begin = i + 1;
            }
        }
    }

    /// The device empties a slot once all of it is filled.
    Result<void> load(const Step& step) {
        if (step.staged >= CopySlots::kCount) {
            // It had the slot before.
            GANTRY_TRY(await(step.staged - CopySlots::kCount, kAwake, waits_));
        }
        Staged& staged = staged_[step.staged];
        const std::uint64_t begin = staged.chunk->begin();
        std::byte* const to = slots_.of(step.staged % CopySlots::kCount) + (step.begin - begin);
        const std::uint64_t bytes = step.end - step.begin;
        std::byte* const from = staged.at == nullptr ? nullptr : staged.at + (step.begin - begin);
        const bool is_mapped = from != nullptr && pages_.on([&] {
            return ::madvise(from, bytes, MADV_POPULATE_READ);
        }) == 0;
        GANTRY_TRY(copying_.on([&]() -> Result<void> {
            if (!is_mapped) {
                return read(step.begin, {to, bytes});
            }
            copy_cached(to, {from, bytes});
            return {};
        }));
        return --staged.steps_left == 0 ? queue_staged(step.staged) : Result<void>{};
    }

    /// The device fills a slot again once all of it is empty.
    Result<void> store(const Step& step) {
        GANTRY_TRY(await(step.staged, kAwake, waits_));
        Staged& staged = staged_[step.staged];
        const std::uint64_t begin = staged.chunk->begin();
        if (!staged.has_pages) {
            GANTRY_TRY(pages_.on([&] { return allocate(step, staged.at + (step.begin - begin)); }));
        }
        const std::byte* const from = slots_.of(step.staged % CopySlots::kCount);
        copying_.on([&] {
            // What lies between pieces is somebody else's.
            for (const FilePiece& piece : staged.chunk->pieces) {
                const std::uint64_t first = std::max(piece.offset, step.begin);
                const std::uint64_t last = std::min(piece.offset + piece.bytes, step.end);
                if (first < last) {
                    write(staged, {from + (first - begin), last - first}, first - begin);
                }
            }
            return 0;
        });
        const std::size_t next = step.staged + CopySlots::kCount;
        return --staged.steps_left == 0 && next < staged_.size() ? queue_staged(next)
                                                                 : Result<void>{};
    }

    /// To a chunk's place in the file. What this thread has just had the system make, which clears
    /// it, lies in the caches; all else is written past them.
    static void write(const Staged& staged, std::span<const std::byte> bytes, std::uint64_t at) {
        if (staged.has_pages) {
            stream_copy(staged.at + at, bytes.data(), bytes.size());
            return;
        }
        copy_cached(staged.at + at, bytes);
    }

    static void copy_cached(std::byte* to, std::span<const std::byte> bytes) {
        for (std::size_t at = 0; at < bytes.size(); at += kCachedBytes) {
            std::memcpy(to + at, bytes.data() + at, std::min(kCachedBytes, bytes.size() - at));
        }
    }

    /// The pages of a step in the file, and in this process's table of them.
    Result<void> allocate(const Step& step, std::byte* at) {
        allocating_.acquire();
        Result<void> done =
            snapshot::make_pages(file_, "the file", step.begin, at, step.end - step.begin);
        allocating_.release();
        return done;
    }

    Result<void> wait(CUevent event) {
        return check(waits_.device.on([&] {
            CUresult result = api_.cuEventQuery(event);
            for (; result == CUDA_ERROR_NOT_READY; result = api_.cuEventQuery(event)) {
                std::this_thread::sleep_for(kLookAgain);
            }
            return result;
        }));
    }

    /// Until the device's copy of a chunk is done, or another thread has failed; without sleep for
    /// as long as `awake` at first.
    Result<void> await(std::size_t number, Clock::duration awake, Waits& waits) {
        const Staged& staged = staged_[number];
        auto since = Clock::now();
        Stopwatch* spent = &waits.others;  // Until they have filled, or emptied, its slot.
        Result<void> done = Error{Code::kCancelled, "state.file", "another thread has failed"};
        for (const Backoff patience(awake); !failed_; patience.wait()) {
            const State now = staged.state.load(std::memory_order_acquire);
            if (now != State::kIdle && spent == &waits.others) {
                const auto queued = Clock::now();
                std::exchange(spent, &waits.device)->add(queued - std::exchange(since, queued));
            }
            const std::optional<Result<void>> ended =
                now == State::kQueued ? look(number) : std::nullopt;
            if (ended || now == State::kLanded) {
                done = ended.value_or(Result<void>{});
                break;
            }
        }
        spent->add(Clock::now() - since);
        return done;
    }

    /// How the device's copy of a queued chunk ended; nothing: it has not, as far as is known. One
    /// thread asks the driver at a time; the others are told.
    std::optional<Result<void>> look(std::size_t number) {
        if (is_looking_.test_and_set(std::memory_order_acquire)) {
            return std::nullopt;
        }
        // If the event is another chunk's by now, this one has landed.
        const CUresult result = api_.cuEventQuery(events_[number % CopySlots::kCount]);
        is_looking_.clear(std::memory_order_release);
        if (result == CUDA_ERROR_NOT_READY) {
            return std::nullopt;
        }
        if (result == CUDA_SUCCESS) {
            staged_[number].state.store(State::kLanded, std::memory_order_release);
        }
        return check(result);
    }

    Result<void> read(std::uint64_t offset, std::span<std::byte> to) const {
        while (!to.empty()) {
            const ssize_t got = ::pread(file_, to.data(), to.size(), static_cast<off_t>(offset));
            if (got < 0 && errno == EINTR) {
                continue;
            }
            if (got < 0) {
                return Error{
                    Code::kUnavailable, "snapshot.io",
                    fmt::format("cannot read at offset {}: {}", offset, std::strerror(errno))};
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

    const driver::DriverApi& api_;
    worker::Device& device_;
    CUstream stream_;
    CopySlots& slots_;
    int file_;
    const bool is_store_;
    std::span<const FileChunk> chunks_;
    const PreparedFile* prepared_;
    const CopyHooks& beside_;
    std::unique_ptr<Mapping> map_;
    std::uint64_t map_from_ = 0;
    static constexpr std::size_t kLockedEvent = CopySlots::kCount;
    std::array<CUevent, CopySlots::kCount + 1> events_{};  ///< Of each slot, and of queue_locked().
    std::deque<Staged> staged_;
    std::atomic<std::size_t> next_{0};
    std::atomic<bool> failed_{false};
    std::counting_semaphore<> allocating_{kAllocatingMax};
    Mutex mutex_;
    Result<void> outcome_ GANTRY_GUARDED_BY(mutex_);
    std::atomic_flag is_looking_;
    Stopwatch pages_;
    Waits waits_;
    Stopwatch copying_;
    std::size_t threads_ = 0;
    std::int64_t took_ms_ = 0;
};

}  // namespace

Result<Transferred> transfer(worker::GuestProcess& process, CUstream stream, CopySlots& slots,
                             int file, Direction direction, std::span<const FileChunk> chunks,
                             const PreparedFile* prepared, const CopyHooks& beside) {
    Transfer one(process, stream, slots, file, direction, chunks, prepared, beside);
    GANTRY_TRY(one.run());
    return Transferred{one.how(), one.take_map()};
}

}  // namespace gantry::state
