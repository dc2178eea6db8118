#include "host-daemon/state/parts/code_entries.h"

#include <charconv>
#include <cstring>
#include <string_view>

namespace gantry::state {
namespace {

constexpr std::uint32_t kFatbinMagic = 0xba55ed50;
constexpr std::uint32_t kElfMagic = 0x464c457f;
constexpr std::uint16_t kEntryPtx = 1;
constexpr std::uint16_t kEntryElf = 2;
constexpr std::uint64_t kFlagArchSpecific = 0x100000;
constexpr std::uint64_t kFlagFamily = 0x200000;

template <typename T>
bool read_at(std::span<const std::byte> bytes, std::uint64_t offset, T* out) {
    if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) {
        return false;
    }
    std::memcpy(out, bytes.data() + offset, sizeof(T));
    return true;
}

engine::ComputeCapability capability_of(std::uint32_t sm) { return {sm / 10, sm % 10}; }

/// Entry header of a fatbin: kind at 0, header bytes at 4, payload bytes at 8, minor and major of
/// the ISA at 0x18, sm number at 0x1c, flags at 0x28.
void append_fatbin(std::span<const std::byte> image, std::vector<engine::CodeEntry>* out) {
    std::uint16_t header_bytes = 0;
    if (!read_at(image, 6, &header_bytes)) {
        return;
    }
    std::uint64_t at = header_bytes;
    for (;;) {
        std::uint16_t kind = 0;
        std::uint32_t entry_header = 0;
        std::uint64_t payload = 0;
        std::uint16_t minor = 0;
        std::uint16_t major = 0;
        std::uint32_t sm = 0;
        std::uint64_t flags = 0;
        if (!read_at(image, at, &kind) || !read_at(image, at + 4, &entry_header) ||
            !read_at(image, at + 8, &payload) || !read_at(image, at + 0x18, &minor) ||
            !read_at(image, at + 0x1a, &major) || !read_at(image, at + 0x1c, &sm) ||
            !read_at(image, at + 0x28, &flags) || entry_header < 64 ||
            payload > image.size() - at) {
            return;
        }
        if (kind == kEntryPtx || kind == kEntryElf) {
            engine::CodeEntry entry;
            entry.cc = capability_of(sm);
            entry.is_ptx = kind == kEntryPtx;
            entry.scope = (flags & kFlagArchSpecific) != 0 ? engine::CodeScope::kArchSpecific
                          : (flags & kFlagFamily) != 0     ? engine::CodeScope::kFamily
                                                           : engine::CodeScope::kPortable;
            entry.ptx_isa_version = entry.is_ptx ? major * 10u + minor : 0;
            out->push_back(entry);
        }
        at += entry_header + payload;
    }
}

/// The text's .version and .target directives.
void append_ptx(std::string_view text, std::vector<engine::CodeEntry>* out) {
    engine::CodeEntry entry;
    entry.is_ptx = true;
    auto number_after = [&text](std::string_view word, std::size_t* end) -> std::uint32_t {
        const std::size_t at = text.find(word);
        std::uint32_t value = 0;
        if (at != std::string_view::npos) {
            const char* begin = text.data() + at + word.size();
            const char* limit = text.data() + text.size();
            while (begin < limit && (*begin == ' ' || *begin == '\t')) {
                ++begin;
            }
            const auto parsed = std::from_chars(begin, limit, value);
            *end = static_cast<std::size_t>(parsed.ptr - text.data());
        }
        return value;
    };
    std::size_t end = 0;
    const std::uint32_t major = number_after(".version", &end);
    std::uint32_t minor = 0;
    if (end != 0 && end < text.size() && text[end] == '.') {
        std::from_chars(text.data() + end + 1, text.data() + text.size(), minor);
    }
    entry.ptx_isa_version = major * 10 + minor;
    end = 0;
    entry.cc = capability_of(number_after("sm_", &end));
    if (end != 0 && end < text.size() && text[end] == 'a') {
        entry.scope = engine::CodeScope::kArchSpecific;
    }
    if (entry.cc.major != 0) {
        out->push_back(entry);
    }
}

}  // namespace

void append_code(std::span<const std::byte> image, std::vector<engine::CodeEntry>* out) {
    std::uint32_t magic = 0;
    if (!read_at(image, 0, &magic)) {
        return;
    }
    if (magic == kFatbinMagic) {
        append_fatbin(image, out);
    } else if (magic == kElfMagic) {
        std::uint32_t flags = 0;
        if (read_at(image, 0x30, &flags)) {
            // Since CUDA 13 (this OSABI) the number is in bits 8-15; before, these are other flags.
            const bool is_new = image[7] == std::byte{0x41};
            const std::uint32_t sm = is_new ? flags >> 8 & 0xff : flags & 0xff;
            out->push_back({capability_of(sm), engine::CodeScope::kPortable, false, 0});
        }
    } else {
        append_ptx({reinterpret_cast<const char*>(image.data()), image.size()}, out);
    }
}

}  // namespace gantry::state
