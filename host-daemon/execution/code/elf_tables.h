// The tables inside an ELF file, checked against the file: symbols, relocations, .nv.info, the call
// graph. A part of elf_check.h, which has looked at the sections before; layout facts are the
// constants here and in elf_tables.cc.
#pragma once

#include <map>
#include <string>

#include "host-daemon/softgpu/image/elf_file.h"

namespace gantry::worker {

namespace image = softgpu::image;

// Types of sections. Those of capsule code (compute capability 10 and later) are the ones that a
// driver unfolds for the device that it finds; they have symbols and relocations of their own.
inline constexpr std::uint32_t kTypeInfo = 0x70000000;
inline constexpr std::uint32_t kTypeCallGraph = 0x70000001;
inline constexpr std::uint32_t kTypePrototype = 0x70000002;
inline constexpr std::uint32_t kTypeGlobal = 0x70000007;
inline constexpr std::uint32_t kTypeLocal = 0x70000009;
inline constexpr std::uint32_t kTypeShared = 0x7000000a;
inline constexpr std::uint32_t kTypeSharedReserved = 0x70000015;
inline constexpr std::uint32_t kTypeCapsuleCode = 0x70000016;
inline constexpr std::uint32_t kTypeCapsuleRela = 0x70000082;
inline constexpr std::uint32_t kTypeCapsuleInfo = 0x70000083;
inline constexpr std::uint32_t kTypeCapsuleSymbols = 0x70000085;
inline constexpr std::uint64_t kFlagCapsule = 0x10000000;

/// Nothing that only exists in a device's memory is larger: no device has as much.
inline constexpr std::uint64_t kMemoryBytesMax = std::uint64_t{1} << 40;

[[nodiscard]] inline bool has_bytes_in_file(const Elf64_Shdr& section) {
    switch (section.sh_type) {
        case SHT_NULL:
        case SHT_NOBITS:
        case kTypeGlobal:
        case kTypeLocal:
        case kTypeShared:
        case kTypeSharedReserved: return false;
        default: return true;
    }
}

[[nodiscard]] inline bool is_symbol_table(const Elf64_Shdr& section) {
    return section.sh_type == SHT_SYMTAB || section.sh_type == SHT_DYNSYM ||
           section.sh_type == kTypeCapsuleSymbols;
}

/// Its sh_info is a symbol's number and a count of registers.
[[nodiscard]] inline bool is_code(const Elf64_Shdr& section) {
    return section.sh_type == kTypeCapsuleCode ||
           (section.sh_type == SHT_PROGBITS && (section.sh_flags & SHF_EXECINSTR) != 0);
}

/// Of a table that the driver goes by: its entries' size, 0 for any; see is_table().
[[nodiscard]] std::uint64_t entry_bytes(const Elf64_Shdr& section);

/// What a driver goes by: nothing may change it, a relocation least of all.
[[nodiscard]] bool is_table(const Elf64_Shdr& section);

class ElfTables {
public:
    explicit ElfTables(const image::ElfFile& file);

    [[nodiscard]] const image::ElfFile& file() const { return file_; }

    Result<void> check_symbols(std::uint32_t index, bool for_device) const;
    Result<void> check_relocations(std::uint32_t index) const;
    Result<void> check_info(std::uint32_t index) const;
    Result<void> check_call_graph(std::uint32_t index) const;
    Result<void> check_notes(std::uint32_t index) const;
    /// A section of code names its function.
    Result<void> check_code(std::uint32_t index) const;

    /// "section 7 (.text.step): `text`".
    [[nodiscard]] Error bad(const char* reason, std::uint32_t index, const std::string& text) const;

private:
    struct InfoRecord {
        std::uint8_t format = 0;
        std::uint8_t attribute = 0;
        std::uint16_t value = 0;  ///< Or how many bytes follow.
        std::span<const std::byte> content;
    };

    /// What the records of a section say about its kernel's parameters.
    struct Parameters {
        bool has_bank = false;
        std::uint64_t bank_bytes = 0;
        std::uint64_t end = 0;  ///< Behind the last one.
        std::uint64_t told_bytes = 0;
    };

    [[nodiscard]] const Elf64_Shdr& at(std::uint32_t index) const {
        return file_.sections()[index];
    }
    /// The symbols that a section's records count in; null: there are none.
    [[nodiscard]] const Elf64_Shdr* symbols_of(const Elf64_Shdr& section) const;
    [[nodiscard]] std::uint64_t symbol_count(const Elf64_Shdr& section) const;
    Result<void> check_tool_note(std::uint32_t index, std::span<const std::byte> content) const;
    /// Whether the section that a relocation table changes is the one that its name says.
    [[nodiscard]] bool names_its_target(const Elf64_Shdr& section, const Elf64_Shdr& target) const;
    [[nodiscard]] bool is_undefined(const Elf64_Shdr& section, std::uint64_t symbol) const;
    Result<void> check_symbol(std::uint32_t index, const Elf64_Sym& symbol, bool for_device) const;
    Result<void> check_record(std::uint32_t index, const InfoRecord& record) const;
    Result<void> check_list(std::uint32_t index, const InfoRecord& record,
                            std::uint64_t limit) const;
    Result<void> note_parameters(std::uint32_t index, const InfoRecord& record,
                                 Parameters* parameters) const;
    Result<void> note_bank(std::uint32_t index, const InfoRecord& record,
                           Parameters* parameters) const;

    const image::ElfFile& file_;
    const Elf64_Shdr* symbols_ = nullptr;  ///< The first table of them.
    /// By the index of a kernel's code, the constant bank that has its parameters.
    std::map<std::uint32_t, const Elf64_Shdr*> banks_;
};

}  // namespace gantry::worker
