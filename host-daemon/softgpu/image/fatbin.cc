#include "host-daemon/softgpu/image/fatbin.h"

#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>

namespace gantry::softgpu::image {
namespace {

// Offsets in an entry header.
constexpr std::size_t kAtKind = 0x00;
constexpr std::size_t kAtHeaderBytes = 0x04;
constexpr std::size_t kAtPayloadBytes = 0x08;
constexpr std::size_t kAtCompressedBytes = 0x10;
constexpr std::size_t kAtTarget = 0x1c;
constexpr std::size_t kAtNameOffset = 0x20;
constexpr std::size_t kAtNameBytes = 0x24;
constexpr std::size_t kAtFlags = 0x28;
constexpr std::size_t kAtPlainBytes = 0x38;
constexpr std::size_t kEntryHeaderBytesMin = 0x40;

constexpr std::uint64_t kFlagLz4 = 0x2000;
constexpr std::uint64_t kFlagZstd = 0x8000;
static_assert(kFlagsCompressed == (kFlagLz4 | kFlagZstd));
// The largest single image of NVIDIA's libraries is far below this; a bomb is stopped here.
constexpr std::uint64_t kPlainBytesMax = std::uint64_t{2} << 30;
constexpr std::size_t kEntriesMax = 65536;

template <typename Integer>
Integer read_at(std::span<const std::byte> bytes, std::size_t offset) {
    Integer value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

template <typename Integer>
void write_at(std::vector<std::byte>* bytes, std::size_t offset, Integer value) {
    std::memcpy(bytes->data() + offset, &value, sizeof value);
}

Error truncated(const std::string& what) {
    return Error{Code::kInvalidArgument, "image.truncated", what};
}

Result<FatbinEntry> read_entry(std::span<const std::byte> rest, std::size_t& consumed) {
    if (rest.size() < kEntryHeaderBytesMin) {
        return truncated("The fatbin ends inside an entry header.");
    }
    const auto header_bytes = read_at<std::uint32_t>(rest, kAtHeaderBytes);
    const auto payload_bytes = read_at<std::uint64_t>(rest, kAtPayloadBytes);
    if (header_bytes < kEntryHeaderBytesMin || header_bytes > rest.size() ||
        payload_bytes > rest.size() - header_bytes) {
        return truncated("A fatbin entry of " + std::to_string(payload_bytes) +
                         " bytes reaches past the end of the fatbin.");
    }
    FatbinEntry entry;
    entry.header = rest.first(header_bytes);
    entry.kind = static_cast<EntryKind>(read_at<std::uint16_t>(rest, kAtKind));
    entry.target = read_at<std::uint32_t>(rest, kAtTarget);
    entry.flags = read_at<std::uint64_t>(rest, kAtFlags);
    const auto compressed = read_at<std::uint32_t>(rest, kAtCompressedBytes);
    const bool packed = (entry.flags & kFlagsCompressed) != 0;
    if (packed) {
        if (compressed > payload_bytes) {
            return truncated("A compressed fatbin entry is longer than its payload.");
        }
        entry.plain_bytes = read_at<std::uint64_t>(rest, kAtPlainBytes);
    }
    entry.stored = rest.subspan(header_bytes, packed ? compressed : payload_bytes);
    const auto name_offset = read_at<std::uint32_t>(rest, kAtNameOffset);
    const auto name_bytes = read_at<std::uint32_t>(rest, kAtNameBytes);
    if (name_bytes != 0 && name_offset < header_bytes && name_bytes <= header_bytes - name_offset) {
        const auto* text = reinterpret_cast<const char*>(rest.data() + name_offset);
        entry.name.assign(text, strnlen(text, name_bytes));
    }
    consumed = header_bytes + payload_bytes;
    return entry;
}

/// Whether the payload can expand to what the entry claims: asked before that much is allocated.
bool plausible_size(const FatbinEntry& entry) {
    if (entry.plain_bytes == 0 || entry.plain_bytes > kPlainBytesMax) {
        return false;
    }
    if ((entry.flags & kFlagZstd) == 0) {
        // A length byte of a match stands for 255 more.
        constexpr std::uint64_t kLz4RatioMax = 255;
        return entry.plain_bytes / kLz4RatioMax <= entry.stored.size();
    }
    const auto declared = ZSTD_getFrameContentSize(entry.stored.data(), entry.stored.size());
    return declared == ZSTD_CONTENTSIZE_UNKNOWN || declared == entry.plain_bytes;
}

Result<std::string> expand(const FatbinEntry& entry) {
    if (!plausible_size(entry)) {
        return Error{
            Code::kInvalidArgument, "image.compression",
            "A compressed fatbin entry claims " + std::to_string(entry.plain_bytes) +
                " bytes of plain text, which its payload cannot hold; the image is damaged."};
    }
    std::string plain(entry.plain_bytes, '\0');
    bool good = false;
    if ((entry.flags & kFlagZstd) != 0) {
        const std::size_t got =
            ZSTD_decompress(plain.data(), plain.size(), entry.stored.data(), entry.stored.size());
        good = ZSTD_isError(got) == 0 && got == plain.size();
    } else if (plain.size() <= LZ4_MAX_INPUT_SIZE && entry.stored.size() <= LZ4_MAX_INPUT_SIZE) {
        const int got = LZ4_decompress_safe(reinterpret_cast<const char*>(entry.stored.data()),
                                            plain.data(), static_cast<int>(entry.stored.size()),
                                            static_cast<int>(plain.size()));
        good = got >= 0 && static_cast<std::size_t>(got) == plain.size();
    }
    if (!good) {
        return Error{Code::kInvalidArgument, "image.compression",
                     "A fatbin entry for sm_" + std::to_string(entry.target) +
                         " does not decompress; the image is damaged."};
    }
    return plain;
}

}  // namespace

std::uint64_t fatbin_bytes(const void* fatbin) {
    const std::span bytes(static_cast<const std::byte*>(fatbin), kFatbinHeaderBytes);
    if (read_at<std::uint32_t>(bytes, 0) != kFatbinMagic) {
        return 0;
    }
    const auto header = read_at<std::uint16_t>(bytes, 6);
    const auto payload = read_at<std::uint64_t>(bytes, 8);
    if (header < kFatbinHeaderBytes || payload > (std::uint64_t{1} << 40)) {
        return 0;
    }
    return header + payload;
}

Result<std::vector<FatbinEntry>> list_entries(std::span<const std::byte> fatbin) {
    if (fatbin.size() < kFatbinHeaderBytes || fatbin_bytes(fatbin.data()) == 0) {
        return Error{Code::kInvalidArgument, "image.format", "Not a fatbin: bad header."};
    }
    const std::uint64_t total = fatbin_bytes(fatbin.data());
    if (total > fatbin.size()) {
        return truncated("The fatbin declares " + std::to_string(total) + " bytes, only " +
                         std::to_string(fatbin.size()) + " are there.");
    }
    std::span<const std::byte> rest =
        fatbin.subspan(0, total).subspan(read_at<std::uint16_t>(fatbin, 6));
    std::vector<FatbinEntry> entries;
    while (!rest.empty()) {
        if (entries.size() == kEntriesMax) {
            return Error{Code::kInvalidArgument, "image.format", "A fatbin of too many entries."};
        }
        std::size_t consumed = 0;
        GANTRY_ASSIGN(FatbinEntry entry, read_entry(rest, consumed));
        entries.push_back(std::move(entry));
        rest = rest.subspan(consumed);
    }
    return entries;
}

void append_stored(std::span<const std::byte> entry_header, std::span<const std::byte> plain,
                   std::vector<std::byte>* fatbin) {
    const std::size_t at = fatbin->size();
    const std::uint64_t padded = (plain.size() + 7) / 8 * 8;
    fatbin->insert(fatbin->end(), entry_header.begin(), entry_header.end());
    write_at(fatbin, at + kAtPayloadBytes, padded);
    write_at(fatbin, at + kAtCompressedBytes, std::uint32_t{0});
    write_at(fatbin, at + kAtFlags,
             read_at<std::uint64_t>(entry_header, kAtFlags) & ~kFlagsCompressed);
    write_at(fatbin, at + kAtPlainBytes, std::uint64_t{0});
    fatbin->insert(fatbin->end(), plain.begin(), plain.end());
    fatbin->resize(at + entry_header.size() + padded);
    write_at(fatbin, 0, kFatbinMagic);
    write_at(fatbin, 4, std::uint16_t{1});
    write_at(fatbin, 6, static_cast<std::uint16_t>(kFatbinHeaderBytes));
    write_at(fatbin, 8, std::uint64_t{fatbin->size() - kFatbinHeaderBytes});
}

Result<std::string> entry_payload(const FatbinEntry& entry) {
    if ((entry.flags & kFlagsCompressed) != 0) {
        return expand(entry);
    }
    return std::string(reinterpret_cast<const char*>(entry.stored.data()), entry.stored.size());
}

}  // namespace gantry::softgpu::image
