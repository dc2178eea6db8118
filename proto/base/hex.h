// Hexadecimal text of bytes, and back. UUIDs too: 16 bytes, written with dashes.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gantry {

/// -1: not a hexadecimal digit.
constexpr int hex_value(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/// Two lower-case digits a byte.
inline std::string to_hex(std::span<const std::byte> bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string text;
    for (const std::byte byte : bytes) {
        text += kDigits[std::to_integer<unsigned>(byte) >> 4];
        text += kDigits[std::to_integer<unsigned>(byte) & 15];
    }
    return text;
}

/// Nothing unless `text` is two digits for each of the bytes, in upper or lower case.
template <std::size_t kBytes>
std::optional<std::array<std::byte, kBytes>> from_hex(std::string_view text) {
    if (text.size() != 2 * kBytes) {
        return std::nullopt;
    }
    std::array<std::byte, kBytes> bytes{};
    for (std::size_t i = 0; i < kBytes; ++i) {
        const int high = hex_value(text[2 * i]);
        const int low = hex_value(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return std::nullopt;
        }
        bytes[i] = static_cast<std::byte>(high << 4 | low);
    }
    return bytes;
}

/// "67616e74-7279-4000-8000-000000000001".
inline std::string to_uuid_text(std::span<const std::byte, 16> uuid) {
    std::string text = to_hex(uuid);
    for (const std::size_t at : {20U, 16U, 12U, 8U}) {
        text.insert(at, 1, '-');
    }
    return text;
}

/// Nothing unless `text` has 32 hexadecimal digits; dashes may stand anywhere.
inline std::optional<std::array<std::byte, 16>> from_uuid_text(std::string text) {
    std::erase(text, '-');
    return from_hex<16>(text);
}

}  // namespace gantry
