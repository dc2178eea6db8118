// Ticket: the secret by which the source of a move knows the host that libvirt migrates the VM to.
//
// The owner of a VM's session draws 128 bits, writes them into the VM's live metadata, and draws
// others after each attempt; libvirt's migration carries them to its target and to nobody else. So
// a ticket is worth a session: it is never logged, shown or counted, and there is no operator== by
// which it could be compared in a time that depends on its digits.
// Rules and limits: proto/decisions/0030-who-may-take-a-session.md.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "proto/base/hex.h"

namespace gantry {

class Ticket {
public:
    static constexpr std::size_t kBytes = 16;
    using Bytes = std::array<std::byte, kBytes>;

    /// None.
    Ticket() = default;
    explicit Ticket(const Bytes& bytes) : bytes_(bytes) {}
    /// Nothing unless `text` has 32 hexadecimal digits, not all of them 0.
    static std::optional<Ticket> parse(std::string_view text) {
        const auto bytes = from_hex<kBytes>(text);
        if (!bytes || !Ticket(*bytes).exists()) {
            return std::nullopt;
        }
        return Ticket(*bytes);
    }

    /// False: none, of which the bytes are 0.
    [[nodiscard]] bool exists() const { return !is_equal(Bytes{}); }
    /// In a time that tells nothing of either; none is the same as nothing, not even as itself.
    [[nodiscard]] bool is_same(const Ticket& other) const {
        return is_equal(other.bytes_) && exists();
    }
    /// 32 digits: for metadata, gantryd's own records and the encrypted wire.
    [[nodiscard]] std::string reveal() const { return exists() ? to_hex(bytes_) : ""; }

private:
    [[nodiscard]] bool is_equal(const Bytes& other) const {
        std::byte differing{};
        for (std::size_t i = 0; i < kBytes; ++i) {
            differing |= bytes_[i] ^ other[i];
        }
        return differing == std::byte{};
    }

    Bytes bytes_{};
};

}  // namespace gantry
