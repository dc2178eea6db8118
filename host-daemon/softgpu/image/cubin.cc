#include "host-daemon/softgpu/image/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include "host-daemon/softgpu/image/readable.h"

namespace gantry::softgpu::image {
namespace {

constexpr std::uint16_t kMachineCuda = 190;
constexpr std::uint8_t kOtherEntry = 0x10;  // st_other bit of a kernel entry point.
constexpr std::uint8_t kAbiNew = 0x41;      // OSABI since CUDA 13: e_flags carry sm in bits 8-15.
// Names are for messages: C++ mangling seldom passes 1 KiB, and entries may share their text.
constexpr std::size_t kNameBytesMax = 4096;
constexpr std::size_t kKernelsMax = 65536;

template <typename Record>
bool read_record(std::span<const std::byte> bytes, std::uint64_t offset, Record& record) {
    if (offset > bytes.size() || sizeof(Record) > bytes.size() - offset) {
        return false;
    }
    std::memcpy(&record, bytes.data() + offset, sizeof record);
    return true;
}

bool is_elf64(const Elf64_Ehdr& header) {
    return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
           header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_ident[EI_DATA] == ELFDATA2LSB;
}

std::string name_at(std::span<const std::byte> elf, const Elf64_Shdr& strings,
                    std::uint32_t offset) {
    if (strings.sh_offset > elf.size() || strings.sh_size > elf.size() - strings.sh_offset ||
        offset >= strings.sh_size) {
        return {};
    }
    const auto* text = reinterpret_cast<const char*>(elf.data() + strings.sh_offset + offset);
    return std::string(text, strnlen(text, std::min(strings.sh_size - offset, kNameBytesMax)));
}

void read_symbols(std::span<const std::byte> elf, const Elf64_Ehdr& header, const Elf64_Shdr& table,
                  CubinInfo& info) {
    Elf64_Shdr strings;
    if (table.sh_link >= header.e_shnum ||
        !read_record(elf, header.e_shoff + table.sh_link * sizeof strings, strings)) {
        return;
    }
    const std::uint64_t count = table.sh_size / sizeof(Elf64_Sym);
    for (std::uint64_t i = 0; i < count && info.kernels.size() < kKernelsMax; ++i) {
        Elf64_Sym symbol;
        if (!read_record(elf, table.sh_offset + i * sizeof symbol, symbol)) {
            return;
        }
        if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && (symbol.st_other & kOtherEntry) != 0) {
            info.kernels.push_back(name_at(elf, strings, symbol.st_name));
        }
    }
}

}  // namespace

std::size_t elf_bytes(const void* elf) {
    Elf64_Ehdr header;
    if (readable_bytes(elf, sizeof header) < sizeof header) {
        return 0;
    }
    std::memcpy(&header, elf, sizeof header);
    constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 40;
    if (!is_elf64(header) || header.e_shoff > kBytesMax) {
        return 0;
    }
    std::uint64_t end = std::max<std::uint64_t>(
        header.e_shoff + std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr), sizeof header);
    if (header.e_phoff <= kBytesMax) {
        end = std::max(end, header.e_phoff + std::uint64_t{header.e_phnum} * sizeof(Elf64_Phdr));
    }
    if (readable_bytes(elf, end) < end) {
        return 0;
    }
    const std::span bytes(static_cast<const std::byte*>(elf), end);
    for (unsigned i = 0; i < header.e_shnum; ++i) {
        Elf64_Shdr section;
        if (!read_record(bytes, header.e_shoff + i * sizeof section, section)) {
            return 0;
        }
        if (section.sh_type != SHT_NOBITS && section.sh_offset <= kBytesMax &&
            section.sh_size <= kBytesMax) {
            end = std::max(end, section.sh_offset + section.sh_size);
        }
    }
    return end;
}

Result<CubinInfo> read_cubin(std::span<const std::byte> elf) {
    Elf64_Ehdr header;
    if (!read_record(elf, 0, header) || !is_elf64(header)) {
        return Error{Code::kInvalidArgument, "image.format", "Not a 64-bit little-endian ELF."};
    }
    if (header.e_machine != kMachineCuda) {
        return Error{Code::kInvalidArgument, "image.format",
                     "An ELF file for machine " + std::to_string(header.e_machine) +
                         ", not for a CUDA device; pass a cubin, a fatbin or PTX."};
    }
    CubinInfo info;
    info.target =
        header.e_ident[EI_OSABI] == kAbiNew ? (header.e_flags >> 8) & 0xff : header.e_flags & 0xff;
    bool seen_symbols = false;
    for (unsigned i = 0; i < header.e_shnum; ++i) {
        Elf64_Shdr section;
        if (!read_record(elf, header.e_shoff + i * sizeof section, section)) {
            return Error{Code::kInvalidArgument, "image.truncated",
                         "The cubin ends before its section table does."};
        }
        // An ELF file has one symbol table at most; tables that overlap would be a bomb.
        if (section.sh_type == SHT_SYMTAB && !seen_symbols) {
            read_symbols(elf, header, section, info);
            seen_symbols = true;
        }
    }
    return info;
}

}  // namespace gantry::softgpu::image
