// Pageable bytes to the device: slices are copied into the outbox, from where the device reads them
// while the next slice is copied. Where there is no outbox (a mirrored region, another context than
// the primary one), no room in it, or little to copy, the bytes travel in the ring.
#include <cstring>

#include "guest-shim/session/copy.h"
#include "guest-shim/session/crew.h"
#include "proto/base/stream_copy.h"

namespace gantry::session {
namespace {

constexpr unsigned kMostWriters = 4;                  // More of them only wait for memory.
constexpr std::uint64_t kLentBytesMin = 16ull << 10;  // Less is copied twice sooner than lent.
constexpr std::uint64_t kMostWriteBytes = 256ull << 10;
constexpr std::uint64_t kRoomPatienceNs = 50'000;

/// Outbox::returned() when room was waited for in vain: nobody waits until something has come back.
std::atomic<std::uint64_t> g_stuck_at{~0ull};

/// What was shown to memory that a move has left behind is asked for once more.
void ask_for_lost_ends(Copy* copy) noexcept {
    wire::LookAtBulkCall look{};
    while (g_connection.outbox.next_unsure(&look.word, &look.position)) {
        std::uint64_t position = 0;
        if (copy->post(wire::ControlOp::kLookAtBulk, &look, sizeof(look), nullptr, 0, &position) !=
            CUDA_SUCCESS) {
            return;
        }
    }
}

/// Room in the outbox. The device drains it faster than it is filled, unless it is busy with other
/// work: that is not waited for.
bool find_room(Copy* copy, std::uint64_t bytes, std::uint32_t* first) noexcept {
    Outbox& outbox = g_connection.outbox;
    if (outbox.take(bytes, first)) {
        return true;
    }
    ask_for_lost_ends(copy);
    if (g_connection.cpus < kCpusToSpin ||
        g_stuck_at.load(std::memory_order_relaxed) == outbox.returned()) {
        return false;
    }
    const std::uint64_t until = wire::monotonic_ns() + kRoomPatienceNs;
    do {
        for (unsigned i = 0; i < 32; ++i) {
            wire::cpu_relax();
        }
        if (outbox.take(bytes, first)) {
            return true;
        }
    } while (wire::monotonic_ns() < until);
    g_stuck_at.store(outbox.returned(), std::memory_order_relaxed);
    return false;
}

/// A slice is a 32nd part of the bulk area at most, and a record may be a quarter of the ring,
/// which is as large: it takes one.
CUresult write_in_a_record(Copy* copy, std::uint64_t offset, std::uint64_t bytes) noexcept {
    const wire::WriteDeviceCall arguments{copy->address + offset, bytes, copy->stream};
    std::uint64_t position = 0;
    return copy->post(wire::ControlOp::kWriteDevice, &arguments, sizeof(arguments),
                      copy->host + offset, bytes, &position);
}

CUresult write_slice(Copy* copy, std::uint64_t offset, std::uint64_t bytes) noexcept {
    Outbox& outbox = g_connection.outbox;
    std::uint32_t first = 0;
    if (!find_room(copy, bytes, &first)) {
        return write_in_a_record(copy, offset, bytes);
    }
    // The device reads bytes at half its rate where they lie changed in a processor's caches (an
    // H100: 1 MiB in 52 to 61 us, else in 28).
    stream_copy(outbox.at(first), copy->host + offset, bytes);
    const wire::BulkCopyCall arguments{copy->address + offset,    bytes, copy->stream,
                                       outbox.bulk_offset(first), first, 0};
    std::uint64_t position = 0;
    const CUresult result = copy->post(wire::ControlOp::kWriteFromBulk, &arguments,
                                       sizeof(arguments), nullptr, 0, &position);
    if (result == CUDA_SUCCESS) {
        outbox.lend(first, position);
    } else {
        outbox.put_back(first);
    }
    return result;
}

void write_part(void* given) {
    auto* copy = static_cast<Copy*>(given);
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    while (copy->claim(&offset, &bytes)) {
        copy->note_result(write_slice(copy, offset, bytes));
    }
}

CUresult write_posted(std::uint64_t address, const std::byte* from, std::uint64_t bytes,
                      std::uint64_t stream) noexcept {
    std::uint64_t limit = max_trailing(sizeof(wire::WriteDeviceCall));
    limit = limit < kPieceBytes ? limit : kPieceBytes;
    while (bytes != 0) {
        const std::uint64_t piece = bytes < limit ? bytes : limit;
        const wire::WriteDeviceCall arguments{address, piece, stream};
        const CUresult result =
            post_control(wire::ControlOp::kWriteDevice, &arguments, sizeof(arguments), from,
                         static_cast<std::uint32_t>(piece));
        if (result != CUDA_SUCCESS) {
            return result;
        }
        address += piece;
        from += piece;
        bytes -= piece;
    }
    return CUDA_SUCCESS;
}

}  // namespace

CUresult write_device(std::uint64_t address, const void* source, std::uint64_t bytes,
                      std::uint64_t stream) noexcept {
    Thread* self = nullptr;
    if (const CUresult refused = usable_thread(&self); refused != CUDA_SUCCESS) {
        return refused;
    }
    const auto* from = static_cast<const std::byte*>(source);
    Copy copy;
    copy.begin(*self);
    if (bytes < kLentBytesMin || !copy.is_shared) {
        return write_posted(address, from, bytes, stream);
    }
    const std::uint64_t most = g_connection.outbox.cell_bytes() * Outbox::kCells / 8;
    copy.host = const_cast<std::byte*>(from);
    copy.address = address;
    copy.bytes = bytes;
    copy.slice = slice_for(bytes, most < kMostWriteBytes ? most : kMostWriteBytes);
    copy.stream = stream;
    work_together(help_for(bytes, kMostWriters), write_part, &copy);
    return static_cast<CUresult>(copy.result.load());
}

}  // namespace gantry::session
