// Writes kernel images for tests and fuzzers: fatbins with entries in every packing, and ELF cubins
// with a symbol table. The layouts are those of host-daemon/softgpu/image; none holds machine code.
#pragma once

#include <elf.h>
#include <lz4.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "host-daemon/softgpu/image/fatbin.h"

namespace gantry::softgpu::image {

enum class Packing { kStored, kZstd, kLz4 };

/// A small PTX text for sm_`target`, with trailing spaces so that compression has something to do.
inline std::string sample_ptx(unsigned target) {
    return "//\n.version 9.0\n.target sm_" + std::to_string(target) + "\n.address_size 64\n" +
           std::string(200, ' ');
}

/// One fatbin entry: a header of 0x40 bytes and the payload, padded to 8 bytes.
inline std::string fatbin_entry(const std::string& plain, unsigned target, Packing packing,
                                EntryKind kind = EntryKind::kPtx) {
    std::string payload = plain;
    std::uint64_t flags = 0x11;
    if (packing == Packing::kZstd) {
        payload.resize(ZSTD_compressBound(plain.size()));
        payload.resize(
            ZSTD_compress(payload.data(), payload.size(), plain.data(), plain.size(), 3));
        flags |= 0x8000;
    } else if (packing == Packing::kLz4) {
        payload.resize(static_cast<std::size_t>(LZ4_compressBound(static_cast<int>(plain.size()))));
        payload.resize(static_cast<std::size_t>(
            LZ4_compress_default(plain.data(), payload.data(), static_cast<int>(plain.size()),
                                 static_cast<int>(payload.size()))));
        flags |= 0x2000;
    }
    const std::size_t padded = (payload.size() + 7) / 8 * 8;
    std::string bytes(0x40 + padded, '\0');
    const auto put = [&bytes](std::size_t at, auto value) {
        std::memcpy(bytes.data() + at, &value, sizeof value);
    };
    put(0x00, static_cast<std::uint16_t>(kind));
    put(0x02, std::uint16_t{0x101});
    put(0x04, std::uint32_t{0x40});
    put(0x08, static_cast<std::uint64_t>(padded));
    put(0x10, packing == Packing::kStored ? 0U : static_cast<std::uint32_t>(payload.size()));
    put(0x1c, static_cast<std::uint32_t>(target));
    put(0x28, flags);
    put(0x38, packing == Packing::kStored ? std::uint64_t{0} : std::uint64_t{plain.size()});
    std::memcpy(bytes.data() + 0x40, payload.data(), payload.size());
    return bytes;
}

/// A fatbin around entries that were put one behind the other.
inline std::string fatbin_of(const std::string& entries) {
    std::string bytes(kFatbinHeaderBytes, '\0');
    const std::uint16_t version = 1;
    const std::uint16_t header = kFatbinHeaderBytes;
    const std::uint64_t size = entries.size();
    std::memcpy(bytes.data(), &kFatbinMagic, sizeof kFatbinMagic);
    std::memcpy(bytes.data() + 4, &version, sizeof version);
    std::memcpy(bytes.data() + 6, &header, sizeof header);
    std::memcpy(bytes.data() + 8, &size, sizeof size);
    return bytes + entries;
}

/// An ELF cubin that declares these kernels as entry points, and a device function beside them.
/// `new_abi`: CUDA 13's OSABI, whose flags carry the sm number in bits 8 to 15.
inline std::string sample_cubin(unsigned target, const std::vector<std::string>& kernels,
                                bool new_abi) {
    std::string names(1, '\0');
    std::vector<Elf64_Sym> symbols(1);
    const auto add_symbol = [&](const std::string& name, unsigned char other) {
        Elf64_Sym symbol{};
        symbol.st_name = static_cast<Elf64_Word>(names.size());
        symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
        symbol.st_other = other;
        symbols.push_back(symbol);
        names += name + '\0';
    };
    for (const std::string& kernel : kernels) {
        add_symbol(kernel, 0x10);
    }
    add_symbol("device_function", 0);
    const std::size_t symbol_bytes = symbols.size() * sizeof(Elf64_Sym);
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_ident[EI_OSABI] = new_abi ? 0x41 : 0x33;
    header.e_type = ET_EXEC;
    header.e_machine = 190;
    header.e_version = EV_CURRENT;
    header.e_flags = new_abi ? target << 8 : target;
    header.e_ehsize = sizeof header;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = 3;
    header.e_shoff = sizeof header + symbol_bytes + names.size();
    Elf64_Shdr sections[3] = {};
    sections[1].sh_type = SHT_SYMTAB;
    sections[1].sh_offset = sizeof header;
    sections[1].sh_size = symbol_bytes;
    sections[1].sh_link = 2;
    sections[1].sh_entsize = sizeof(Elf64_Sym);
    sections[2].sh_type = SHT_STRTAB;
    sections[2].sh_offset = sizeof header + symbol_bytes;
    sections[2].sh_size = names.size();
    std::string file(reinterpret_cast<const char*>(&header), sizeof header);
    file.append(reinterpret_cast<const char*>(symbols.data()), symbol_bytes);
    file += names;
    file.append(reinterpret_cast<const char*>(sections), sizeof sections);
    return file;
}

}  // namespace gantry::softgpu::image
