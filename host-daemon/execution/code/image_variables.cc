#include "host-daemon/execution/code/image_variables.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string_view>

#include "host-daemon/softgpu/image/elf_file.h"
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

/// Sections that hold variables of a module: device memory, and the constant bank for them.
bool holds_variables(std::string_view section) {
    return section.starts_with(".nv.global") || section == ".nv.constant3";
}

void append_symbols(const image::ElfFile& elf, const Elf64_Shdr& table, Found* found) {
    const Elf64_Shdr* strings = elf.section(table.sh_link);
    const std::span<const std::byte> symbols = elf.content(table);
    if (strings == nullptr) {
        return;
    }
    Elf64_Sym symbol;
    for (std::uint64_t at = 0; image::read_record(symbols, at, &symbol); at += sizeof(symbol)) {
        const std::string_view name = elf.text(*strings, symbol.st_name).value_or("");
        found->heap = found->heap || (symbol.st_shndx == SHN_UNDEF && name == "malloc");
        const Elf64_Shdr* home = elf.section(symbol.st_shndx);
        if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT && symbol.st_size != 0 && home != nullptr &&
            holds_variables(elf.name(*home))) {
            found->names.emplace(name);
        }
    }
}

void append_elf(std::span<const std::byte> bytes, Found* found) {
    const auto elf = image::ElfFile::open(bytes);
    if (!elf.ok()) {
        return;
    }
    for (const Elf64_Shdr& section : elf->sections()) {
        if (section.sh_type == SHT_SYMTAB) {
            append_symbols(*elf, section, found);
        }
    }
}

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
    if (image::is_elf(bytes)) {
        append_elf(bytes, found);
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
    if (image::read_record(bytes, 0, &magic) && magic == image::kFatbinMagic) {
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
