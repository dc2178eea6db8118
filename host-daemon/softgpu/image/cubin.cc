#include "host-daemon/softgpu/image/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include "host-daemon/softgpu/image/elf_file.h"
#include "host-daemon/softgpu/image/readable.h"

namespace gantry::softgpu::image {
namespace {

constexpr std::uint8_t kOtherEntry = 0x10;  // st_other bit of a kernel entry point.
constexpr std::uint8_t kAbiNew = 0x41;      // OSABI since CUDA 13: e_flags carry sm in bits 8-15.
// Names are for messages: C++ mangling seldom passes 1 KiB, and entries may share their text.
constexpr std::size_t kNameBytesMax = 4096;
constexpr std::size_t kKernelsMax = 65536;

void read_symbols(const ElfFile& elf, const Elf64_Shdr& table, CubinInfo& info) {
    const Elf64_Shdr* strings = elf.section(table.sh_link);
    if (strings == nullptr) {
        return;
    }
    const std::uint64_t count = table.sh_size / sizeof(Elf64_Sym);
    for (std::uint64_t i = 0; i < count && info.kernels.size() < kKernelsMax; ++i) {
        Elf64_Sym symbol;
        if (!read_record(elf.bytes(), table.sh_offset + i * sizeof symbol, &symbol)) {
            return;
        }
        if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && (symbol.st_other & kOtherEntry) != 0) {
            const auto name = elf.text(*strings, symbol.st_name);
            info.kernels.emplace_back(name.value_or("").substr(0, kNameBytesMax));
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
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shoff > kBytesMax) {
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
        if (!read_record(bytes, header.e_shoff + i * sizeof section, &section)) {
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
    GANTRY_ASSIGN(const ElfFile file, ElfFile::open(elf));
    const Elf64_Ehdr& header = file.header();
    if (header.e_machine != kMachineCuda) {
        return Error{Code::kInvalidArgument, "image.format",
                     "An ELF file for machine " + std::to_string(header.e_machine) +
                         ", not for a CUDA device; pass a cubin, a fatbin or PTX."};
    }
    CubinInfo info;
    info.target =
        header.e_ident[EI_OSABI] == kAbiNew ? (header.e_flags >> 8) & 0xff : header.e_flags & 0xff;
    for (const Elf64_Shdr& section : file.sections()) {
        // An ELF file has one symbol table at most; tables that overlap would be a bomb.
        if (section.sh_type == SHT_SYMTAB) {
            read_symbols(file, section, info);
            break;
        }
    }
    return info;
}

}  // namespace gantry::softgpu::image
