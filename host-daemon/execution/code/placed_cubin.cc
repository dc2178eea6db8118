#include "host-daemon/execution/code/placed_cubin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "host-daemon/execution/code/elf_tables.h"
#include "host-daemon/softgpu/image/fatbin.h"

namespace gantry::worker {
namespace {

using image::ElfFile;
using image::lies_within;
using image::read_record;

using Bytes = std::span<const std::byte>;

Error refused(const std::string& why) {
    return Error{Code::kFailedPrecondition, "module.globals.not_movable",
                 "its code cannot be made to name other addresses: " + why};
}

enum class Home { kNone, kGlobal, kConstant };

/// What a relocation does with the address of what it names.
enum class Use {
    kNothing,
    kAbsolute,  ///< Stores symbol + addend, or a part of it.
    kUnknown,
};

/// The kinds count as in elf_tables.cc.
Use use_of(std::uint32_t kind) {
    switch (kind) {
        case 0: return Use::kNothing;
        case 0x01:                         // 32
        case 0x02:                         // 64
        case 0x03:                         // G32
        case 0x04:                         // G64
        case 0x38:                         // ABS32_LO_32, of an instruction
        case 0x39:                         // ABS32_HI_32
        case 0x47:                         // 32_LO
        case 0x48: return Use::kAbsolute;  // 32_HI
        default: break;
    }
    // 8_0 to 8_56 and G8_0 to G8_56: a byte each.
    return kind >= 0x4c && kind <= 0x5b ? Use::kAbsolute : Use::kUnknown;
}

/// A symbol that a relocation names, as far as variables are concerned.
struct Symbol {
    std::string_view name;
    Home home = Home::kNone;
    std::uint32_t section = 0;
    std::uint64_t value = 0;
    std::uint64_t bytes = 0;
    bool is_section = false;
};

class VariableTable {
public:
    static Result<VariableTable> read(Bytes cubin) {
        GANTRY_ASSIGN(ElfFile file, ElfFile::open(cubin));
        if (file.header().e_machine != image::kMachineCuda) {
            return Error{Code::kInvalidArgument, "image.elf.header", "not code for a GPU"};
        }
        VariableTable table(std::move(file));
        table.read_symbols();
        return table;
    }

    [[nodiscard]] const ElfFile& file() const { return file_; }
    [[nodiscard]] const std::vector<Symbol>& symbols() const { return symbols_; }

    /// Calls `see(section, offset in the file, relocation, symbol)` with each relocation that names
    /// a variable, or a section of them, in what is loaded. An entry of SHT_REL has addend 0.
    template <typename See>
    Result<void> for_each_relocation(const See& see) const {
        for (const Elf64_Shdr& section : file_.sections()) {
            const bool has_addend = section.sh_type == SHT_RELA;
            if (section.sh_type == kTypeCapsuleRela) {
                return refused("it is in capsules");
            }
            const Elf64_Shdr* target = file_.section(section.sh_info);
            if ((!has_addend && section.sh_type != SHT_REL) || target == nullptr ||
                (target->sh_flags & SHF_ALLOC) == 0) {
                continue;  // What only a debugger reads stays as it is.
            }
            const Bytes content = file_.content(section);
            const std::uint64_t entry = entry_bytes(section);
            for (std::uint64_t at = 0; lies_within(at, entry, content.size()); at += entry) {
                Elf64_Rela relocation{};
                std::memcpy(&relocation, content.data() + at, entry);
                const std::uint64_t index = ELF64_R_SYM(relocation.r_info);
                if (index < symbols_.size() && symbols_[index].home != Home::kNone) {
                    GANTRY_TRY(see(section, section.sh_offset + at, relocation, symbols_[index]));
                }
            }
        }
        return {};
    }

    /// The variable that has the byte at `offset` of a section; null: none.
    [[nodiscard]] const Symbol* variable_at(std::uint32_t section, std::uint64_t offset) const {
        const auto found = std::find_if(symbols_.begin(), symbols_.end(), [&](const Symbol& each) {
            return !each.is_section && each.home != Home::kNone && each.section == section &&
                   offset >= each.value && offset - each.value < each.bytes;
        });
        return found == symbols_.end() ? nullptr : &*found;
    }

private:
    explicit VariableTable(ElfFile file) : file_(std::move(file)) {}

    [[nodiscard]] Home home_of(const Elf64_Shdr& section) const {
        if (file_.name_starts_with(section, ".nv.global")) {
            return Home::kGlobal;
        }
        return file_.name(section) == ".nv.constant3" ? Home::kConstant : Home::kNone;
    }

    /// There is one table (check_cubin()); its indices are those of the relocations.
    void read_symbols() {
        for (const Elf64_Shdr& table : file_.sections()) {
            const Elf64_Shdr* strings = file_.section(table.sh_link);
            if (table.sh_type != SHT_SYMTAB || strings == nullptr || !symbols_.empty()) {
                continue;
            }
            Elf64_Sym raw;
            for (std::uint64_t at = 0; read_record(file_.content(table), at, &raw);
                 at += sizeof(raw)) {
                Symbol symbol;
                const Elf64_Shdr* home = file_.section(raw.st_shndx);
                const auto type = ELF64_ST_TYPE(raw.st_info);
                symbol.is_section = type == STT_SECTION;
                if (home != nullptr && (symbol.is_section || type == STT_OBJECT)) {
                    symbol.home = home_of(*home);
                    symbol.name = file_.text(*strings, raw.st_name).value_or("");
                    symbol.section = raw.st_shndx;
                    symbol.value = raw.st_value;
                    symbol.bytes = raw.st_size;
                }
                symbols_.push_back(symbol);
            }
        }
    }

    ElfFile file_;
    std::vector<Symbol> symbols_;
};

class CubinPlacer {
public:
    CubinPlacer(const VariableTable& table, const VariableShifts& shifts)
        : table_(table), shifts_(shifts) {}

    Result<std::vector<std::byte>> run() {
        GANTRY_TRY(check_symbols());
        const Bytes bytes = table_.file().bytes();
        out_.assign(bytes.begin(), bytes.end());
        GANTRY_TRY(table_.for_each_relocation(
            [this](const Elf64_Shdr& section, std::uint64_t at, const Elf64_Rela& relocation,
                   const Symbol& symbol) { return place(section, at, relocation, symbol); }));
        return std::move(out_);
    }

private:
    [[nodiscard]] std::uint64_t shift_of(std::string_view name) const {
        const auto shift = shifts_.find(name);
        return shift == shifts_.end() ? 0 : shift->second;
    }

    /// One variable of each name that moves, in device memory: nobody could tell two apart.
    Result<void> check_symbols() const {
        std::set<std::string_view> seen;
        for (const Symbol& symbol : table_.symbols()) {
            if (symbol.home == Home::kNone || symbol.is_section || shift_of(symbol.name) == 0) {
                continue;
            }
            if (symbol.home == Home::kConstant) {
                return refused(fmt::format("{} lies in a constant bank", symbol.name));
            }
            if (!seen.insert(symbol.name).second) {
                return refused(fmt::format("it has two variables {}", symbol.name));
            }
        }
        return {};
    }

    /// By how much what a relocation names moves.
    Result<std::uint64_t> shift(const Elf64_Rela& relocation, const Symbol& symbol) const {
        if (!symbol.is_section) {
            return shift_of(symbol.name);
        }
        const auto offset = static_cast<std::uint64_t>(relocation.r_addend);
        if (const Symbol* variable = table_.variable_at(symbol.section, offset)) {
            return shift_of(variable->name);
        }
        const auto moves = [this, &symbol](const Symbol& each) {
            return !each.is_section && each.section == symbol.section && shift_of(each.name) != 0;
        };
        if (std::any_of(table_.symbols().begin(), table_.symbols().end(), moves)) {
            return refused(
                fmt::format("a relocation names {:#x} of section {}, where no variable "
                            "lies",
                            offset, symbol.section));
        }
        return std::uint64_t{0};
    }

    Result<void> place(const Elf64_Shdr& section, std::uint64_t at, const Elf64_Rela& relocation,
                       const Symbol& symbol) {
        const auto kind = static_cast<std::uint32_t>(ELF64_R_TYPE(relocation.r_info));
        const Use use = use_of(kind);
        GANTRY_ASSIGN(const std::uint64_t by, shift(relocation, symbol));
        if (by == 0 || use == Use::kNothing) {
            return {};
        }
        if (use == Use::kUnknown || section.sh_type != SHT_RELA) {
            return refused(fmt::format("a relocation of kind {:#x}{} names {}", kind,
                                       section.sh_type == SHT_RELA ? "" : " without an addend",
                                       symbol.name));
        }
        const std::uint64_t addend = static_cast<std::uint64_t>(relocation.r_addend) + by;
        const std::uint64_t to = at + offsetof(Elf64_Rela, r_addend);
        if (!lies_within(to, sizeof(addend), out_.size())) {
            return refused("a relocation lies outside of the file");
        }
        std::memcpy(out_.data() + to, &addend, sizeof(addend));
        return {};
    }

    const VariableTable& table_;
    const VariableShifts& shifts_;
    std::vector<std::byte> out_;
};

/// What a driver may choose from an image.
struct MachineCode {
    Bytes plain;
    std::string expanded;  ///< Instead of `plain`, if compressed.
    Bytes entry_header;    ///< Of a fatbin's entry.

    [[nodiscard]] Bytes cubin() const {
        return expanded.empty() ? plain : std::as_bytes(std::span(expanded));
    }
};

/// A fatbin's newest that the device runs: more than one where they differ in more than their
/// number (sm_90 and sm_90a), and the driver alone knows which it takes.
Result<std::vector<MachineCode>> machine_code(Bytes bytes, unsigned capability) {
    if (image::is_elf(bytes)) {
        return std::vector<MachineCode>{{bytes, {}, {}}};
    }
    std::vector<image::FatbinEntry> entries;
    std::uint32_t magic = 0;
    if (read_record(bytes, 0, &magic) && magic == image::kFatbinMagic) {
        GANTRY_ASSIGN(entries, image::list_entries(bytes));
    }
    std::erase_if(entries, [capability](const image::FatbinEntry& entry) {
        return entry.kind != image::EntryKind::kElf || entry.target / 10 != capability / 10 ||
               entry.target > capability;
    });
    unsigned newest = 0;
    for (const image::FatbinEntry& entry : entries) {
        newest = std::max(newest, entry.target);
    }
    std::vector<MachineCode> found;
    for (const image::FatbinEntry& entry : entries) {
        if (entry.target != newest) {
            continue;
        }
        MachineCode code{entry.stored, {}, entry.header};
        if ((entry.flags & image::kFlagsCompressed) != 0) {
            GANTRY_ASSIGN(code.expanded, image::entry_payload(entry));
        }
        found.push_back(std::move(code));
    }
    return found.empty() ? Result<std::vector<MachineCode>>(
                               refused("the image has no machine code for this device"))
                         : std::move(found);
}

}  // namespace

Result<CubinVariables> cubin_variables(Bytes cubin) {
    GANTRY_ASSIGN(const VariableTable table, VariableTable::read(cubin));
    CubinVariables out;
    for (const Symbol& symbol : table.symbols()) {
        if (symbol.home == Home::kConstant && !symbol.is_section) {
            out.constants.emplace(symbol.name);
        }
    }
    GANTRY_TRY(table.for_each_relocation([&](const Elf64_Shdr&, std::uint64_t, const Elf64_Rela&,
                                             const Symbol& named) -> Result<void> {
        if (!named.is_section) {
            out.named.emplace(named.name);
            return {};
        }
        // By its place in a section any of them may be meant.
        for (const Symbol& symbol : table.symbols()) {
            if (!symbol.is_section && symbol.section == named.section) {
                out.named.emplace(symbol.name);
            }
        }
        return {};
    }));
    return out;
}

Result<std::vector<std::byte>> placed_cubin(Bytes cubin, const VariableShifts& shifts) {
    GANTRY_ASSIGN(const VariableTable table, VariableTable::read(cubin));
    return CubinPlacer(table, shifts).run();
}

Result<CubinVariables> image_variables(Bytes bytes, unsigned capability) {
    CubinVariables out;
    GANTRY_ASSIGN(const std::vector<MachineCode> codes, machine_code(bytes, capability));
    for (const MachineCode& code : codes) {
        GANTRY_ASSIGN(CubinVariables each, cubin_variables(code.cubin()));
        out.named.merge(each.named);
        out.constants.merge(each.constants);
    }
    return out;
}

Result<std::vector<std::byte>> placed_machine_code(Bytes bytes, unsigned capability,
                                                   const VariableShifts& shifts) {
    GANTRY_ASSIGN(const std::vector<MachineCode> codes, machine_code(bytes, capability));
    if (codes.size() == 1) {
        return placed_cubin(codes.front().cubin(), shifts);
    }
    std::vector<std::byte> fatbin(image::kFatbinHeaderBytes);
    for (const MachineCode& code : codes) {
        GANTRY_ASSIGN(const std::vector<std::byte> placed, placed_cubin(code.cubin(), shifts));
        image::append_stored(code.entry_header, placed, &fatbin);
    }
    return fatbin;
}

}  // namespace gantry::worker
