// A cubin as nvcc lays one out: a kernel with a parameter, variables, relocations, records and a
// segment. Its code is zeros. Made for tests and fuzzers that change one field of it.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "proto/base/assert.h"

namespace gantry::worker {

class SampleCubin {
public:
    enum Symbol : std::uint32_t { kNone, kBank, kCounter, kTable, kKernel };
    static constexpr std::uint32_t kSymbolCount = 5;
    static constexpr std::uint32_t kCodeBytes = 256;
    static constexpr std::uint32_t kTableBytes = 4096;
    static constexpr std::uint16_t kParamBase = 0x210;
    static constexpr std::uint16_t kParamBytes = 16;

    SampleCubin() {
        bytes.resize(sizeof(Elf64_Ehdr));
        add_section("", {});
        strings_ = add_section(".strtab", shape(SHT_STRTAB, 0, 1), kNames);
        Elf64_Shdr symbols = linked(SHT_SYMTAB, 0, 8, sizeof(Elf64_Sym));
        symbols.sh_link = strings_;
        symbols.sh_info = kKernel;
        symbols_ =
            add_section(".symtab", symbols, std::string(kSymbolCount * sizeof(Elf64_Sym), '\0'));
        const std::uint32_t registers = 12;
        Elf64_Shdr text = linked(SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 128);
        text.sh_info = kKernel | registers << 24;
        const auto code = add_section(".text.step", text, std::string(kCodeBytes, '\0'));
        const auto initial =
            add_section(".nv.global.init", shape(SHT_PROGBITS, SHF_ALLOC | SHF_WRITE, 8),
                        std::string(24, '\1'));
        Elf64_Shdr nothing = shape(SHT_NOBITS, SHF_ALLOC | SHF_WRITE, 4);
        nothing.sh_size = kTableBytes;
        const auto zeros = add_section(".nv.global", nothing);
        Elf64_Shdr constants = shape(SHT_PROGBITS, SHF_ALLOC | SHF_INFO_LINK, 4);
        constants.sh_info = code;
        const auto bank = add_section(".nv.constant0.step", constants,
                                      std::string(kParamBase + kParamBytes, '\0'));
        add_section(".note.nv.tkinfo", shape(SHT_NOTE, 0, 4), tool_note());
        add_records(code);
        add_relocations(code, initial);
        set_symbol(kBank, 0, STT_SECTION, bank, 0, 0);
        set_symbol(kCounter, 1, STT_OBJECT, initial, 8, 16);
        set_symbol(kTable, 9, STT_OBJECT, zeros, 0, kTableBytes);
        set_symbol(kKernel, 15, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), code, 0, kCodeBytes);
        edit_symbol(kKernel, [](Elf64_Sym& symbol) { symbol.st_other = 0x10; });
        finish(code);
    }

    /// Changes the record of this type at an offset of the file.
    template <typename Record, typename Change>
    void edit(std::uint64_t offset, const Change& change) {
        Record record;
        GANTRY_ASSERT(offset + sizeof(record) <= bytes.size(), "no record there");
        std::memcpy(&record, bytes.data() + offset, sizeof(record));
        change(record);
        std::memcpy(bytes.data() + offset, &record, sizeof(record));
    }
    template <typename Change>
    void edit_header(const Change& change) {
        edit<Elf64_Ehdr>(0, change);
    }
    template <typename Change>
    void edit_section(const std::string& name, const Change& change) {
        edit<Elf64_Shdr>(header_.e_shoff + index(name) * sizeof(Elf64_Shdr), change);
    }
    template <typename Change>
    void edit_symbol(Symbol number, const Change& change) {
        edit<Elf64_Sym>(content(".symtab") + number * sizeof(Elf64_Sym), change);
    }
    template <typename Change>
    void edit_segment(const Change& change) {
        edit<Elf64_Phdr>(header_.e_phoff, change);
    }

    [[nodiscard]] std::uint32_t index(const std::string& name) const { return indices_.at(name); }
    /// Where a section's bytes lie in the file.
    [[nodiscard]] std::uint64_t content(const std::string& name) const {
        return sections_[index(name)].sh_offset;
    }
    [[nodiscard]] const Elf64_Ehdr& header() const { return header_; }

    std::string bytes;

private:
    /// The tools that made it: a version, where five texts begin, the texts.
    static std::string tool_note() {
        const std::string texts("\0tool\0", 6);
        const std::uint32_t words[] = {12, 6 * 4 + 6, 2000};
        const std::uint32_t places[] = {2, 0, 1, 1, 1, 1};
        std::string note(reinterpret_cast<const char*>(words), sizeof(words));
        note += std::string("NVIDIA Corp\0", 12);
        note += std::string(reinterpret_cast<const char*>(places), sizeof(places));
        return note + texts;
    }

    static std::uint16_t index16(std::uint32_t index) { return static_cast<std::uint16_t>(index); }

    void pad_to(std::uint64_t align) { bytes.resize((bytes.size() + align - 1) / align * align); }

    std::uint32_t add_section(const std::string& name, Elf64_Shdr section,
                              const std::string& content = {}) {
        section.sh_name = static_cast<std::uint32_t>(section_names_.size());
        section_names_ += name + '\0';
        pad_to(std::max<std::uint64_t>(section.sh_addralign, 1));
        section.sh_offset = section.sh_type == SHT_NULL ? 0 : bytes.size();
        if (section.sh_type != SHT_NULL && section.sh_type != SHT_NOBITS) {
            section.sh_size = content.size();
            bytes += content;
        }
        sections_.push_back(section);
        const auto index = static_cast<std::uint32_t>(sections_.size() - 1);
        indices_[name] = index;
        return index;
    }

    static Elf64_Shdr shape(std::uint32_t type, std::uint64_t flags, std::uint64_t align) {
        Elf64_Shdr section{};
        section.sh_type = type;
        section.sh_flags = flags;
        section.sh_addralign = align;
        return section;
    }
    [[nodiscard]] Elf64_Shdr linked(std::uint32_t type, std::uint64_t flags, std::uint64_t align,
                                    std::uint64_t entry_bytes = 0) const {
        Elf64_Shdr section = shape(type, flags, align);
        section.sh_link = symbols_;
        section.sh_entsize = entry_bytes;
        return section;
    }

    void set_symbol(Symbol number, std::uint32_t name, unsigned char info, std::uint32_t section,
                    std::uint64_t value, std::uint64_t size) {
        edit_symbol(number, [&](Elf64_Sym& symbol) {
            symbol.st_name = name;
            symbol.st_info = info;
            symbol.st_shndx = index16(section);
            symbol.st_value = value;
            symbol.st_size = size;
        });
    }

    template <typename... Words>
    static std::string packed(Words... words) {
        std::string text;
        (text.append(reinterpret_cast<const char*>(&words), sizeof(words)), ...);
        return text;
    }
    static std::string record(std::uint8_t attribute, const std::string& content) {
        return packed(std::uint8_t{4}, attribute, static_cast<std::uint16_t>(content.size())) +
               content;
    }

    void add_records(std::uint32_t code) {
        const std::uint32_t kernel = kKernel;
        add_section(".nv.info", linked(SHT_LOPROC, 0, 4),
                    record(0x2f, packed(kernel, std::uint32_t{12})) +
                        record(0x11, packed(kernel, std::uint32_t{0})));
        Elf64_Shdr of_kernel = linked(SHT_LOPROC, SHF_INFO_LINK, 4);
        of_kernel.sh_info = code;
        add_section(".nv.info.step", of_kernel,
                    packed(std::uint8_t{3}, std::uint8_t{0x19}, kParamBytes) +
                        record(0x0a, packed(std::uint32_t{kBank}, kParamBase, kParamBytes)) +
                        record(0x17, packed(std::uint32_t{0}, std::uint16_t{1}, std::uint16_t{8},
                                            std::uint32_t{8U << 18 | 0x1f000})) +
                        record(0x1c, packed(std::uint32_t{0x20}, std::uint32_t{0xf0})));
        add_section(".nv.callgraph", linked(SHT_LOPROC + 1, 0, 4, 8),
                    packed(std::uint32_t{0}, std::uint32_t{0xffffffff}, kernel, kernel));
    }

    void add_relocations(std::uint32_t code, std::uint32_t initial) {
        Elf64_Shdr section = linked(SHT_RELA, SHF_INFO_LINK, 8, sizeof(Elf64_Rela));
        section.sh_info = code;
        const Elf64_Rela low{0x20, ELF64_R_INFO(std::uint64_t{kTable}, 0x38), 0};
        const Elf64_Rela high{0xf0, ELF64_R_INFO(std::uint64_t{kTable}, 0x39), 0};
        add_section(".rela.text.step", section, packed(low, high));
        section.sh_info = initial;
        const Elf64_Rela pointer{16, ELF64_R_INFO(std::uint64_t{kCounter}, 2), 0};
        add_section(".rela.nv.global.init", section, packed(pointer));
    }

    void finish(std::uint32_t code) {
        const std::string own = ".shstrtab";
        const auto own_at = static_cast<std::uint32_t>(section_names_.size());
        const std::uint32_t names =
            add_section(own, shape(SHT_STRTAB, 0, 1), section_names_ + own + '\0');
        sections_[names].sh_name = own_at;
        pad_to(8);
        std::memcpy(header_.e_ident, ELFMAG, SELFMAG);
        header_.e_ident[EI_CLASS] = ELFCLASS64;
        header_.e_ident[EI_DATA] = ELFDATA2LSB;
        header_.e_ident[EI_VERSION] = EV_CURRENT;
        header_.e_ident[EI_OSABI] = 0x41;
        header_.e_type = ET_EXEC;
        header_.e_machine = 190;
        header_.e_version = EV_CURRENT;
        header_.e_flags = 0x6005a04;
        header_.e_ehsize = sizeof(Elf64_Ehdr);
        header_.e_shentsize = sizeof(Elf64_Shdr);
        header_.e_phentsize = sizeof(Elf64_Phdr);
        header_.e_shnum = index16(static_cast<std::uint32_t>(sections_.size()));
        header_.e_phnum = 1;
        header_.e_shstrndx = index16(names);
        header_.e_shoff = bytes.size();
        bytes.append(reinterpret_cast<const char*>(sections_.data()),
                     sections_.size() * sizeof(Elf64_Shdr));
        header_.e_phoff = bytes.size();
        Elf64_Phdr segment{};
        segment.p_type = PT_LOAD;
        segment.p_flags = PF_R | PF_X;
        segment.p_offset = sections_[code].sh_offset;
        segment.p_filesz = segment.p_memsz = kCodeBytes;
        segment.p_align = 8;
        bytes.append(reinterpret_cast<const char*>(&segment), sizeof(segment));
        std::memcpy(bytes.data(), &header_, sizeof(header_));
    }

    inline static const std::string kNames{"\0counter\0table\0step\0", 20};

    std::uint32_t strings_ = 0;
    std::uint32_t symbols_ = 0;
    std::string section_names_;
    std::vector<Elf64_Shdr> sections_;
    std::map<std::string, std::uint32_t> indices_;
    Elf64_Ehdr header_{};
};

}  // namespace gantry::worker
