#include "host-daemon/execution/code/image_variables.h"

#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "host-daemon/softgpu/image/fatbin.h"

namespace gantry::worker {
namespace {

namespace image = softgpu::image;

struct Found {
    std::set<std::string> names;
    bool heap = false;    ///< Calls the device's malloc.
    bool prints = false;  ///< Calls vprintf, or nobody can tell.
    bool wants_symbols = true;
};

template <typename Record>
bool read_at(std::span<const std::byte> bytes, std::uint64_t offset, Record* out) {
    if (offset > bytes.size() || sizeof(Record) > bytes.size() - offset) {
        return false;
    }
    std::memcpy(out, bytes.data() + offset, sizeof(Record));
    return true;
}

std::string_view text_at(std::span<const std::byte> elf, const Elf64_Shdr& table,
                         std::uint32_t offset) {
    if (table.sh_offset > elf.size() || table.sh_size > elf.size() - table.sh_offset ||
        offset >= table.sh_size) {
        return {};
    }
    const auto* text = reinterpret_cast<const char*>(elf.data() + table.sh_offset + offset);
    return {text, strnlen(text, table.sh_size - offset)};
}

/// Sections that hold variables of a module: device memory, and the constant bank for them.
bool holds_variables(std::string_view section) {
    return section.starts_with(".nv.global") || section == ".nv.constant3";
}

class ElfReader {
public:
    explicit ElfReader(std::span<const std::byte> elf) : elf_(elf) {}

    void append(Found* found) {
        if (!read_at(elf_, 0, &header_) || header_.e_shentsize != sizeof(Elf64_Shdr)) {
            return;
        }
        for (std::uint32_t i = 0; i < header_.e_shnum; ++i) {
            Elf64_Shdr table;
            if (section(i, &table) && table.sh_type == SHT_SYMTAB) {
                append_symbols(table, found);
            }
        }
    }

private:
    bool section(std::uint32_t index, Elf64_Shdr* out) const {
        return index < header_.e_shnum &&
               read_at(elf_, header_.e_shoff + std::uint64_t{index} * sizeof(*out), out);
    }

    void append_symbols(const Elf64_Shdr& table, Found* found) const {
        Elf64_Shdr strings;
        Elf64_Shdr section_names;
        if (!section(table.sh_link, &strings) || !section(header_.e_shstrndx, &section_names) ||
            table.sh_size > elf_.size()) {
            return;
        }
        for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= table.sh_size;
             at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            Elf64_Shdr home;
            if (!read_at(elf_, table.sh_offset + at, &symbol)) {
                return;
            }
            found->heap = found->heap || (symbol.st_shndx == SHN_UNDEF &&
                                          text_at(elf_, strings, symbol.st_name) == "malloc");
            if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT && symbol.st_size != 0 &&
                section(symbol.st_shndx, &home) &&
                holds_variables(text_at(elf_, section_names, home.sh_name))) {
                found->names.emplace(text_at(elf_, strings, symbol.st_name));
            }
        }
    }

    std::span<const std::byte> elf_;
    Elf64_Ehdr header_{};
};

bool is_name_char(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}

/// `.global .align 8 .b8 table[64] = {...}` gives `table`: the last word before '[', '=' or ';'.
std::string_view declared_name(std::string_view declaration) {
    declaration = declaration.substr(0, declaration.find_first_of("[=;"));
    std::size_t end = declaration.size();
    while (end != 0 && !is_name_char(declaration[end - 1])) {
        --end;
    }
    std::size_t begin = end;
    while (begin != 0 && is_name_char(declaration[begin - 1])) {
        --begin;
    }
    return declaration.substr(begin, end - begin);
}

std::string without_comments(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const std::string_view rest = text.substr(at);
        if (rest.starts_with("//")) {
            at = std::min(text.find('\n', at), text.size());
        } else if (rest.starts_with("/*")) {
            const std::size_t end = text.find("*/", at + 2);
            at = end == std::string_view::npos ? text.size() : end + 2;
        } else {
            out += text[at++];
        }
    }
    return out;
}

/// Variables are declared outside of functions, one to a statement.
void append_ptx(std::string_view commented, Found* found) {
    const std::string plain = without_comments(commented);
    const std::string_view text = plain;
    int depth = 0;
    std::size_t statement = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const char c = text[at];
        if (c == '{' || c == '}') {
            depth += c == '{' ? 1 : -1;
            // An initialiser's braces do not end its declaration.
            const bool is_body =
                text.substr(statement, at - statement).find('=') == std::string_view::npos;
            statement = c == '}' && depth == 0 && is_body ? at + 1 : statement;
        } else if (c == ';' && depth == 0) {
            const std::string_view declaration = text.substr(statement, at + 1 - statement);
            statement = at + 1;
            const std::string_view head = declaration.substr(0, declaration.find_first_of("[="));
            found->heap = found->heap || (head.find(".extern") != std::string_view::npos &&
                                          head.find(" malloc") != std::string_view::npos);
            if (head.find(".global ") != std::string_view::npos ||
                head.find(".const ") != std::string_view::npos) {
                found->names.emplace(declared_name(declaration));
            }
        }
    }
}

/// printf in device code is a call of this function, in PTX as in an ELF file's symbols.
void look_for_printing(std::span<const std::byte> bytes, Found* found) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    found->prints = found->prints || text.find("vprintf") != std::string_view::npos;
}

void append_bytes(std::span<const std::byte> bytes, Found* found) {
    look_for_printing(bytes, found);
    if (!found->wants_symbols) {
        return;
    }
    std::uint32_t magic = 0;
    if (read_at(bytes, 0, &magic) && std::memcmp(&magic, ELFMAG, SELFMAG) == 0) {
        ElfReader(bytes).append(found);
    } else {
        append_ptx({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, found);
    }
}

void append_fatbin(std::span<const std::byte> bytes, unsigned major, Found* found) {
    const auto entries = image::list_entries(bytes);
    if (!entries.ok()) {
        found->prints = true;
        return;
    }
    const auto fits = [major](const image::FatbinEntry& entry) {
        return entry.kind == image::EntryKind::kElf && entry.target / 10 == major;
    };
    const bool has_elf = std::any_of(entries->begin(), entries->end(), fits);
    for (const image::FatbinEntry& entry : *entries) {
        const bool is_ptx = entry.kind == image::EntryKind::kPtx;
        const bool is_read = has_elf ? fits(entry) : is_ptx;
        if (!is_read && (entry.kind == image::EntryKind::kElf || found->prints)) {
            continue;
        }
        // The PTX beside an ELF file, which a driver takes that cannot run the file, and what is
        // neither: only asked whether it prints.
        const auto payload = image::entry_payload(entry);
        if (!payload.ok() || !(is_read || is_ptx)) {
            found->prints = true;
        } else if (is_read) {
            append_bytes(std::as_bytes(std::span(*payload)), found);
        } else {
            look_for_printing(std::as_bytes(std::span(*payload)), found);
        }
    }
}

Found look_into(std::span<const std::byte> bytes, unsigned major, bool wants_symbols = true) {
    Found found;
    found.wants_symbols = wants_symbols;
    std::uint32_t magic = 0;
    if (read_at(bytes, 0, &magic) && magic == image::kFatbinMagic) {
        append_fatbin(bytes, major, &found);
    } else {
        append_bytes(bytes, &found);
    }
    found.names.erase("");
    return found;
}

}  // namespace

std::set<std::string> variable_names(std::span<const std::byte> bytes, unsigned major) {
    return look_into(bytes, major).names;
}

bool may_print(std::span<const std::byte> bytes, unsigned major) {
    return look_into(bytes, major, false).prints;
}

ImageContents contents_of(std::span<const std::byte> bytes, unsigned major) {
    Found found = look_into(bytes, major);
    return {std::move(found.names), found.prints};
}

bool uses_device_heap(std::span<const std::byte> bytes, unsigned major) {
    return look_into(bytes, major).heap;
}

}  // namespace gantry::worker
