// How a guest process on the same host gets its region: the first messages on gantryd's unix
// socket (SOCK_SEQPACKET). The guest sends AttachRequest; gantryd answers AttachReply and, when
// accepted, passes the region's memfd with SCM_RIGHTS. The socket stays open between guest process
// and worker: its end-of-file tells either side that the other has ended.
#pragma once

#include <cstdint>

#include "proto/wire/region.h"

namespace gantry::wire {

inline constexpr char kDefaultGuestSocket[] = "/run/gantry/guest.sock";

struct AttachRequest {
    std::uint32_t magic = kRegionMagic;
    std::uint32_t wire_version = kWireVersion;
    std::uint64_t table_hash = 0;
    std::uint32_t guest_pid = 0;
    std::uint32_t reserved = 0;
};

struct AttachReply {
    std::uint32_t magic = kRegionMagic;
    std::uint32_t wire_version = kWireVersion;
    std::uint32_t accepted = 0;  ///< 1, or 0 with cuda_error and text.
    std::uint32_t cuda_error = 0;
    std::uint64_t region_bytes = 0;
    char text[232] = {};         ///< Why not, and what to do; NUL-terminated.
};
static_assert(sizeof(AttachReply) == 256);

}  // namespace gantry::wire
