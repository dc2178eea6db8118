// Bytes of pageable memory: to the device through the ring, from it through the bulk area, and
// images on their way to a module load.
#include <pthread.h>
#include <signal.h>

#include <cstring>

#include "guest-shim/session/connection.h"
#include "guest-shim/session/trace.h"

namespace gantry::session {
namespace {

constexpr unsigned kMostReaders = 6;
constexpr std::uint64_t kReaderBytes = 1ull << 20;  // A thread for less costs more than it brings.
constexpr std::uint64_t kPerThreadStream = 2;

}  // namespace

CUresult write_device(std::uint64_t address, const void* source, std::uint64_t bytes,
                      std::uint64_t stream) noexcept {
    const auto* from = static_cast<const std::byte*>(source);
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

namespace {

CUresult read_piece(std::byte* target, std::uint64_t address, std::uint64_t bytes,
                    std::uint64_t stream, std::uint32_t first, std::uint32_t pages) noexcept {
    const wire::ReadDeviceCall arguments{address, bytes, stream, first * wire::kPageBytes};
    Exchange command;
    command.op = static_cast<std::uint16_t>(wire::ControlOp::kReadDevice);
    command.args = &arguments;
    command.args_bytes = sizeof(arguments);
    command.touch_first = first;
    command.touch_pages = pages;
    if (tracing()) {
        trace_command(command.op, &arguments, sizeof(arguments), 0);
    }
    const CUresult result = exchange(&command);
    if (result == CUDA_SUCCESS) {
        std::memcpy(target, g_connection.bulk.at(arguments.bulk_offset), bytes);
    }
    return result;
}

}  // namespace

namespace {

CUresult read_slices(std::byte* to, std::uint64_t address, std::uint64_t bytes,
                     std::uint64_t stream) noexcept {
    const std::uint64_t quarter = g_connection.bulk.bytes() / 4;
    std::uint64_t slice = quarter < kSliceBytes ? quarter : kSliceBytes;
    slice = bytes < slice ? bytes : slice;
    const auto pages =
        static_cast<std::uint32_t>(wire::align_up(slice, wire::kPageBytes) / wire::kPageBytes);
    std::uint32_t first = 0;
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    if (!g_connection.bulk.allocate(pages, &first)) {
        return closed_result() != CUDA_SUCCESS ? closed_result() : CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CUDA_SUCCESS;
    while (bytes != 0 && result == CUDA_SUCCESS) {
        const std::uint64_t piece = bytes < slice ? bytes : slice;
        result = read_piece(to, address, piece, stream, first, pages);
        to += piece;
        address += piece;
        bytes -= piece;
    }
    g_connection.bulk.free(first, pages);
    return result;
}

/// A part of a large copy, read on a lane of its own.
struct Part {
    std::byte* to;
    std::uint64_t address;
    std::uint64_t bytes;
    std::uint64_t stream;
    std::uint64_t context;
    CUresult result;
    pthread_t thread;
};

void* read_part(void* given) {
    auto* part = static_cast<Part*>(given);
    part->result = set_context(part->context);
    if (part->result == CUDA_SUCCESS) {
        part->result = read_slices(part->to, part->address, part->bytes, part->stream);
    }
    return nullptr;
}

/// How many threads a copy of so many bytes is worth: one thread moves 5 to 8 GB/s out of the bulk
/// area, where a link delivers 50.
unsigned readers_for(std::uint64_t bytes) noexcept {
    const unsigned most = g_connection.cpus / 2 < kMostReaders ? g_connection.cpus / 2
                                                               : kMostReaders;
    const std::uint64_t worth = bytes / kReaderBytes;
    return worth < most ? static_cast<unsigned>(worth) : most;
}

CUresult read_in_parts(std::byte* to, std::uint64_t address, std::uint64_t bytes,
                       std::uint64_t stream, unsigned count) noexcept {
    Part parts[kMostReaders];
    // Signals are the application's threads' business.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const std::uint64_t share = wire::align_up(bytes / count, wire::kPageBytes);
    const std::uint64_t context = current_context();
    unsigned started = 0;
    std::uint64_t at = 0;
    for (; started + 1 < count && at + share < bytes; ++started, at += share) {
        parts[started] = {to + at, address + at, share, stream, context, CUDA_SUCCESS, {}};
        if (pthread_create(&parts[started].thread, nullptr, read_part, &parts[started]) != 0) {
            break;  // The rest is this thread's then.
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    CUresult result = read_slices(to + at, address + at, bytes - at, stream);
    for (unsigned i = 0; i < started; ++i) {
        pthread_join(parts[i].thread, nullptr);
        result = result == CUDA_SUCCESS ? parts[i].result : result;
    }
    return result;
}

}  // namespace

CUresult read_device(void* target, std::uint64_t address, std::uint64_t bytes,
                     std::uint64_t stream) noexcept {
    if (const CUresult closed = gate(); closed != CUDA_SUCCESS) {
        return closed;
    }
    auto* to = static_cast<std::byte*>(target);
    // Stream 2 is a stream of the lane's own: what it waits for is known on this lane only.
    const unsigned readers = stream == kPerThreadStream ? 1 : readers_for(bytes);
    return readers > 1 ? read_in_parts(to, address, bytes, stream, readers)
                       : read_slices(to, address, bytes, stream);
}

std::uint64_t new_image_id() noexcept { return g_connection.next_image.fetch_add(1); }

CUresult stage_image(std::uint64_t image_id, std::uint64_t total_bytes, std::uint64_t offset,
                     const void* source, std::uint64_t bytes) noexcept {
    const auto* from = static_cast<const std::byte*>(source);
    std::uint64_t limit = max_trailing(sizeof(wire::StageImageCall));
    limit = limit < kPieceBytes ? limit : kPieceBytes;
    do {
        const std::uint64_t piece = bytes < limit ? bytes : limit;
        const wire::StageImageCall arguments{image_id, total_bytes, offset};
        const CUresult result =
            post_control(wire::ControlOp::kStageImage, &arguments, sizeof(arguments), from,
                         static_cast<std::uint32_t>(piece));
        if (result != CUDA_SUCCESS) {
            return result;
        }
        from += piece;
        offset += piece;
        bytes -= piece;
    } while (bytes != 0);
    return CUDA_SUCCESS;
}

}  // namespace gantry::session
