// Commands: reserving records, publishing them, waiting for answers, and the migration rule.
#include <poll.h>
#include <sched.h>

#include <cstring>

#include "guest-shim/session/base/report.h"
#include "guest-shim/session/base/spin.h"
#include "guest-shim/session/base/trace.h"
#include "guest-shim/session/connection.h"
#include "guest-shim/session/profile.h"

namespace gantry::session {

Connection g_connection;
Gate g_gate;

namespace {

constexpr std::uint64_t kSpinNs = 10'000'000;
std::atomic<unsigned> g_spinners{0};

/// Wakes a worker that sleeps. The fence orders our publish before our look at its flag; the worker
/// raises the flag, fences, and looks at the ring once more before it sleeps. Rung first and noted
/// then: who rings beside us rings once too often, and nobody relies on a bell yet to be rung.
void ring_doorbell() noexcept {
    if (g_connection.attachment.sleep != wire::Sleep::kFutex) {
        return;
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const std::uint32_t sleep = g_connection.host->consumer_sleeps.load(std::memory_order_relaxed);
    if (sleep != 0 && sleep != g_connection.rung_for.load(std::memory_order_relaxed)) {
        g_connection.guest->doorbell.fetch_add(1, std::memory_order_release);
        wire::futex_wake_all(&g_connection.guest->doorbell);
        g_connection.rung_for.store(sleep, std::memory_order_relaxed);
    }
}

CUresult reserve_on(std::uint16_t op, std::uint32_t lane, std::uint32_t args_bytes,
                    std::uint32_t trailing_bytes, wire::RingRecord* record) noexcept {
    wire::RingProducer& ring = g_connection.ring;
    if (__builtin_expect(ring.try_reserve(op, static_cast<std::uint16_t>(lane), args_bytes,
                                          trailing_bytes, record),
                         1)) {
        return CUDA_SUCCESS;
    }
    if (wire::record_bytes(args_bytes, trailing_bytes) >
        wire::max_record_bytes(ring.ring_bytes())) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const ProfiledWait profiled_wait;
    wire::Backoff backoff;
    if (g_connection.cpus < kCpusToSpin) {
        backoff.stop_spinning();  // A full ring is work for longer than that, of other threads.
    }
    while (!ring.try_reserve(op, static_cast<std::uint16_t>(lane), args_bytes, trailing_bytes,
                             record)) {
        if (!backoff.spinning() && worker_is_gone()) {
            return closed_result();
        }
        backoff.pause();
    }
    return CUDA_SUCCESS;
}

const std::atomic<std::uint32_t>* low_half(const std::atomic<std::uint64_t>& word) {
    return reinterpret_cast<const std::atomic<std::uint32_t>*>(&word);
}

/// Sleeps until `word` may have reached `expected` or some time has passed. Only a change of the
/// lane's reply page wakes a sleeper; other words are polled.
void sleep_for(const std::atomic<std::uint64_t>& word, std::uint64_t expected, std::uint32_t lane,
               wire::Backoff* backoff) noexcept {
    if (g_connection.attachment.sleep == wire::Sleep::kPoll || backoff->spinning() ||
        &word != &g_connection.replies[lane].seq) {
        backoff->pause();
        return;
    }
    std::atomic<std::uint32_t>& waiting = g_connection.guest->lane_waiting[lane];
    const std::uint64_t seen = word.load(std::memory_order_acquire);
    waiting.store(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (seen != expected && word.load(std::memory_order_acquire) == seen) {
        wire::futex_wait(low_half(word), static_cast<std::uint32_t>(seen), kWaitSliceNs);
    }
    waiting.store(0, std::memory_order_relaxed);
}

/// Spins, as native waits do: waking a sleeper costs more than most copies and kernels take. Not
/// where processors are few, nor when many threads wait already.
bool spin_until(const std::atomic<std::uint64_t>& word, std::uint64_t expected,
                std::uint64_t most_ns) noexcept {
    if (g_connection.cpus < kCpusToSpin) {
        return false;
    }
    if (g_spinners.fetch_add(1, std::memory_order_relaxed) >= g_connection.cpus / 2) {
        g_spinners.fetch_sub(1, std::memory_order_relaxed);
        return false;
    }
    constexpr unsigned kLooks = 256;
    const bool reached = look_until(
        [&] { return word.load(std::memory_order_acquire) == expected; }, most_ns, kLooks);
    g_spinners.fetch_sub(1, std::memory_order_relaxed);
    return reached;
}

/// The same where processors are few: whoever is waited for may want this one, so it is offered
/// again and again. Where that is what helped, time after time, both are on one processor and stay
/// there, as neither sleeps: then the next wait does, and who wakes this thread finds it a better
/// one.
bool yield_until(const std::atomic<std::uint64_t>& word, std::uint64_t expected) noexcept {
    constexpr unsigned kYields = 16;
    constexpr unsigned kFirstLooks = 256;  // A short call comes back by then.
    constexpr unsigned kLooks = 64;
    constexpr unsigned kCrowdedWaits = 8;
    static std::atomic<unsigned> g_crowded_waits{0};
    if (g_connection.cpus >= kCpusToSpin) {
        return false;
    }
    const unsigned crowded = g_crowded_waits.load(std::memory_order_relaxed);
    if (crowded >= kCrowdedWaits) {
        g_crowded_waits.store(0, std::memory_order_relaxed);
        return false;
    }
    for (unsigned yields = 0; yields < kYields; ++yields) {
        const unsigned looks = yields == 0 ? kFirstLooks : kLooks;
        for (unsigned look = 0; look < looks; ++look) {
            if (word.load(std::memory_order_acquire) == expected) {
                if (look != 0 && crowded != 0) {
                    g_crowded_waits.store(0, std::memory_order_relaxed);
                } else if (look == 0 && yields != 0) {
                    g_crowded_waits.store(crowded + 1, std::memory_order_relaxed);
                }
                return true;
            }
            wire::cpu_relax();
        }
        sched_yield();
    }
    return false;
}

/// Waits until `word` holds `expected`; false when the worker has gone before.
bool wait_for(const std::atomic<std::uint64_t>& word, std::uint64_t expected,
              std::uint32_t lane) noexcept {
    if (word.load(std::memory_order_acquire) == expected || spin_until(word, expected, kSpinNs) ||
        yield_until(word, expected)) {
        return true;
    }
    wire::Backoff backoff;
    if (g_connection.cpus < kCpusToSpin) {
        backoff.stop_spinning();
    }
    while (word.load(std::memory_order_acquire) != expected) {
        if (!backoff.spinning() && worker_is_gone()) {
            return word.load(std::memory_order_acquire) == expected;
        }
        sleep_for(word, expected, lane, &backoff);
    }
    return true;
}

/// The rule of region.h for answers during an announced migration: touch every page that the host
/// wrote, then a confirm must come back. True when the answer may be consumed.
bool confirm(std::uint32_t lane, std::uint64_t expected, const Exchange& exchange,
             std::uint32_t announce) noexcept {
    wire::ReplyPage& reply = g_connection.replies[lane];
    touch_page(&reply);
    for (std::uint32_t page = 0; page < exchange.touch_pages; ++page) {
        touch_page(g_connection.bulk.at((exchange.touch_first + page) * wire::kPageBytes));
    }
    touch_pinned();
    wire::RingRecord record;
    if (reserve_on(static_cast<std::uint16_t>(wire::ControlOp::kConfirm), lane, 0, 0, &record) !=
        CUDA_SUCCESS) {
        return false;
    }
    record.publish();
    ring_doorbell();
    if (!wait_for(g_connection.host->confirm_seq[lane], record.position + 1, lane)) {
        return false;
    }
    g_connection.guest->announce_seen.store(announce, std::memory_order_release);
    return reply.seq.load(std::memory_order_acquire) == expected;
}

/// Waits for a lane's answer and makes sure that it will survive a migration.
bool await_answer(std::uint32_t lane, std::uint64_t expected, const Exchange& exchange) noexcept {
    const wire::ReplyPage& reply = g_connection.replies[lane];
    ProfiledWait profiled_wait;
    for (;;) {
        if (!wait_for(reply.seq, expected, lane)) {
            return false;
        }
        profiled_wait.device(static_cast<std::uint64_t>(reply.device_wait_ns));
        const std::uint32_t announce = g_connection.host->announce.load(std::memory_order_acquire);
        if (__builtin_expect((announce & 1) == 0, 1)) {
            return true;
        }
        if (confirm(lane, expected, exchange, announce)) {
            return true;
        }
        if (worker_is_gone()) {
            return false;
        }
    }
}

/// Copies the answer out of the host's pages.
void take_answer(std::uint32_t lane, Exchange* exchange) noexcept {
    const wire::ReplyPage& page = g_connection.replies[lane];
    const std::uint32_t payload = page.payload_bytes < wire::kReplyInlineBytes
                                      ? page.payload_bytes
                                      : static_cast<std::uint32_t>(wire::kReplyInlineBytes);
    exchange->bulk_bytes = page.bulk_bytes;
    if (exchange->reply_bytes != 0) {
        const std::uint32_t inline_bytes =
            payload < exchange->reply_bytes ? payload : exchange->reply_bytes;
        wire::copy_few(exchange->reply, page.payload, inline_bytes);
        if (inline_bytes < exchange->reply_bytes) {
            std::memset(static_cast<std::byte*>(exchange->reply) + inline_bytes, 0,
                        exchange->reply_bytes - inline_bytes);
        }
    }
    if (exchange->reply_trailing_capacity == 0) {
        return;
    }
    const std::uint64_t first = exchange->touch_first * wire::kPageBytes;
    const std::uint64_t room = exchange->touch_pages * wire::kPageBytes;
    const auto skip = static_cast<std::uint32_t>(wire::align_up(exchange->reply_bytes, 8));
    std::uint64_t got = 0;
    const std::byte* source = nullptr;
    if (exchange->touch_pages != 0 && page.bulk_bytes != 0 && page.bulk_offset >= first &&
        page.bulk_bytes <= room && page.bulk_offset - first <= room - page.bulk_bytes) {
        got = page.bulk_bytes;
        source = g_connection.bulk.at(page.bulk_offset);
    } else if (payload > skip) {
        got = payload - skip;
        source = page.payload + skip;
    }
    if (got > exchange->reply_trailing_capacity) {
        got = exchange->reply_trailing_capacity;
    }
    std::memcpy(exchange->reply_trailing, source, got);
    exchange->reply_trailing_bytes = static_cast<std::uint32_t>(got);
}

void fill(const wire::RingRecord& record, const void* args, std::uint32_t args_bytes,
          const void* trailing, std::uint32_t trailing_bytes) noexcept {
    if (args_bytes != 0) {
        std::memcpy(record.args(), args, args_bytes);
    }
    if (trailing_bytes != 0) {
        std::memcpy(record.trailing(), trailing, trailing_bytes);
    }
}

/// After an answer: output first (an assert's message belongs before its error), then stickiness.
CUresult settle(std::uint32_t lane, bool may_drain) noexcept {
    const wire::ReplyPage& page = g_connection.replies[lane];
    const auto status = static_cast<CUresult>(page.status);
    const bool output = (page.flags & wire::kReplyOutputPending) != 0;
    if (__builtin_expect(output && may_drain, 0)) {
        drain_output(lane);
    }
    const std::uint32_t sticky = g_connection.host->sticky_error.load(std::memory_order_acquire);
    if (__builtin_expect(sticky != 0, 0)) {
        break_session(static_cast<CUresult>(sticky));
    }
    return status;
}

/// Offers an extent of the bulk area when the answer may be larger than the reply page.
bool offer_extent(Exchange* exchange) noexcept {
    const std::uint64_t inline_bytes =
        wire::align_up(exchange->reply_bytes, 8) + exchange->reply_trailing_capacity;
    if (exchange->touch_pages != 0 || inline_bytes <= wire::kReplyInlineBytes) {
        return true;
    }
    std::uint64_t pages =
        wire::align_up(exchange->reply_trailing_capacity, wire::kPageBytes) / wire::kPageBytes;
    const std::uint64_t most = g_connection.bulk.bytes() / wire::kPageBytes / 3 * 2;
    pages = pages < most ? pages : most;
    if (!g_connection.bulk.allocate(static_cast<std::uint32_t>(pages), &exchange->touch_first)) {
        return false;
    }
    exchange->touch_pages = static_cast<std::uint32_t>(pages);
    return true;
}

}  // namespace

CUresult usable_thread(Thread** out) noexcept {
    const CUresult closed = gate();
    if (__builtin_expect(closed != CUDA_SUCCESS, 0)) {
        return closed;
    }
    Thread* self = thread();
    if (__builtin_expect(self == nullptr, 0)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (__builtin_expect(self->in_callback != 0, 0)) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    *out = self;
    return CUDA_SUCCESS;
}

bool spin_for(const std::atomic<std::uint64_t>& word, std::uint64_t expected,
              std::uint64_t most_ns) noexcept {
    return spin_until(word, expected, most_ns);
}

CUresult post_on(std::uint32_t lane, std::uint64_t context, wire::ControlOp op, const void* args,
                 std::uint32_t args_bytes, const void* trailing, std::uint32_t trailing_bytes,
                 std::uint64_t* position, std::uint64_t* end) noexcept {
    wire::RingRecord record;
    if (const CUresult result =
            reserve_on(static_cast<std::uint16_t>(op), lane, args_bytes, trailing_bytes, &record);
        result != CUDA_SUCCESS) {
        return result;
    }
    record.header->context = context;
    fill(record, args, args_bytes, trailing, trailing_bytes);
    if (__builtin_expect(tracing(), 0)) {
        trace_command(record.header->op, args, args_bytes, trailing_bytes);
    }
    *position = record.position;
    *end = record.position + record.header->bytes;
    record.publish();
    ring_doorbell();
    return CUDA_SUCCESS;
}

CUresult closed_result() noexcept {
    switch (g_gate.state.load(std::memory_order_acquire)) {
        case State::kReady: return CUDA_SUCCESS;
        case State::kEnded: return CUDA_ERROR_DEINITIALIZED;
        case State::kBroken:
            return static_cast<CUresult>(g_gate.broken_result.load(std::memory_order_acquire));
        default: return CUDA_ERROR_NOT_INITIALIZED;
    }
}

CUresult break_session(CUresult result) noexcept {
    std::uint32_t none = 0;
    g_gate.broken_result.compare_exchange_strong(none, static_cast<std::uint32_t>(result));
    State ready = State::kReady;
    g_gate.state.compare_exchange_strong(ready, State::kBroken);
    return closed_result();
}

bool worker_is_gone() noexcept {
    const Connection& connection = g_connection;
    if (g_gate.state.load(std::memory_order_acquire) == State::kForked) {
        return true;
    }
    const wire::WorkerState state = connection.host->worker_state.load(std::memory_order_acquire);
    bool gone = state == wire::WorkerState::kDead || state == wire::WorkerState::kDisowned;
    if (!gone && connection.attachment.link_fd >= 0) {
        pollfd link{connection.attachment.link_fd, POLLRDHUP, 0};
        gone = poll(&link, 1, 0) > 0 && (link.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
    }
    if (gone) {
        const std::uint32_t sticky = connection.host->sticky_error.load(std::memory_order_acquire);
        break_session(sticky != 0 ? static_cast<CUresult>(sticky) : CUDA_ERROR_UNKNOWN);
    }
    return gone;
}

CUresult exchange_on(std::uint32_t lane, std::uint64_t context, Exchange* exchange,
                     bool may_drain) noexcept {
    const bool offered_here = exchange->touch_pages == 0;
    if (__builtin_expect(reporting(), 0)) {
        note_round_trip(exchange->op);
    }
    if (!offer_extent(exchange)) {
        return closed_result() != CUDA_SUCCESS ? closed_result() : CUDA_ERROR_OUT_OF_MEMORY;
    }
    wire::RingRecord record;
    CUresult result =
        reserve_on(exchange->op, lane, exchange->args_bytes, exchange->trailing_bytes, &record);
    if (result == CUDA_SUCCESS) {
        record.header->context = context;
        record.header->flags = wire::kCommandWantsReply | exchange->flags;
        record.header->bulk_page = static_cast<std::uint16_t>(exchange->touch_first);
        record.header->bulk_pages = static_cast<std::uint16_t>(exchange->touch_pages);
        fill(record, exchange->args, exchange->args_bytes, exchange->trailing,
             exchange->trailing_bytes);
        exchange->end = record.position + record.header->bytes;
        record.publish();
        ring_doorbell();
        if (await_answer(lane, record.position + 1, *exchange)) {
            take_answer(lane, exchange);
            result = settle(lane, may_drain);
        } else {
            result = closed_result() != CUDA_SUCCESS ? closed_result() : CUDA_ERROR_UNKNOWN;
        }
    }
    if (offered_here && exchange->touch_pages != 0) {
        g_connection.bulk.free(exchange->touch_first, exchange->touch_pages);
        exchange->touch_pages = 0;
    }
    return result;
}

namespace {

std::uint32_t take_flags(Thread* self) noexcept {
    const std::uint32_t flags = self->next_flags;
    if (__builtin_expect(flags != 0, 0)) {
        self->next_flags = 0;
    }
    return flags;
}

}  // namespace

CUresult exchange(Exchange* exchange) noexcept {
    Thread* self = nullptr;
    if (const CUresult refused = usable_thread(&self); refused != CUDA_SUCCESS) {
        return refused;
    }
    // Held through the wait: threads that share a lane must not have two questions open. Output is
    // drained on the same lane, after the answer has been taken.
    Guard guard(g_connection.lane_mutex[self->lane]);
    exchange->flags = take_flags(self);
    const CUresult result = exchange_on(self->lane, self->current, exchange, true);
    self->answered_end = exchange->end;
    return result;
}

// Where every call is synchronous, the lane stays locked until finish().
CUresult reserve(std::uint16_t op, std::uint32_t args_bytes, std::uint32_t trailing_bytes,
                 Record* out) noexcept GANTRY_NO_THREAD_SAFETY_ANALYSIS {
    Thread* self = nullptr;
    if (const CUresult refused = usable_thread(&self); refused != CUDA_SUCCESS) {
        return refused;
    }
    const bool synchronous = g_connection.environment.synchronous;
    if (__builtin_expect(synchronous, 0)) {
        g_connection.lane_mutex[self->lane].lock();
    }
    wire::RingRecord record;
    const CUresult result = reserve_on(op, self->lane, args_bytes, trailing_bytes, &record);
    if (__builtin_expect(result != CUDA_SUCCESS, 0)) {
        if (synchronous) {
            g_connection.lane_mutex[self->lane].unlock();
        }
        return result;
    }
    record.header->context = self->current;
    record.header->flags = take_flags(self) | (synchronous ? wire::kCommandWantsReply : 0u);
    *out = Record{record.args(), record.trailing(), record.header, record.position};
    return CUDA_SUCCESS;
}

// Unlocks what reserve() has locked.
CUresult finish(const Record& record) noexcept GANTRY_NO_THREAD_SAFETY_ANALYSIS {
    auto* header = static_cast<wire::CommandHeader*>(record.header);
    if (__builtin_expect(tracing(), 0)) {
        trace_command(header->op, record.args, header->args_bytes, header->trailing_bytes);
    }
    const std::uint32_t lane = header->lane;
    const bool synchronous = g_connection.environment.synchronous;
    header->publish.store(record.position + 1, std::memory_order_release);
    ring_doorbell();
    if (__builtin_expect(!synchronous, 1)) {
        return CUDA_SUCCESS;
    }
    const Exchange nothing;
    CUresult result = CUDA_SUCCESS;
    if (await_answer(lane, record.position + 1, nothing)) {
        result = settle(lane, true);
    } else {
        result = closed_result() != CUDA_SUCCESS ? closed_result() : CUDA_ERROR_UNKNOWN;
    }
    g_connection.lane_mutex[lane].unlock();
    return result;
}

namespace {

CUresult post_any(std::uint16_t op, const void* args, std::uint32_t args_bytes,
                  const void* trailing, std::uint32_t trailing_bytes) noexcept {
    Record record;
    if (const CUresult result = reserve(op, args_bytes, trailing_bytes, &record);
        __builtin_expect(result != CUDA_SUCCESS, 0)) {
        return result;
    }
    if (args_bytes != 0) {
        std::memcpy(record.args, args, args_bytes);
    }
    if (trailing_bytes != 0) {
        std::memcpy(record.trailing, trailing, trailing_bytes);
    }
    return finish(record);
}

}  // namespace

CUresult post(cuda::Op op, const void* args, std::uint32_t args_bytes, const void* trailing,
              std::uint32_t trailing_bytes) noexcept {
    return post_any(static_cast<std::uint16_t>(op), args, args_bytes, trailing, trailing_bytes);
}

CUresult post_control(wire::ControlOp op, const void* args, std::uint32_t args_bytes,
                      const void* trailing, std::uint32_t trailing_bytes) noexcept {
    return post_any(static_cast<std::uint16_t>(op), args, args_bytes, trailing, trailing_bytes);
}

CUresult call(cuda::Op op, const void* args, std::uint32_t args_bytes, const void* trailing,
              std::uint32_t trailing_bytes, void* reply, std::uint32_t reply_bytes,
              void* reply_trailing, std::uint32_t reply_trailing_capacity,
              std::uint32_t* reply_trailing_bytes) noexcept {
    Exchange command{.op = static_cast<std::uint16_t>(op),
                     .args = args,
                     .args_bytes = args_bytes,
                     .trailing = trailing,
                     .trailing_bytes = trailing_bytes,
                     .reply = reply,
                     .reply_bytes = reply_bytes,
                     .reply_trailing = reply_trailing,
                     .reply_trailing_capacity = reply_trailing_capacity};
    if (__builtin_expect(tracing(), 0)) {
        trace_command(command.op, args, args_bytes, trailing_bytes);
    }
    const CUresult result = exchange(&command);
    if (reply_trailing_bytes != nullptr) {
        *reply_trailing_bytes = command.reply_trailing_bytes;
    }
    return result;
}

bool migration_announced() noexcept {
    return g_gate.state.load(std::memory_order_acquire) == State::kReady &&
           (g_connection.host->announce.load(std::memory_order_acquire) & 1) != 0;
}

std::uint32_t max_trailing(std::uint32_t args_bytes) noexcept {
    const std::uint64_t most = wire::max_record_bytes(g_connection.ring.ring_bytes());
    const std::uint64_t fixed = sizeof(wire::CommandHeader) + wire::align_up(args_bytes, 8);
    return static_cast<std::uint32_t>(most - fixed);
}

std::uint64_t mint(HandleKind kind) noexcept { return mint_many(kind, 1); }

std::uint64_t mint_many(HandleKind kind, std::uint64_t count) noexcept {
    return cuda::counted_handle(kind, g_connection.next_number.fetch_add(count));
}

void unmint(std::uint64_t first, std::uint64_t count, std::uint64_t used) noexcept {
    const std::uint64_t number = cuda::handle_number(first);
    std::uint64_t end = number + count;
    g_connection.next_number.compare_exchange_strong(end, number + used);
}

}  // namespace gantry::session
