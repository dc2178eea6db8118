// How gantry-guest proves of which VM it is (VmProof in attach.h): what the proof has to be. For
// both ends; the shim has no part in it.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "proto/base/sha256.h"
#include "proto/wire/attach.h"

namespace gantry::wire {

/// `session`: the link's name. A proof is good for that link only.
inline Sha256 vm_proof(const Sha256& key, const std::uint64_t (&session)[2],
                       const AttachRequest& request, const VmProof& vm) {
    struct {
        char purpose[16] = "gantry attach 1";
        std::uint64_t session[2];
        AttachRequest request;
        std::uint8_t vm[16];
    } message{};
    static_assert(sizeof message == 16 + 16 + sizeof(AttachRequest) + 16);
    std::memcpy(message.session, session, sizeof message.session);
    message.request = request;
    std::memcpy(message.vm, vm.vm, sizeof message.vm);
    return hmac_sha256(key, std::as_bytes(std::span(&message, 1)));
}

}  // namespace gantry::wire
