#include "host-daemon/execution/code/elf_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "host-daemon/execution/code/elf_tables.h"

namespace gantry::worker {
namespace {

using image::ElfFile;
using image::kMachineCuda;
using image::lies_within;

constexpr std::uint64_t kAlignBytesMax = std::uint64_t{1} << 20;

bool is_alignment(std::uint64_t bytes) {
    return (bytes & (bytes - 1)) == 0 && bytes <= kAlignBytesMax;  // 0 and 1: none.
}

class ElfCheck {
public:
    ElfCheck(const ElfFile& file, bool for_device) : tables_(file), for_device_(for_device) {}

    Result<void> run() {
        GANTRY_TRY(check_header());
        for (std::uint32_t i = 0; i < sections().size(); ++i) {
            GANTRY_TRY(check_section(i));
        }
        GANTRY_TRY(check_segments());
        GANTRY_TRY(check_overlaps());
        for (std::uint32_t i = 1; i < sections().size(); ++i) {
            GANTRY_TRY(check_content(i));
        }
        return {};
    }

private:
    [[nodiscard]] const ElfFile& file() const { return tables_.file(); }
    [[nodiscard]] const std::vector<Elf64_Shdr>& sections() const { return file().sections(); }
    [[nodiscard]] std::uint64_t file_bytes() const { return file().bytes().size(); }

    static Error bad_header(std::string text) {
        return Error{Code::kInvalidArgument, "image.elf.header", std::move(text)};
    }

    Result<void> check_header() {
        const Elf64_Ehdr& header = file().header();
        if (header.e_ident[EI_VERSION] != EV_CURRENT || header.e_ehsize != sizeof(Elf64_Ehdr) ||
            (header.e_machine == kMachineCuda) != for_device_) {
            return bad_header(
                fmt::format("an ELF file of version {} for machine {}, with a header "
                            "of {} bytes",
                            header.e_ident[EI_VERSION], header.e_machine, header.e_ehsize));
        }
        // More sections than the header can count would be counted in the first section.
        if (header.e_shnum == 0 || header.e_shnum >= SHN_LORESERVE ||
            header.e_shoff < sizeof(Elf64_Ehdr) ||
            (header.e_phnum != 0 && header.e_phoff < sizeof(Elf64_Ehdr))) {
            return bad_header(fmt::format("{} sections at {:#x}, {} segments at {:#x}",
                                          header.e_shnum, header.e_shoff, header.e_phnum,
                                          header.e_phoff));
        }
        if (header.e_shstrndx >= header.e_shnum ||
            sections()[header.e_shstrndx].sh_type != SHT_STRTAB ||
            sections()[0].sh_type != SHT_NULL) {
            return bad_header(
                fmt::format("section {} cannot have the sections' names", header.e_shstrndx));
        }
        return {};
    }

    Result<void> check_section(std::uint32_t index) {
        const Elf64_Shdr& section = sections()[index];
        const bool has_bytes = has_bytes_in_file(section);
        if (section.sh_type == SHT_NULL) {
            return check_names(index);
        }
        if (has_bytes ? !lies_within(section.sh_offset, section.sh_size, file_bytes())
                      : section.sh_offset > file_bytes() || section.sh_size > kMemoryBytesMax) {
            return tables_.bad("image.elf.section", index,
                               fmt::format("{} bytes at {:#x} of a file of {}", section.sh_size,
                                           section.sh_offset, file_bytes()));
        }
        if (!is_alignment(section.sh_addralign) || (for_device_ && section.sh_addr != 0)) {
            return tables_.bad(
                "image.elf.section", index,
                fmt::format("at {:#x}, address {:#x}, aligned to {}", section.sh_offset,
                            section.sh_addr, section.sh_addralign));
        }
        const std::uint64_t entry = entry_bytes(section);
        if ((entry != 0 && section.sh_entsize != entry) ||
            (section.sh_entsize != 0 && section.sh_size % section.sh_entsize != 0)) {
            return tables_.bad(
                "image.elf.section", index,
                fmt::format("{} bytes in entries of {}", section.sh_size, section.sh_entsize));
        }
        // A driver takes it for a section's number, whatever the flags say. Some of cuBLASLt's
        // notes name none.
        const bool names_none = section.sh_type == SHT_NOTE && section.sh_info == ~0U;
        const bool names_section = !is_symbol_table(section) && !is_code(section) && !names_none;
        if (section.sh_link >= sections().size() ||
            (names_section && section.sh_info >= sections().size())) {
            return tables_.bad("image.elf.section", index,
                               fmt::format("links to sections {} and {} of {}", section.sh_link,
                                           section.sh_info, sections().size()));
        }
        return check_names(index);
    }

    Result<void> check_names(std::uint32_t index) {
        const Elf64_Shdr& section = sections()[index];
        const Elf64_Shdr& names = sections()[file().header().e_shstrndx];
        if (section.sh_name >= names.sh_size) {
            return Error{Code::kInvalidArgument, "image.elf.string",
                         fmt::format("section {}: a name at {:#x} of {} bytes", index,
                                     section.sh_name, names.sh_size)};
        }
        // With the last byte 0 every name in the table has an end.
        const auto content = file().content(section);
        if (section.sh_type == SHT_STRTAB && (content.empty() || content.back() != std::byte{0})) {
            return Error{Code::kInvalidArgument, "image.elf.string",
                         fmt::format("section {}: texts without an end", index)};
        }
        return {};
    }

    Result<void> check_segments() {
        for (const Elf64_Phdr& segment : file().segments()) {
            if (!lies_within(segment.p_offset, segment.p_filesz, file_bytes()) ||
                segment.p_filesz > segment.p_memsz || segment.p_memsz > kMemoryBytesMax ||
                !is_alignment(segment.p_align) || (segment.p_vaddr | segment.p_paddr) != 0) {
                return Error{
                    Code::kInvalidArgument, "image.elf.segment",
                    fmt::format("a segment of {} bytes, {} in memory, at {:#x} of a file of {}, "
                                "addresses {:#x} and {:#x}, aligned to {}",
                                segment.p_filesz, segment.p_memsz, segment.p_offset, file_bytes(),
                                segment.p_vaddr, segment.p_paddr, segment.p_align)};
            }
        }
        return {};
    }

    struct Range {
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
        const Elf64_Shdr* section = nullptr;  ///< Null: a header.
    };

    [[nodiscard]] std::vector<Range> ranges() const {
        const Elf64_Ehdr& header = file().header();
        std::vector<Range> found = {
            {0, sizeof(Elf64_Ehdr)},
            {header.e_shoff, header.e_shoff + header.e_shnum * sizeof(Elf64_Shdr)}};
        if (header.e_phnum != 0) {
            found.push_back({header.e_phoff, header.e_phoff + header.e_phnum * sizeof(Elf64_Phdr)});
        }
        for (const Elf64_Shdr& section : sections()) {
            if (has_bytes_in_file(section) && section.sh_size != 0) {
                found.push_back({section.sh_offset, section.sh_offset + section.sh_size, &section});
            }
        }
        std::stable_sort(found.begin(), found.end(), [](const Range& a, const Range& b) {
            return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
        });
        return found;
    }

    /// A capsule's constants, variables and PTX text are those of the code beside it.
    static bool may_share(const Range& a, const Range& b) {
        return a.section != nullptr && b.section != nullptr && a.begin == b.begin &&
               a.end == b.end &&
               ((a.section->sh_flags ^ b.section->sh_flags) & kFlagCapsule) != 0 &&
               !is_table(*a.section) && !is_table(*b.section);
    }

    Result<void> check_overlaps() {
        const std::vector<Range> sorted = ranges();
        for (std::size_t i = 1; i < sorted.size(); ++i) {
            if (sorted[i].begin < sorted[i - 1].end && !may_share(sorted[i - 1], sorted[i])) {
                return Error{Code::kInvalidArgument, "image.elf.overlap",
                             fmt::format("two parts share bytes: {:#x} to {:#x}, {:#x} to {:#x}",
                                         sorted[i - 1].begin, sorted[i - 1].end, sorted[i].begin,
                                         sorted[i].end)};
            }
        }
        return {};
    }

    Result<void> check_content(std::uint32_t index) {
        const Elf64_Shdr& section = sections()[index];
        if (is_symbol_table(section)) {
            return tables_.check_symbols(index, for_device_);
        }
        if (!for_device_) {
            return {};
        }
        switch (section.sh_type) {
            case SHT_REL:
            case SHT_RELA:
            case kTypeCapsuleRela: return tables_.check_relocations(index);
            case kTypeInfo:
            case kTypeCapsuleInfo: return tables_.check_info(index);
            case kTypeCallGraph:
            case kTypePrototype: return tables_.check_call_graph(index);
            case SHT_NOTE: return tables_.check_notes(index);
            default: return tables_.check_code(index);
        }
    }

    ElfTables tables_;
    bool for_device_;
};

Result<void> check(std::span<const std::byte> bytes, bool for_device) {
    GANTRY_ASSIGN(const ElfFile file, ElfFile::open(bytes));
    return ElfCheck(file, for_device).run();
}

}  // namespace

Result<void> check_cubin(std::span<const std::byte> elf) { return check(elf, true); }

Result<void> check_host_object(std::span<const std::byte> elf) { return check(elf, false); }

}  // namespace gantry::worker
