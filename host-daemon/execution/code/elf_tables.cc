#include "host-daemon/execution/code/elf_tables.h"

#include <fmt/format.h>

#include <algorithm>

namespace gantry::worker {
namespace {

using image::lies_within;
using image::read_record;

/// Of one function, unfolded.
constexpr std::uint64_t kCapsuleCodeBytesMax = std::uint64_t{1} << 28;

// Records of .nv.info: a byte of form, a byte of attribute, two bytes of value or of the content's
// size.
constexpr std::uint8_t kFormContent = 4;
constexpr std::uint8_t kParamBank = 0x0a;  ///< Symbol, 16-bit offset and size in constant bank 0.
constexpr std::uint8_t kExterns = 0x0f;    ///< Symbols.
constexpr std::uint8_t kFrameSize = 0x11;  ///< Symbol, value.
constexpr std::uint8_t kMinStackSize = 0x12;
constexpr std::uint8_t kParamInfo = 0x17;  ///< Index, 16-bit ordinal and offset, size << 18.
constexpr std::uint8_t kParamBytes = 0x19;
constexpr std::uint8_t kExitOffsets = 0x1c;  ///< Offsets in the code.
constexpr std::uint8_t kCtaIdOffsets = 0x1d;
constexpr std::uint8_t kMaxStackSize = 0x23;
constexpr std::uint8_t kCacheModOffsets = 0x25;
constexpr std::uint8_t kCoopGroupOffsets = 0x28;
constexpr std::uint8_t kRegisterCount = 0x2f;
constexpr std::uint8_t kWarpWideOffsets = 0x31;
constexpr std::uint8_t kParamInfo2 = 0x45;
constexpr std::uint8_t kSyscallOffsets = 0x46;

constexpr std::uint64_t kInstructionBytes = 16;

constexpr std::uint32_t kKindAddress64 = 2;

// The note that names the tools: a version, then where each of five texts begins behind them.
constexpr std::uint32_t kToolNote = 2000;
constexpr std::uint64_t kToolTexts = 5;

/// Bytes that a relocation changes. The kinds count up in the order in which NVIDIA's linker names
/// them: 1 R_CUDA_32, 2 R_CUDA_64, 3 G32, 4 G64, ... A kind of an instruction's field reads and
/// writes the instruction, which has 16 bytes; a kind that is not known is taken for one.
std::uint64_t width_of(std::uint32_t kind) {
    const auto is_in = [kind](std::uint32_t first, std::uint32_t last) {
        return kind >= first && kind <= last;
    };
    if (kind == 0) {
        return 0;
    }
    if (kind == 2 || kind == 4 || kind == 0x23 || kind == 0x49 || kind == 0x66) {
        return 8;  // 64, G64, FUNC_DESC_64, UNUSED_CLEAR64, UNIFIED
    }
    if (kind == 1 || kind == 3 || is_in(6, 9) || kind == 0x22 || kind == 0x34 ||
        is_in(0x46, 0x48) || kind == 0x65 || kind == 0x67) {
        return 4;  // 32, G32, headers of textures, FUNC_DESC_32, 32_LO, 32_HI, UNIFIED_32
    }
    if (is_in(0x4c, 0x63) || is_in(0x68, 0x6f)) {
        return 1;  // 8_0 to 8_56, G8, FUNC_DESC_8, UNIFIED_8
    }
    return kInstructionBytes;
}

/// The same of capsules: 0x10000 + their own count.
std::uint64_t capsule_width_of(std::uint32_t kind) {
    const std::uint32_t own = kind - 0x10000;
    if (own == 0) {
        return 0;
    }
    if (own == 4) {
        return 2;  // ABS16
    }
    if (own == 3 || own == 5 || own == 6 || (own >= 8 && own <= 0xd) || own == 0x28 ||
        own == 0x29 || own == 0x33 || own == 0x3c || own == 0x3e || own == 0x3f) {
        return 4;
    }
    if ((own >= 0x10 && own <= 0x27) || (own >= 0x2a && own <= 0x31) ||
        (own >= 0x34 && own <= 0x3b)) {
        return 1;
    }
    return 8;
}

bool has_symbol(std::uint8_t attribute) {
    return attribute == kParamBank || attribute == kFrameSize || attribute == kMinStackSize ||
           attribute == kMaxStackSize || attribute == kRegisterCount;
}

bool has_offsets(std::uint8_t attribute) {
    return attribute == kExitOffsets || attribute == kCtaIdOffsets ||
           attribute == kCacheModOffsets || attribute == kCoopGroupOffsets ||
           attribute == kWarpWideOffsets || attribute == kSyscallOffsets;
}

}  // namespace

std::uint64_t entry_bytes(const Elf64_Shdr& section) {
    switch (section.sh_type) {
        case SHT_SYMTAB:
        case SHT_DYNSYM:
        case kTypeCapsuleSymbols: return sizeof(Elf64_Sym);
        case SHT_RELA:
        case kTypeCapsuleRela: return sizeof(Elf64_Rela);
        case SHT_REL: return sizeof(Elf64_Rel);
        default: return 0;
    }
}

bool is_table(const Elf64_Shdr& section) {
    switch (section.sh_type) {
        case SHT_NULL:
        case SHT_STRTAB:
        case SHT_NOTE:
        case kTypeInfo:
        case kTypeCallGraph:
        case kTypePrototype:
        case kTypeCapsuleInfo: return true;
        default: return entry_bytes(section) != 0;
    }
}

Error ElfTables::bad(const char* reason, std::uint32_t index, const std::string& text) const {
    constexpr std::size_t kNameBytesMax = 200;
    return Error{Code::kInvalidArgument, reason,
                 fmt::format("section {} ({}): {}", index,
                             file_.name(at(index)).substr(0, kNameBytesMax), text)};
}

ElfTables::ElfTables(const image::ElfFile& file) : file_(file) {
    for (const Elf64_Shdr& section : file.sections()) {
        if (section.sh_type == SHT_SYMTAB && symbols_ == nullptr) {
            symbols_ = &section;
        } else if (file.name_starts_with(section, ".nv.constant0.")) {
            banks_.emplace(section.sh_info, &section);
        }
    }
}

bool ElfTables::names_its_target(const Elf64_Shdr& section, const Elf64_Shdr& target) const {
    if (section.sh_type == kTypeCapsuleRela) {
        return true;  // Named by other rules, and read by who unfolds the capsule.
    }
    const std::string_view name = file_.name(section);
    const std::string_view wanted = file_.name(target);
    return name.ends_with(wanted) && name.size() > wanted.size();
}

bool ElfTables::is_undefined(const Elf64_Shdr& section, std::uint64_t symbol) const {
    const Elf64_Shdr* symbols = symbols_of(section);
    Elf64_Sym found;
    return symbols != nullptr &&
           read_record(file_.content(*symbols), symbol * sizeof(found), &found) &&
           found.st_shndx == SHN_UNDEF;
}

/// NVIDIA's libraries have .nv.info without a link, and .rel.debug_frame with a link to something
/// else: they count in the symbol table, of which there is one.
const Elf64_Shdr* ElfTables::symbols_of(const Elf64_Shdr& section) const {
    const Elf64_Shdr* linked = file_.section(section.sh_link);
    return linked != nullptr && is_symbol_table(*linked) ? linked : symbols_;
}

std::uint64_t ElfTables::symbol_count(const Elf64_Shdr& section) const {
    const Elf64_Shdr* symbols = symbols_of(section);
    return symbols == nullptr ? 0 : symbols->sh_size / sizeof(Elf64_Sym);
}

Result<void> ElfTables::check_symbols(std::uint32_t index, bool for_device) const {
    const Elf64_Shdr& table = at(index);
    const Elf64_Shdr& strings = at(table.sh_link);
    const std::uint64_t count = table.sh_size / sizeof(Elf64_Sym);
    if (strings.sh_type != SHT_STRTAB || table.sh_info > count) {
        return bad("image.elf.symbol", index,
                   fmt::format("{} symbols, {} of them local, with names in section {}", count,
                               table.sh_info, table.sh_link));
    }
    for (std::uint32_t i = 0; i < index; ++i) {
        if (at(i).sh_type == table.sh_type) {
            return bad("image.elf.symbol", index, "a second table of symbols");
        }
    }
    Elf64_Sym symbol;
    for (std::uint64_t i = 0; read_record(file_.content(table), i * sizeof(symbol), &symbol); ++i) {
        if (symbol.st_name >= strings.sh_size) {
            return bad("image.elf.string", index,
                       fmt::format("symbol {}: a name at {:#x} of {} bytes", i, symbol.st_name,
                                   strings.sh_size));
        }
        GANTRY_TRY(check_symbol(index, symbol, for_device));
    }
    return {};
}

Result<void> ElfTables::check_symbol(std::uint32_t index, const Elf64_Sym& symbol,
                                     bool for_device) const {
    const Elf64_Shdr* home = file_.section(symbol.st_shndx);
    const auto refuse = [&] {
        return bad("image.elf.symbol", index,
                   fmt::format("a symbol of {} bytes at {:#x} of section {} of {}", symbol.st_size,
                               symbol.st_value, symbol.st_shndx, file_.sections().size()));
    };
    // NVIDIA's own kinds of symbols. Its driver believes one that no tool writes, and fails.
    constexpr unsigned kKindTexture = 10;
    constexpr unsigned kKindSurface = 11;
    constexpr unsigned kKindUnified = 13;
    const unsigned kind = ELF64_ST_TYPE(symbol.st_info);
    if (for_device && (ELF64_ST_BIND(symbol.st_info) > STB_WEAK ||
                       (kind > STT_FILE && kind != kKindTexture && kind != kKindSurface &&
                        kind != kKindUnified))) {
        return bad("image.elf.symbol", index,
                   fmt::format("a symbol of kind {:#x}", symbol.st_info));
    }
    if (home == nullptr) {
        const bool is_special = symbol.st_shndx == SHN_ABS || symbol.st_shndx == SHN_COMMON;
        return !for_device && is_special ? Result<void>{} : refuse();
    }
    std::uint64_t room = kMemoryBytesMax;
    if (home->sh_type == kTypeCapsuleCode) {
        room = kCapsuleCodeBytesMax;
    } else if (has_bytes_in_file(*home)) {
        room = home->sh_size;
    }
    return lies_within(symbol.st_value, symbol.st_size, room) ? Result<void>{} : refuse();
}

Result<void> ElfTables::check_relocations(std::uint32_t index) const {
    const Elf64_Shdr& section = at(index);
    const Elf64_Shdr* target = file_.section(section.sh_info);
    if (target == nullptr || is_table(*target) || !names_its_target(section, *target)) {
        return bad(
            "image.elf.relocation", index,
            fmt::format("changes section {}, which is none that may change", section.sh_info));
    }
    const std::uint64_t room =
        target->sh_type == kTypeCapsuleCode ? kCapsuleCodeBytesMax : target->sh_size;
    const bool in_capsule = section.sh_type == kTypeCapsuleRela;
    const std::uint64_t symbols = symbol_count(section);
    const std::uint64_t entry = entry_bytes(section);
    const std::span<const std::byte> content = file_.content(section);
    for (std::uint64_t at_bytes = 0; at_bytes + entry <= content.size(); at_bytes += entry) {
        Elf64_Rel relocation;  // Elf64_Rela begins alike; its addend is no address of ours.
        if (!read_record(content, at_bytes, &relocation)) {
            break;
        }
        const auto kind = static_cast<std::uint32_t>(ELF64_R_TYPE(relocation.r_info));
        const std::uint64_t symbol = ELF64_R_SYM(relocation.r_info);
        const std::uint64_t width = in_capsule ? capsule_width_of(kind) : width_of(kind);
        // A variable cannot have the address of what the driver alone has, as vprintf; a table can.
        const bool is_nowhere = kind == kKindAddress64 && !in_capsule &&
                                file_.name_starts_with(*target, ".nv.global") &&
                                is_undefined(section, symbol);
        if (symbol >= symbols || is_nowhere || !lies_within(relocation.r_offset, width, room)) {
            return bad("image.elf.relocation", index,
                       fmt::format("relocation {} of kind {:#x} changes {} bytes at {:#x} of {}, "
                                   "by symbol {} of {}",
                                   at_bytes / entry, kind, width, relocation.r_offset, room, symbol,
                                   symbols));
        }
    }
    return {};
}

Result<void> ElfTables::check_info(std::uint32_t index) const {
    const std::span<const std::byte> content = file_.content(at(index));
    Parameters parameters;
    for (std::uint64_t offset = 0; offset < content.size();) {
        InfoRecord record;
        if (!read_record(content, offset, &record.format) ||
            !read_record(content, offset + 1, &record.attribute) ||
            !read_record(content, offset + 2, &record.value) || record.format == 0 ||
            record.format > kFormContent) {
            return bad("image.elf.info", index,
                       fmt::format("no record at {:#x} of {:#x} bytes", offset, content.size()));
        }
        offset += 4;
        if (record.format == kFormContent) {
            if (!lies_within(offset, record.value, content.size())) {
                return bad("image.elf.info", index,
                           fmt::format("a record of {} bytes at {:#x} of {:#x}", record.value,
                                       offset, content.size()));
            }
            record.content = content.subspan(offset, record.value);
            offset += record.value;
        }
        GANTRY_TRY(check_record(index, record));
        GANTRY_TRY(note_parameters(index, record, &parameters));
    }
    // A capsule's bank is made by who unfolds it.
    const bool has_bank = at(index).sh_type == kTypeInfo;
    if (has_bank && std::max(parameters.end, parameters.told_bytes) > parameters.bank_bytes) {
        return bad("image.elf.info", index,
                   fmt::format("parameters of {:#x} bytes, the last ends at {:#x}, in {:#x} bytes",
                               parameters.told_bytes, parameters.end, parameters.bank_bytes));
    }
    return {};
}

Result<void> ElfTables::check_record(std::uint32_t index, const InfoRecord& record) const {
    if (record.attribute == kExterns || has_symbol(record.attribute)) {
        return check_list(index, record, symbol_count(at(index)));
    }
    if (has_offsets(record.attribute)) {
        // Where this kernel's code ends; a capsule's is not known.
        const Elf64_Shdr* code = file_.section(at(index).sh_info);
        const bool is_known = code != nullptr && code->sh_type != kTypeCapsuleCode;
        return check_list(index, record, is_known ? code->sh_size : kCapsuleCodeBytesMax);
    }
    return {};
}

/// Numbers below `limit`; where a symbol has a value, its number alone.
Result<void> ElfTables::check_list(std::uint32_t index, const InfoRecord& record,
                                   std::uint64_t limit) const {
    const bool is_pair = has_symbol(record.attribute);
    const std::uint64_t bytes = record.content.size();
    std::uint32_t value = 0;
    bool good = record.format == kFormContent && bytes % 4 == 0 && (!is_pair || bytes == 8);
    for (std::uint64_t offset = 0; good && offset < (is_pair ? 4 : bytes); offset += 4) {
        good = read_record(record.content, offset, &value) && value < limit;
    }
    return good ? Result<void>{}
                : bad("image.elf.info", index,
                      fmt::format("attribute {:#x} of {} bytes: {:#x} of {:#x}", record.attribute,
                                  bytes, value, limit));
}

Result<void> ElfTables::note_parameters(std::uint32_t index, const InfoRecord& record,
                                        Parameters* parameters) const {
    if (record.attribute == kParamBank) {
        return note_bank(index, record, parameters);
    }
    if (record.attribute == kParamBytes) {
        parameters->told_bytes = std::max<std::uint64_t>(parameters->told_bytes, record.value);
        return {};
    }
    if (record.attribute != kParamInfo && record.attribute != kParamInfo2) {
        return {};
    }
    std::uint16_t offset = 0;
    std::uint32_t packed = 0;
    if (record.format != kFormContent || record.content.size() != 12 ||
        !read_record(record.content, 6, &offset) || !read_record(record.content, 8, &packed)) {
        return bad("image.elf.info", index,
                   fmt::format("a parameter's record of {} bytes", record.content.size()));
    }
    if (record.attribute == kParamInfo) {
        constexpr unsigned kSizeShift = 18;
        parameters->end = std::max<std::uint64_t>(parameters->end, offset + (packed >> kSizeShift));
    }
    return {};
}

/// The bank that a symbol names holds the parameters; a kernel has one.
Result<void> ElfTables::note_bank(std::uint32_t index, const InfoRecord& record,
                                  Parameters* parameters) const {
    const Elf64_Shdr* symbols = symbols_of(at(index));
    std::uint32_t number = 0;
    std::uint16_t offset = 0;
    std::uint16_t bytes = 0;
    Elf64_Sym symbol;
    if (parameters->has_bank || symbols == nullptr || !read_record(record.content, 0, &number) ||
        !read_record(record.content, 4, &offset) || !read_record(record.content, 6, &bytes) ||
        !read_record(file_.content(*symbols), number * sizeof(symbol), &symbol)) {
        return bad("image.elf.info", index, "no symbol of the parameters' bank, or two of them");
    }
    const Elf64_Shdr* home = file_.section(symbol.st_shndx);
    // Some of cuBLAS's kernels name no section: theirs is known by its name and its code.
    if (const auto bank = banks_.find(at(index).sh_info);
        symbol.st_shndx == SHN_UNDEF && bank != banks_.end()) {
        home = bank->second;
    }
    if (home == nullptr || !lies_within(offset, bytes, home->sh_size)) {
        return bad("image.elf.info", index,
                   fmt::format("{} bytes of parameters at {:#x} of a bank of {:#x} bytes", bytes,
                               offset, home == nullptr ? 0 : home->sh_size));
    }
    parameters->has_bank = true;
    parameters->bank_bytes = bytes;
    return {};
}

Result<void> ElfTables::check_call_graph(std::uint32_t index) const {
    const Elf64_Shdr& section = at(index);
    // Small negative numbers stand for what is not known. A prototype's second word is a number of
    // another kind.
    constexpr std::uint32_t kUnknownMin = 0xfffffff0;
    const std::uint64_t symbols = symbol_count(section);
    const std::span<const std::byte> content = file_.content(section);
    std::uint32_t pair[2];
    for (std::uint64_t at_bytes = 0; at_bytes < content.size(); at_bytes += sizeof(pair)) {
        if (!read_record(content, at_bytes, &pair)) {
            return bad("image.elf.info", index, "half a pair of functions");
        }
        const std::size_t checked = section.sh_type == kTypeCallGraph ? 2 : 1;
        for (std::size_t i = 0; i < checked; ++i) {
            if (pair[i] >= symbols && pair[i] < kUnknownMin) {
                return bad("image.elf.info", index,
                           fmt::format("function {:#x} of {:#x} symbols", pair[i], symbols));
            }
        }
    }
    return {};
}

Result<void> ElfTables::check_notes(std::uint32_t index) const {
    const std::span<const std::byte> content = file_.content(at(index));
    const bool is_tools = file_.name_starts_with(at(index), ".note.nv.tkinfo");
    for (std::uint64_t offset = 0; offset < content.size();) {
        Elf64_Nhdr note;
        if (!read_record(content, offset, &note)) {
            return bad("image.elf.note", index, "a note without its header");
        }
        offset += sizeof(note);
        const std::uint64_t name_bytes = (std::uint64_t{note.n_namesz} + 3) / 4 * 4;
        const std::uint64_t bytes = name_bytes + note.n_descsz;
        if (!lies_within(offset, bytes, content.size()) || (is_tools && note.n_type != kToolNote)) {
            return bad(
                "image.elf.note", index,
                fmt::format("a note of {} and {} bytes and type {} at {:#x} of {:#x}",
                            note.n_namesz, note.n_descsz, note.n_type, offset, content.size()));
        }
        if (note.n_type == kToolNote) {
            GANTRY_TRY(check_tool_note(index, content.subspan(offset + name_bytes, note.n_descsz)));
        }
        offset += (bytes + 3) / 4 * 4;
    }
    return {};
}

Result<void> ElfTables::check_tool_note(std::uint32_t index,
                                        std::span<const std::byte> content) const {
    std::uint32_t words[1 + kToolTexts];
    if (!read_record(content, 0, &words) || content.size() == sizeof(words) ||
        content.back() != std::byte{0}) {
        return bad("image.elf.note", index,
                   fmt::format("a note about tools of {} bytes", content.size()));
    }
    for (std::uint64_t i = 1; i <= kToolTexts; ++i) {
        if (words[i] >= content.size() - sizeof(words)) {
            return bad("image.elf.note", index,
                       fmt::format("a text at {:#x} of {:#x} bytes", words[i],
                                   content.size() - sizeof(words)));
        }
    }
    return {};
}

Result<void> ElfTables::check_code(std::uint32_t index) const {
    constexpr std::uint32_t kSymbolBits = 0xffffff;  // Registers are in the bits above.
    const Elf64_Shdr& section = at(index);
    if (is_code(section) && (section.sh_info & kSymbolBits) >= symbol_count(section)) {
        return bad("image.elf.symbol", index,
                   fmt::format("code of symbol {} of {}", section.sh_info & kSymbolBits,
                               symbol_count(section)));
    }
    return {};
}

}  // namespace gantry::worker
