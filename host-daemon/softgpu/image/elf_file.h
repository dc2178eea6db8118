// ElfFile: the headers of a 64-bit little-endian ELF file in memory, and what they name.
//
// Invariant: the section and segment tables lie within the bytes; each access checks what it is
// given, so hostile bytes give nothing, or an Error, and no read outside. Whether sections lie
// within the file and agree with each other is not looked at: execution/code/elf_check.h does that.
// The bytes belong to the caller and outlive it. Failure: reasons image.format, image.truncated.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace gantry::softgpu::image {

inline constexpr std::uint16_t kMachineCuda = 190;

/// Whether [offset, offset + bytes) lies within `total` bytes; no sum that could wrap.
[[nodiscard]] constexpr bool lies_within(std::uint64_t offset, std::uint64_t bytes,
                                         std::uint64_t total) {
    return offset <= total && bytes <= total - offset;
}

/// A record that need not be aligned; false when it is not all there.
template <typename Record>
bool read_record(std::span<const std::byte> bytes, std::uint64_t offset, Record* record) {
    if (!lies_within(offset, sizeof(Record), bytes.size())) {
        return false;
    }
    std::memcpy(record, bytes.data() + offset, sizeof(Record));
    return true;
}

[[nodiscard]] bool is_elf(std::span<const std::byte> bytes);

class ElfFile {
public:
    static Result<ElfFile> open(std::span<const std::byte> bytes);

    [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
    [[nodiscard]] const Elf64_Ehdr& header() const { return header_; }
    [[nodiscard]] const std::vector<Elf64_Shdr>& sections() const { return sections_; }
    [[nodiscard]] const std::vector<Elf64_Phdr>& segments() const { return segments_; }

    /// Null when there is no such section.
    [[nodiscard]] const Elf64_Shdr* section(std::uint32_t index) const {
        return index < sections_.size() ? &sections_[index] : nullptr;
    }
    /// Empty when it does not lie within the file.
    [[nodiscard]] std::span<const std::byte> content(const Elf64_Shdr& section) const;
    /// The NUL-terminated text at `offset` of a string table; nullopt when it has no end there.
    [[nodiscard]] std::optional<std::string_view> text(const Elf64_Shdr& strings,
                                                       std::uint32_t offset) const;
    /// Does its name begin so? Looks at no more bytes than that.
    [[nodiscard]] bool name_starts_with(const Elf64_Shdr& section, std::string_view text) const;
    /// Empty when the file does not tell.
    [[nodiscard]] std::string_view name(const Elf64_Shdr& section) const;

private:
    ElfFile(std::span<const std::byte> bytes, const Elf64_Ehdr& header)
        : bytes_(bytes), header_(header) {}

    std::span<const std::byte> bytes_;
    Elf64_Ehdr header_;
    std::vector<Elf64_Shdr> sections_;
    std::vector<Elf64_Phdr> segments_;
};

}  // namespace gantry::softgpu::image
