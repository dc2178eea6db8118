// The command ring: one per channel, many producers (guest threads), one consumer (the worker).
//
// RECORD. CommandHeader, then args_bytes of arguments, then trailing bytes; the whole is a multiple
// of kRecordAlign and never straddles the end of the ring (a kPad record fills the rest).
//
// ORDER. A producer reserves [position, position + bytes) by advancing the guest process's tail,
// writes the record and publishes it by storing position + 1 into `publish` (release). Positions
// only grow, so an old record can not be taken for a new one. Reservation order is execution order.
//
// SPACE. The consumer stores into HostWords.head the position below which it needs nothing more.
//
// FAILURE. The consumer trusts nothing: it copies the header once, checks it against limits, copies
// the body, and only then uses it. A bad record stops the channel, with a reason.
//
// COST. A launch is one compare-and-swap, one copy and one release store on the guest's side. The
// lines of records to come are asked for in advance: the consumer read them a lap ago, and the next
// compare-and-swap would otherwise wait until this record's stores have got theirs.
#pragma once

#include <atomic>
#include <cstring>

#include "proto/wire/control_ops.h"
#include "proto/wire/region.h"

namespace gantry::wire {

inline constexpr std::uint32_t kRecordAlign = 64;

enum CommandFlag : std::uint32_t {
    kCommandWantsReply = 1u << 0,
    /// The first of a thread on a lane that others have left: errors kept for the lane are theirs.
    kCommandNewThread = 1u << 1,
    /// The thread's next command waits for what this one queues. No more than a hint: the consumer
    /// need not look for that command before it makes ready for it.
    kCommandIsAwaited = 1u << 2,
};

struct CommandHeader {
    std::atomic<std::uint64_t> publish;  ///< Position of this record plus 1, stored last.
    std::uint32_t bytes;                 ///< Of the whole record, a multiple of kRecordAlign.
    std::uint16_t op;                    ///< ControlOp or cuda::Op.
    std::uint16_t lane;
    std::uint64_t context;     ///< Calling thread's current context handle, 0 if none.
    std::uint32_t flags;       ///< CommandFlag bits.
    std::uint32_t args_bytes;  ///< Fixed arguments; trailing bytes start 8-aligned after.
    std::uint32_t trailing_bytes;
    std::uint16_t bulk_page;   ///< First page of the bulk extent offered for the answer.
    std::uint16_t bulk_pages;  ///< Its length; 0: none offered.
};
static_assert(sizeof(CommandHeader) == 40);

constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

constexpr std::uint64_t record_bytes(std::uint32_t args_bytes, std::uint32_t trailing_bytes) {
    return align_up(sizeof(CommandHeader) + align_up(args_bytes, 8) + trailing_bytes, kRecordAlign);
}

/// A record may take at most a quarter of the ring, so that a full ring always drains.
constexpr std::uint64_t max_record_bytes(std::uint64_t ring_bytes) { return ring_bytes / 4; }

/// A reserved record: fill args() and trailing(), then publish().
struct RingRecord {
    CommandHeader* header = nullptr;
    std::uint64_t position = 0;

    [[nodiscard]] std::byte* args() const {
        return reinterpret_cast<std::byte*>(header) + sizeof(CommandHeader);
    }
    [[nodiscard]] std::byte* trailing() const { return args() + align_up(header->args_bytes, 8); }
    void publish() const { header->publish.store(position + 1, std::memory_order_release); }
};

/// Ring bytes that only the commands of host callbacks may use. A driver may hold a launch up until
/// a callback has ended; were the ring full of launches, its end could not be told.
inline constexpr std::uint64_t kCallbackRoomBytes = 4096;

constexpr bool is_callback_op(std::uint16_t op) {
    return op == static_cast<std::uint16_t>(ControlOp::kWaitCallback) ||
           op == static_cast<std::uint16_t>(ControlOp::kCallbackDone);
}

/// Guest side. `tail` lives in the guest process's private memory, one per process.
class RingProducer {
public:
    void attach(std::byte* ring, std::uint64_t ring_bytes, const std::atomic<std::uint64_t>* head,
                std::uint64_t start) {
        ring_ = ring;
        ring_bytes_ = ring_bytes;
        head_ = head;
        seen_head_.store(start, std::memory_order_relaxed);
        tail_.store(start, std::memory_order_relaxed);
    }

    /// Tries to reserve a record; false when the ring has no room for it now. The caller has
    /// checked record_bytes() against max_record_bytes().
    bool try_reserve(std::uint16_t op, std::uint16_t lane, std::uint32_t args_bytes,
                     std::uint32_t trailing_bytes, RingRecord* out) {
        const std::uint64_t bytes = record_bytes(args_bytes, trailing_bytes);
        const std::uint64_t kept = is_callback_op(op) ? 0 : kCallbackRoomBytes;
        std::uint64_t tail = tail_.load(std::memory_order_relaxed);
        std::uint64_t pad = 0;
        do {
            const std::uint64_t room_to_end = ring_bytes_ - (tail & (ring_bytes_ - 1));
            pad = bytes <= room_to_end ? 0 : room_to_end;
            if (!has_room(tail + pad + bytes + kept)) {
                return false;
            }
        } while (!tail_.compare_exchange_weak(tail, tail + pad + bytes, std::memory_order_relaxed));
        if (pad != 0) {
            write_header(tail, pad, static_cast<std::uint16_t>(ControlOp::kPad), 0, 0, 0).publish();
        }
        *out = write_header(tail + pad, bytes, op, lane, args_bytes, trailing_bytes);
        own_ahead(tail + pad + bytes);
        return true;
    }

    [[nodiscard]] std::uint64_t tail() const { return tail_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t ring_bytes() const { return ring_bytes_; }

private:
    /// Asks the consumer's head only when the last one seen leaves no room: the line of the head
    /// changes with every command, and reading it would cost each launch a cache miss.
    bool has_room(std::uint64_t end) {
        if (end - seen_head_.load(std::memory_order_acquire) <= ring_bytes_) {
            return true;
        }
        const std::uint64_t head = head_->load(std::memory_order_acquire);
        seen_head_.store(head, std::memory_order_release);
        return end - head <= ring_bytes_;
    }

    /// Two lines, a few records ahead: not the next one, which the consumer may be looking at.
    void own_ahead(std::uint64_t end) const {
        constexpr std::uint64_t kAhead = 4 * kRecordAlign;
        for (std::uint64_t line = 0; line < 2; ++line) {
            const std::byte* at =
                ring_ + ((end + kAhead + line * kRecordAlign) & (ring_bytes_ - 1));
            asm volatile("prefetchw %0" : : "m"(*at));
        }
    }

    RingRecord write_header(std::uint64_t position, std::uint64_t bytes, std::uint16_t op,
                            std::uint16_t lane, std::uint32_t args_bytes,
                            std::uint32_t trailing_bytes) const {
        auto* header = reinterpret_cast<CommandHeader*>(ring_ + (position & (ring_bytes_ - 1)));
        header->bytes = static_cast<std::uint32_t>(bytes);
        header->op = op;
        header->lane = lane;
        header->context = 0;
        header->flags = 0;
        header->args_bytes = args_bytes;
        header->trailing_bytes = trailing_bytes;
        header->bulk_page = 0;
        header->bulk_pages = 0;
        return RingRecord{header, position};
    }

    std::byte* ring_ = nullptr;
    std::uint64_t ring_bytes_ = 0;
    const std::atomic<std::uint64_t>* head_ = nullptr;
    std::atomic<std::uint64_t> seen_head_{0};  ///< At most the true head.
    alignas(64) std::atomic<std::uint64_t> tail_{0};
};

/// The consumer's private copy of a record's header, already checked against the limits.
struct CommandView {
    std::uint64_t position = 0;
    std::uint32_t bytes = 0;
    std::uint16_t op = 0;
    std::uint16_t lane = 0;
    std::uint64_t context = 0;
    std::uint32_t flags = 0;
    std::uint32_t args_bytes = 0;
    std::uint32_t trailing_bytes = 0;
    std::uint32_t bulk_page = 0;
    std::uint32_t bulk_pages = 0;
    const std::byte* args = nullptr;      ///< In shared memory: copy before use.
    const std::byte* trailing = nullptr;  ///< In shared memory: copy, or treat as mere data.
};

enum class PeekStatus { kEmpty, kReady, kMalformed };

/// Worker side. Not thread-safe: one consumer thread.
class RingConsumer {
public:
    void attach(const std::byte* ring, std::uint64_t ring_bytes, std::uint64_t next) {
        ring_ = ring;
        ring_bytes_ = ring_bytes;
        next_ = next;
    }

    /// Looks at the next record. kPad records are stepped over. On kMalformed, `reason` says why.
    PeekStatus peek(CommandView* view, const char** reason) {
        for (;;) {
            const auto* header =
                reinterpret_cast<const CommandHeader*>(ring_ + (next_ & (ring_bytes_ - 1)));
            if (header->publish.load(std::memory_order_acquire) != next_ + 1) {
                return PeekStatus::kEmpty;
            }
            view->position = next_;
            view->bytes = read_once(header->bytes);
            if (view->bytes > kRecordAlign) {
                // Its second line comes while the first is looked at.
                __builtin_prefetch(reinterpret_cast<const std::byte*>(header) + kRecordAlign);
            }
            view->op = read_once(header->op);
            view->lane = read_once(header->lane);
            view->context = read_once(header->context);
            view->flags = read_once(header->flags);
            view->args_bytes = read_once(header->args_bytes);
            view->trailing_bytes = read_once(header->trailing_bytes);
            view->bulk_page = read_once(header->bulk_page);
            view->bulk_pages = read_once(header->bulk_pages);
            *reason = check(*view);
            if (*reason != nullptr) {
                return PeekStatus::kMalformed;
            }
            if (view->op == static_cast<std::uint16_t>(ControlOp::kPad)) {
                next_ += view->bytes;
                continue;
            }
            view->args = reinterpret_cast<const std::byte*>(header) + sizeof(CommandHeader);
            view->trailing = view->args + align_up(view->args_bytes, 8);
            return PeekStatus::kReady;
        }
    }

    /// True when peek() has something to say. One load: for waiting.
    [[nodiscard]] bool has_next() const {
        const auto* header =
            reinterpret_cast<const CommandHeader*>(ring_ + (next_ & (ring_bytes_ - 1)));
        return header->publish.load(std::memory_order_acquire) == next_ + 1;
    }

    /// Asks for the first lines of the record behind this one, which the producer has written
    /// already, as far as the caller knows: it would lose lines that it is about to write.
    void ask_ahead(const CommandView& view) const {
        for (std::uint64_t line = 0; line < 2; ++line) {
            const std::uint64_t at = view.position + view.bytes + line * kRecordAlign;
            __builtin_prefetch(ring_ + (at & (ring_bytes_ - 1)));
        }
    }

    /// Steps over the record that peek() returned.
    void advance(const CommandView& view) { next_ = view.position + view.bytes; }

    /// Position of the next record to execute; part of the snapshot.
    [[nodiscard]] std::uint64_t next() const { return next_; }

private:
    template <typename T>
    static T read_once(const T& value) {
        return *static_cast<const volatile T*>(&value);
    }

    const char* check(const CommandView& view) const {
        const std::uint64_t room_to_end = ring_bytes_ - (next_ & (ring_bytes_ - 1));
        if (view.bytes < kRecordAlign || view.bytes % kRecordAlign != 0 ||
            view.bytes > room_to_end) {
            return "record size out of range";
        }
        if (view.op == static_cast<std::uint16_t>(ControlOp::kPad)) {
            return nullptr;
        }
        if (view.bytes > max_record_bytes(ring_bytes_)) {
            return "record larger than a quarter of the ring";
        }
        if (view.lane >= kLaneCount) {
            return "lane number out of range";
        }
        if (sizeof(CommandHeader) + align_up(view.args_bytes, 8) + view.trailing_bytes >
            view.bytes) {
            return "arguments longer than their record";
        }
        return nullptr;
    }

    const std::byte* ring_ = nullptr;
    std::uint64_t ring_bytes_ = 0;
    std::uint64_t next_ = 0;
};

}  // namespace gantry::wire
