#include "host-daemon/softgpu/image/elf_file.h"

#include <string>

namespace gantry::softgpu::image {
namespace {

Error unreadable(const char* reason, std::string text) {
    return Error{Code::kInvalidArgument, reason, std::move(text)};
}

template <typename Record>
Result<std::vector<Record>> read_table(std::span<const std::byte> bytes, std::uint64_t offset,
                                       std::uint16_t count, const char* what) {
    const std::uint64_t table_bytes = count * sizeof(Record);
    if (!lies_within(offset, table_bytes, bytes.size())) {
        return unreadable("image.truncated", "The ELF file of " + std::to_string(bytes.size()) +
                                                 " bytes ends before its " + what + " table does.");
    }
    std::vector<Record> table(count);
    if (count != 0) {
        std::memcpy(table.data(), bytes.data() + offset, table_bytes);
    }
    return table;
}

}  // namespace

bool is_elf(std::span<const std::byte> bytes) {
    return bytes.size() >= SELFMAG && std::memcmp(bytes.data(), ELFMAG, SELFMAG) == 0;
}

Result<ElfFile> ElfFile::open(std::span<const std::byte> bytes) {
    Elf64_Ehdr header;
    if (!is_elf(bytes) || !read_record(bytes, 0, &header) ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
        return unreadable("image.format", "Not a 64-bit little-endian ELF.");
    }
    if ((header.e_shnum != 0 && header.e_shentsize != sizeof(Elf64_Shdr)) ||
        (header.e_phnum != 0 && header.e_phentsize != sizeof(Elf64_Phdr))) {
        return unreadable("image.format", "An ELF file whose tables have entries of " +
                                              std::to_string(header.e_shentsize) + " and " +
                                              std::to_string(header.e_phentsize) +
                                              " bytes, not of 64 and 56.");
    }
    ElfFile file(bytes, header);
    GANTRY_ASSIGN(file.sections_,
                  read_table<Elf64_Shdr>(bytes, header.e_shoff, header.e_shnum, "section"));
    GANTRY_ASSIGN(file.segments_,
                  read_table<Elf64_Phdr>(bytes, header.e_phoff, header.e_phnum, "segment"));
    return file;
}

std::span<const std::byte> ElfFile::content(const Elf64_Shdr& section) const {
    return lies_within(section.sh_offset, section.sh_size, bytes_.size())
               ? bytes_.subspan(section.sh_offset, section.sh_size)
               : std::span<const std::byte>{};
}

std::optional<std::string_view> ElfFile::text(const Elf64_Shdr& strings,
                                              std::uint32_t offset) const {
    const std::span<const std::byte> table = content(strings);
    if (offset >= table.size()) {
        return std::nullopt;
    }
    const auto* text = reinterpret_cast<const char*>(table.data() + offset);
    const std::size_t length = strnlen(text, table.size() - offset);
    return length == table.size() - offset
               ? std::nullopt
               : std::optional<std::string_view>(std::string_view(text, length));
}

bool ElfFile::name_starts_with(const Elf64_Shdr& section, std::string_view text) const {
    const Elf64_Shdr* names = this->section(header_.e_shstrndx);
    const std::span<const std::byte> table =
        names == nullptr ? std::span<const std::byte>{} : content(*names);
    return lies_within(section.sh_name, text.size(), table.size()) &&
           std::memcmp(table.data() + section.sh_name, text.data(), text.size()) == 0;
}

std::string_view ElfFile::name(const Elf64_Shdr& section) const {
    const Elf64_Shdr* names = this->section(header_.e_shstrndx);
    return names == nullptr ? std::string_view{}
                            : text(*names, section.sh_name).value_or(std::string_view{});
}

}  // namespace gantry::softgpu::image
