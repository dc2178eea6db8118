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

// How gantry-relay gets the region of a guest that has been moved to this host, whose link it does
// not know: by the link's session (MirrorWords.session), on the same socket. Beside the reply come
// the region's memfd and the guest's end of the worker's socket.

inline constexpr std::uint32_t kResumeMagic = 0x4d53'5247;  // "GRSM"

struct ResumeRequest {
    std::uint32_t magic = kResumeMagic;
    std::uint32_t wire_version = kWireVersion;
    std::uint64_t session[2] = {0, 0};
};

enum class ResumeVerdict : std::uint32_t {
    kUnknown = 0,
    kAccepted = 1,
    kNotNow = 2,  ///< It may be on its way, or this host has granted it away: ask again.
};

struct ResumeReply {
    std::uint32_t magic = kResumeMagic;
    ResumeVerdict verdict = ResumeVerdict::kUnknown;
    std::uint64_t region_bytes = 0;
    std::uint32_t channel_count = 0;
    std::uint32_t channel_index = 0;
};

}  // namespace gantry::wire
