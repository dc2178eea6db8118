// Device bytes to pageable memory: slices are read into the bulk area and copied out while the
// device reads the next one. Where that is not possible (the area is not page-locked yet,
// processors are few) or what the host shows does not count (a migration is announced), each slice
// is a command with an answer.
#include <cstring>

#include "guest-shim/session/base/trace.h"
#include "guest-shim/session/copy.h"
#include "guest-shim/session/crew.h"
#include "guest-shim/session/profile.h"

namespace gantry::session {
namespace {

constexpr unsigned kMostReaders = 6;
static_assert(kMostReaders - 1 <= kMostHelpers);
constexpr std::uint64_t kMostShownBytes = 512ull << 10;
/// As long as an answer is spun for; what keeps the host from showing anything is looked for often.
constexpr std::uint64_t kEndPatienceNs = 10'000'000;
constexpr std::uint64_t kEndLookNs = 200'000;
constexpr std::uint32_t kFirstReadWord = Outbox::kCells;

struct Slice {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t position = 0;
    std::uint32_t word = 0;
    std::uint32_t page = 0;
};

FutexMutex g_words_mutex;
std::uint64_t g_words_used GANTRY_GUARDED_BY(g_words_mutex) =
    0;  // A bit a word, from kFirstReadWord on.
static_assert(kFirstReadWord + 64 <= wire::kBulkWords);

bool take_word(std::uint32_t* word) noexcept {
    Guard guard(g_words_mutex);
    if (~g_words_used == 0) {
        return false;
    }
    const auto bit = static_cast<std::uint32_t>(__builtin_ctzll(~g_words_used));
    g_words_used |= 1ull << bit;
    *word = kFirstReadWord + bit;
    return true;
}

void put_word_back(std::uint32_t word) noexcept {
    Guard guard(g_words_mutex);
    g_words_used &= ~(1ull << (word - kFirstReadWord));
}

std::uint32_t pages_of(std::uint64_t bytes) noexcept {
    return static_cast<std::uint32_t>(wire::align_up(bytes, wire::kPageBytes) / wire::kPageBytes);
}

std::byte* bytes_at(std::uint32_t page) noexcept {
    return g_connection.bulk.at(page * wire::kPageBytes);
}

/// Reads a slice by a command with an answer: whatever was queued in the stream before has ended.
CUresult read_answered(Copy* copy, const Slice& slice) noexcept {
    const wire::ReadDeviceCall arguments{copy->address + slice.offset, slice.bytes, copy->stream,
                                         slice.page * wire::kPageBytes};
    Exchange command;
    command.op = static_cast<std::uint16_t>(wire::ControlOp::kReadDevice);
    command.args = &arguments;
    command.args_bytes = sizeof(arguments);
    command.touch_first = slice.page;
    command.touch_pages = pages_of(slice.bytes);
    if (tracing()) {
        trace_command(command.op, &arguments, sizeof(arguments), 0);
    }
    // Threads that share a lane must not have two questions open.
    Guard guard(g_connection.lane_mutex[copy->lane]);
    const CUresult result = exchange_on(copy->lane, copy->context, &command, true);
    copy->note_end(command.end);
    return result;
}

void copy_out(const Copy& copy, const Slice& slice) noexcept {
    std::memcpy(copy.host + slice.offset, bytes_at(slice.page), slice.bytes);
}

CUresult post_read(Copy* copy, Slice* slice) noexcept {
    const wire::BulkCopyCall arguments{copy->address + slice->offset,  slice->bytes, copy->stream,
                                       slice->page * wire::kPageBytes, slice->word,  0};
    return copy->post(wire::ControlOp::kReadToBulk, &arguments, sizeof(arguments), nullptr, 0,
                      &slice->position);
}

bool shows_reads() noexcept {
    return g_connection.host->bulk_locked.load(std::memory_order_acquire) != 0;
}

/// Spins for the slice's end: what was queued before the copy may take a while.
bool comes_in_time(const Copy& copy, const std::atomic<std::uint64_t>& word,
                   std::uint64_t ended) noexcept {
    ProfiledWait profiled_wait;
    for (std::uint64_t spun = 0; spun < kEndPatienceNs; spun += kEndLookNs) {
        if (spin_for(word, ended, kEndLookNs)) {
            profiled_wait.device(kWholeWait);
            return true;
        }
        if (g_connection.cpus < kCpusToSpin || !copy.is_unannounced() || !shows_reads()) {
            return false;
        }
    }
    return false;
}

/// The host shows that the slice has arrived, and that counts. Once one did not in time, others are
/// not waited for: a kernel runs before the copy, or a capture keeps the host from looking.
bool is_shown(const Copy& copy, const Slice& slice) noexcept {
    const auto& word = g_connection.host->bulk_done[slice.word];
    const std::uint64_t ended = slice.position + 1;
    return copy.is_unannounced() &&
           (word.load(std::memory_order_acquire) == ended ||
            (!copy.is_late.load(std::memory_order_relaxed) && comes_in_time(copy, word, ended))) &&
           copy.is_unannounced();
}

/// Two slices in flight: one arrives while the other is copied out.
class Window {
public:
    explicit Window(Copy* copy) noexcept : copy_(copy) {}
    ~Window() {
        for (unsigned i = 0; i < count_; ++i) {
            put_word_back(slices_[i].word);
            g_connection.bulk.free(slices_[i].page, pages_);
        }
    }
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;

    /// False without room or where nothing would be shown.
    bool open() noexcept {
        const unsigned wanted = copy_->bytes > copy_->slice ? 2 : 1;
        const std::uint64_t most = wanted == 1 ? copy_->bytes : copy_->slice;
        pages_ = pages_of(most);
        while (count_ < wanted && is_possible() && take_word(&slices_[count_].word)) {
            if (!g_connection.bulk.try_allocate(pages_, &slices_[count_].page)) {
                put_word_back(slices_[count_].word);
                break;
            }
            ++count_;
        }
        return count_ == wanted;
    }

    void run() noexcept {
        for (;;) {
            while (in_flight_ < count_ && post_next()) {
            }
            if (in_flight_ == 0) {
                return;
            }
            finish(&slices_[oldest_]);
            oldest_ = (oldest_ + 1) % count_;
            --in_flight_;
        }
    }

private:
    [[nodiscard]] bool is_possible() const noexcept {
        return copy_->is_shared && !copy_->is_late.load(std::memory_order_relaxed) &&
               g_connection.cpus >= kCpusToSpin && copy_->is_unannounced() && shows_reads();
    }

    bool post_next() noexcept {
        Slice& slice = slices_[(oldest_ + in_flight_) % count_];
        if (!is_possible() || !copy_->claim(&slice.offset, &slice.bytes)) {
            return false;
        }
        const CUresult result = post_read(copy_, &slice);
        copy_->note_result(result);
        in_flight_ += result == CUDA_SUCCESS ? 1 : 0;
        return result == CUDA_SUCCESS;
    }

    /// Also after an error: what is in flight must not be left writing into memory that is free.
    void finish(Slice* slice) noexcept {
        if (is_shown(*copy_, *slice)) {
            copy_->was_shown.store(true, std::memory_order_relaxed);
            copy_->is_late.store(false, std::memory_order_relaxed);
        } else {
            copy_->is_late.store(true, std::memory_order_relaxed);
            copy_->note_result(read_answered(copy_, *slice));
        }
        if (copy_->result.load(std::memory_order_relaxed) == 0) {
            copy_out(*copy_, *slice);
        }
    }

    Copy* copy_;
    Slice slices_[2];
    std::uint32_t pages_ = 0;
    unsigned count_ = 0;
    unsigned oldest_ = 0;
    unsigned in_flight_ = 0;
};

/// False when there is nothing left to do, or no room for it.
bool read_next_answered(Copy* copy) noexcept {
    Slice slice;
    if (!copy->claim(&slice.offset, &slice.bytes)) {
        return false;
    }
    const std::uint32_t pages = pages_of(slice.bytes);
    if (!g_connection.bulk.allocate(pages, &slice.page)) {
        const CUresult closed = closed_result();
        copy->note_result(closed != CUDA_SUCCESS ? closed : CUDA_ERROR_OUT_OF_MEMORY);
        return false;
    }
    const CUresult result = read_answered(copy, slice);
    copy->note_result(result);
    if (result == CUDA_SUCCESS) {
        copy_out(*copy, slice);
    }
    g_connection.bulk.free(slice.page, pages);
    return result == CUDA_SUCCESS;
}

void read_part(void* given) {
    auto* copy = static_cast<Copy*>(given);
    do {
        Window window(copy);
        if (window.open()) {
            window.run();
        }
    } while (read_next_answered(copy));
}

/// The last bytes once more, for the error that waits for its lane's next answer.
CUresult ask_for_errors(Copy* copy) noexcept {
    constexpr std::uint64_t kFewBytes = 4;
    copy->result.store(0);
    copy->next.store(copy->bytes < kFewBytes ? 0 : copy->bytes - kFewBytes);
    read_next_answered(copy);
    return static_cast<CUresult>(copy->result.load());
}

}  // namespace

CUresult read_device(void* target, std::uint64_t address, std::uint64_t bytes,
                     std::uint64_t stream) noexcept {
    Thread* self = nullptr;
    if (const CUresult refused = usable_thread(&self); refused != CUDA_SUCCESS) {
        return refused;
    }
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    Copy copy;
    copy.begin(*self);
    copy.host = static_cast<std::byte*>(target);
    copy.address = address;
    copy.bytes = bytes;
    copy.stream = stream;
    const std::uint64_t room = g_connection.bulk.bytes();
    copy.slice = copy.is_shared && g_connection.cpus >= kCpusToSpin
                     ? slice_for(bytes, room / 16 < kMostShownBytes ? room / 16 : kMostShownBytes)
                     : (room / 3 < kSliceBytes ? room / 3 : kSliceBytes);
    work_together(help_for(bytes, kMostReaders), read_part, &copy);
    auto result = static_cast<CUresult>(copy.result.load());
    if (copy.was_shown.load() && !is_quiet(self, *g_connection.host)) {
        const CUresult late = ask_for_errors(&copy);
        result = result == CUDA_SUCCESS ? late : result;
    }
    self->answered_end = copy.end.load();
    return result;
}

}  // namespace gantry::session
