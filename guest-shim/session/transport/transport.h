// How this process gets its region. One function per way; everything above sees an Attachment.
//
//   unix:PATH         the host's gantryd on this machine: a memfd over a unix socket (attach.h)
//   ivshmem:          the first inter-VM shared memory device; ivshmem:PATH names its resource2
//   file:PATH         a region in a file that both sides map (tests, other shared memory)
// A program that reaches its host over TCP uses unix:PATH as well: gantry-guest listens there.
// Without a setting: an ivshmem device when there is one, else the default unix socket.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/wire/wait.h"

namespace gantry::session {

struct Attachment {
    std::byte* region = nullptr;
    std::uint64_t region_bytes = 0;
    int region_fd = -1;  ///< Maps the region again, at other addresses; -1 when it cannot.
    int link_fd = -1;    ///< End-of-file when the host's side has ended; -1 without such a link.
    wire::Sleep sleep = wire::Sleep::kPoll;
    bool exclusive = false;  ///< Made for this process alone: one channel.
};

struct AttachProblem {
    std::uint32_t cuda_error = 0;
    char text[400] = {};
};

/// Opens the transport that `setting` names (null: find one).
bool attach(const char* setting, std::uint64_t table_hash, unsigned timeout_ms, Attachment* out,
            AttachProblem* problem);

/// The ways, each a file of its own.
bool attach_unix(const char* path, std::uint64_t table_hash, unsigned timeout_ms, Attachment* out,
                 AttachProblem* problem);
bool attach_file(const char* path, Attachment* out, AttachProblem* problem);
bool attach_ivshmem(const char* path, Attachment* out, AttachProblem* problem);
bool find_ivshmem(char* path, std::size_t path_bytes);

/// Fills a problem, printf style, and returns false.
bool fail(AttachProblem* problem, std::uint32_t cuda_error, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

}  // namespace gantry::session
