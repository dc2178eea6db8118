// Device printf and assert text: fetched when an answer says that some waits, and written to the
// descriptor that the device program's run-time would have written to.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "guest-shim/session/connection.h"

namespace gantry::session {
namespace {

constexpr std::uint32_t kDrainPages = 16;

struct Piece {
    std::uint32_t descriptor;
    std::uint32_t bytes;
};

void write_all(int descriptor, const std::byte* data, std::size_t bytes) {
    while (bytes != 0) {
        const ssize_t done = write(descriptor, data, bytes);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return;
        }
        data += done;
        bytes -= static_cast<std::size_t>(done);
    }
}

/// Text that the program printed itself before must come out before the device's.
void write_pieces(const std::byte* data, std::uint64_t bytes) {
    while (bytes >= sizeof(Piece)) {
        Piece piece;
        std::memcpy(&piece, data, sizeof(piece));
        data += sizeof(piece);
        bytes -= sizeof(piece);
        if (piece.bytes > bytes || (piece.descriptor != 1 && piece.descriptor != 2)) {
            return;
        }
        std::fflush(piece.descriptor == 1 ? stdout : stderr);
        write_all(static_cast<int>(piece.descriptor), data, piece.bytes);
        data += piece.bytes;
        bytes -= piece.bytes;
    }
}

}  // namespace

void drain_output(std::uint32_t lane) noexcept {
    std::uint32_t first = 0;
    if (!g_connection.bulk.allocate(kDrainPages, &first)) {
        return;
    }
    const std::uint64_t room = kDrainPages * wire::kPageBytes;
    const wire::DrainOutputCall arguments{first * wire::kPageBytes, room};
    for (;;) {
        Exchange command;
        command.op = static_cast<std::uint16_t>(wire::ControlOp::kDrainOutput);
        command.args = &arguments;
        command.args_bytes = sizeof(arguments);
        command.touch_first = first;
        command.touch_pages = kDrainPages;
        if (exchange_on(lane, 0, &command, false) != CUDA_SUCCESS || command.bulk_bytes == 0 ||
            command.bulk_bytes > room) {
            break;
        }
        write_pieces(g_connection.bulk.at(arguments.bulk_offset), command.bulk_bytes);
    }
    g_connection.bulk.free(first, kDrainPages);
}

}  // namespace gantry::session
