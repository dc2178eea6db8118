// How a guest process on the same host gets its region: the first messages on gantryd's unix
// socket (SOCK_SEQPACKET). The guest sends AttachRequest; gantryd answers AttachReply and, when
// accepted, passes the region's memfd with SCM_RIGHTS. The socket stays open between guest process
// and worker: its end-of-file tells either side that the other has ended.
#pragma once

#include <array>
#include <cstddef>
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
    char text[232] = {};  ///< Why not, and what to do; NUL-terminated.
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

// How gantry-guest says of which VM it is, and proves it: by the VM's key, which its metadata name
// at the host and its owner gave to the guest. The link's name, which the host drew, makes each
// proof good for one link.

struct VmProof {
    std::uint8_t vm[16] = {};  ///< The domain's UUID, as it is written. Zero: a program of no VM.
    std::array<std::byte, 32> proof{};  ///< vm_proof.h.
    [[nodiscard]] bool names_vm() const {
        for (const std::uint8_t byte : vm) {
            if (byte != 0) {
                return true;
            }
        }
        return false;
    }
};

/// The first frame's payload, from guest to host.
struct GuestAttach {
    AttachRequest request;
    VmProof vm;
};

/// The first frame's payload of every stream from host to guest.
struct GuestAttached {
    AttachReply reply;
    std::uint64_t generation = 1;  ///< Of the claim that the program is to make.
};

/// From gantry-relay to gantryd, instead of AttachRequest, and its answer; beside that comes the
/// VM's region. The channel is the relay's to claim, under that generation.
inline constexpr std::uint32_t kVmAttachMagic = 0x4d56'5247;  // "GRVM"

struct VmAttachRequest {
    std::uint32_t magic = kVmAttachMagic;
    std::uint32_t wire_version = kWireVersion;
    std::uint64_t session[2] = {0, 0};
    GuestAttach guest;
};

struct VmAttachReply {
    AttachReply reply;  ///< Its region_bytes: of the guest's own region, of one channel.
    std::uint64_t generation = 0;
    std::uint64_t region_bytes = 0;
    std::uint32_t channel_count = 0;
    std::uint32_t channel_index = 0;
};

}  // namespace gantry::wire
