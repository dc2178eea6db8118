#include "host-daemon/execution/code/image_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "host-daemon/execution/code/elf_check.h"
#include "host-daemon/execution/code/variable_bytes.h"
#include "host-daemon/softgpu/image/elf_file.h"
#include "host-daemon/softgpu/image/fatbin.h"
#include "proto/cuda/abi.h"

namespace gantry::worker {
namespace {

namespace image = softgpu::image;

using Bytes = std::span<const std::byte>;
using image::EntryKind;
using image::FatbinEntry;
using image::lies_within;
using image::read_record;

Error bad(const char* reason, std::string text) {
    return Error{Code::kInvalidArgument, reason, std::move(text)};
}

bool has_end(Bytes text) { return std::find(text.begin(), text.end(), std::byte{0}) != text.end(); }

/// Text begins as text: what begins otherwise a driver may take for something else.
Result<void> check_text(Bytes text, bool needs_end) {
    const auto is_plain = [](std::byte b) {
        const auto c = std::to_integer<unsigned char>(b);
        return (c >= 0x20 && c < 0x7f) || (c >= '\t' && c <= '\r');
    };
    constexpr std::size_t kHeadBytes = 8;
    const Bytes head = text.first(std::min(text.size(), kHeadBytes));
    const auto end = std::find(head.begin(), head.end(), std::byte{0});
    if (end == head.begin() || !std::all_of(head.begin(), end, is_plain)) {
        return bad("image.format", "neither a fatbin, nor a cubin, nor PTX");
    }
    return !needs_end || has_end(text)
               ? Result<void>{}
               : bad("image.ptx", fmt::format("PTX of {} bytes has no end", text.size()));
}

/// What a driver reads of an entry beside its code; offsets as in softgpu/image/fatbin.cc.
Result<void> check_entry_header(const FatbinEntry& entry) {
    std::uint16_t version = 0;
    std::uint32_t options = 0;
    std::uint32_t name = 0;
    std::uint32_t name_bytes = 0;
    const Bytes header = entry.header;
    if (!read_record(header, 0x02, &version) || !read_record(header, 0x14, &options) ||
        !read_record(header, 0x20, &name) || !read_record(header, 0x24, &name_bytes) ||
        version != 0x101 || header.size() % 8 != 0 || options >= header.size() ||
        !lies_within(name, name_bytes, header.size()) ||
        (options != 0 && !has_end(header.subspan(options)))) {
        return bad("image.fatbin",
                   fmt::format("an entry of version {:#x} with a header of {} bytes, options at "
                               "{:#x}, a name of {} bytes at {:#x}",
                               version, header.size(), options, name_bytes, name));
    }
    // A driver may read fewer bits of the number than we do.
    constexpr unsigned kTargetMax = 1000;
    constexpr std::uint64_t kFlagObscured = 0x10000;
    const bool is_code = entry.kind == EntryKind::kElf || entry.kind == EntryKind::kPtx;
    if ((!is_code && entry.kind != EntryKind::kNvvm) || entry.target > kTargetMax ||
        (entry.flags & image::kFlagsCompressed) == image::kFlagsCompressed ||
        (is_code && (entry.flags & kFlagObscured) != 0)) {
        return bad("image.fatbin",
                   fmt::format("an entry of kind {} for target {} with flags {:#x}",
                               static_cast<unsigned>(entry.kind), entry.target, entry.flags));
    }
    return {};
}

/// From compute capability 10 on, code for one major number may be unfolded for another.
bool may_run(unsigned target, unsigned capability) {
    constexpr unsigned kFirstCapsules = 100;
    return capability == 0 || target / 10 == capability / 10 ||
           (target >= kFirstCapsules && capability >= kFirstCapsules);
}

/// An image is loaded from one of its entries.
void note_variables(std::uint64_t bytes, std::uint64_t* most) {
    if (most != nullptr) {
        *most = std::max(*most, bytes);
    }
}

Result<void> check_cubin_in(Bytes cubin, std::uint64_t* variable_bytes) {
    GANTRY_TRY(check_cubin(cubin));
    note_variables(cubin_variable_bytes(cubin), variable_bytes);
    return {};
}

void note_text(Bytes text, std::uint64_t* variable_bytes) {
    if (variable_bytes != nullptr) {
        note_variables(
            ptx_variable_bytes({reinterpret_cast<const char*>(text.data()), text.size()}),
            variable_bytes);
    }
}

Result<void> check_entry(const FatbinEntry& entry, unsigned capability,
                         std::uint64_t* variable_bytes = nullptr) {
    GANTRY_TRY(check_entry_header(entry));
    if (entry.kind == EntryKind::kNvvm ||
        (entry.kind == EntryKind::kElf && !may_run(entry.target, capability))) {
        return {};
    }
    std::string expanded;
    Bytes plain = entry.stored;
    if ((entry.flags & image::kFlagsCompressed) != 0) {
        GANTRY_ASSIGN(expanded, image::entry_payload(entry));
        plain = std::as_bytes(std::span(expanded));
    }
    if (entry.kind == EntryKind::kElf) {
        return check_cubin_in(plain, variable_bytes);
    }
    note_text(plain, variable_bytes);
    return check_text(plain, true);
}

Result<void> check_fatbin(Bytes fatbin, unsigned capability,
                          std::uint64_t* variable_bytes = nullptr) {
    std::uint16_t version = 0;
    if (!read_record(fatbin, 4, &version) || version != 1) {
        return bad("image.fatbin", fmt::format("a fatbin of version {}", version));
    }
    GANTRY_ASSIGN(const auto entries, image::list_entries(fatbin));
    for (const FatbinEntry& entry : entries) {
        GANTRY_TRY(check_entry(entry, capability, variable_bytes));
    }
    return {};
}

/// Fatbins one behind the other, each at a multiple of 8, zeros between them.
Result<void> check_fatbin_section(Bytes content, unsigned capability) {
    while (content.size() >= image::kFatbinHeaderBytes) {
        std::uint64_t word = 0;
        std::uint64_t bytes = sizeof(word);
        if (read_record(content, 0, &word) && word != 0) {
            bytes = image::fatbin_bytes(content.data());
            if (bytes == 0 || bytes > content.size()) {
                return bad("image.fatbin", "a section of fatbins that holds something else");
            }
            GANTRY_TRY(check_fatbin(content.first(bytes), capability));
            bytes = std::min<std::uint64_t>((bytes + 7) / 8 * 8, content.size());
        }
        content = content.subspan(bytes);
    }
    return {};
}

/// A host's object with fatbins in it, or a device's.
Result<void> check_object(Bytes object, unsigned capability) {
    GANTRY_ASSIGN(const auto file, image::ElfFile::open(object));
    if (file.header().e_machine == image::kMachineCuda) {
        return check_cubin(object);
    }
    GANTRY_TRY(check_host_object(object));
    for (const Elf64_Shdr& section : file.sections()) {
        if (file.name_starts_with(section, ".nv_fatbin") ||
            file.name_starts_with(section, "__nv_relfatbin")) {
            GANTRY_TRY(check_fatbin_section(file.content(section), capability));
        }
    }
    return {};
}

/// Of an archive's member: how many bytes follow its header; the digits are text.
bool read_member_bytes(Bytes header, std::uint64_t* bytes) {
    constexpr std::size_t kSizeAt = 48;
    constexpr std::size_t kSizeDigits = 10;
    const auto* text = reinterpret_cast<const char*>(header.data());
    const auto [end, error] = std::from_chars(text + kSizeAt, text + kSizeAt + kSizeDigits, *bytes);
    return error == std::errc{} && text[58] == '`' && text[59] == '\n' &&
           std::all_of(end, text + kSizeAt + kSizeDigits, [](char c) { return c == ' '; });
}

/// The index of an archive: a number of offsets, big endian, those, and as many names.
Result<void> check_archive_index(Bytes index, std::uint64_t archive_bytes) {
    const auto word = [index](std::uint64_t at) {
        std::uint32_t value = 0;
        for (std::uint64_t i = at; i < at + 4 && i < index.size(); ++i) {
            value = value << 8 | std::to_integer<std::uint32_t>(index[i]);
        }
        return value;
    };
    const std::uint64_t count = word(0);
    if (index.size() < 4 || count > (index.size() - 4) / 4) {
        return bad("image.archive",
                   fmt::format("an index of {} members in {} bytes", count, index.size()));
    }
    const Bytes names = index.subspan(4 + 4 * count);
    const auto ends = std::count(names.begin(), names.end(), std::byte{0});
    bool good = static_cast<std::uint64_t>(ends) >= count;
    for (std::uint64_t i = 0; good && i < count; ++i) {
        good = word(4 + 4 * i) < archive_bytes;
    }
    return good
               ? Result<void>{}
               : bad("image.archive", fmt::format("an index of {} members leads out of it", count));
}

Result<void> check_archive(Bytes archive, unsigned capability) {
    constexpr std::string_view kMagic = "!<arch>\n";
    constexpr std::size_t kHeaderBytes = 60;
    const std::string_view text(reinterpret_cast<const char*>(archive.data()), archive.size());
    if (!text.starts_with(kMagic)) {
        return bad("image.archive", "not an archive of objects");
    }
    for (std::uint64_t at = kMagic.size(); at < archive.size();) {
        std::uint64_t bytes = 0;
        if (!lies_within(at, kHeaderBytes, archive.size()) ||
            !read_member_bytes(archive.subspan(at, kHeaderBytes), &bytes) ||
            !lies_within(at + kHeaderBytes, bytes, archive.size())) {
            return bad("image.archive", fmt::format("no member at {:#x} of an archive of {} bytes",
                                                    at, archive.size()));
        }
        const std::string_view name = text.substr(at, 16);
        const Bytes member = archive.subspan(at + kHeaderBytes, bytes);
        if (name.starts_with("/ ")) {
            GANTRY_TRY(check_archive_index(member, archive.size()));
        } else if (!name.starts_with("// ")) {
            GANTRY_TRY(check_object(member, capability));
        }
        at += kHeaderBytes + bytes + bytes % 2;
    }
    return {};
}

std::uint32_t magic_of(Bytes bytes) {
    std::uint32_t magic = 0;
    return read_record(bytes, 0, &magic) ? magic : 0;
}

}  // namespace

Result<void> check_image(Bytes bytes, unsigned capability, std::uint64_t* variable_bytes) {
    if (magic_of(bytes) == image::kWrapperMagic) {
        return bad("image.format", "a wrapper, which holds pointers");
    }
    if (magic_of(bytes) == image::kFatbinMagic) {
        return check_fatbin(bytes, capability, variable_bytes);
    }
    if (image::is_elf(bytes)) {
        return check_cubin_in(bytes, variable_bytes);
    }
    note_text(bytes, variable_bytes);
    return check_text(bytes, true);
}

Result<void> check_link_input(Bytes input, std::uint32_t type, unsigned capability) {
    if (image::is_elf(input)) {
        return check_object(input, capability);
    }
    if (magic_of(input) == image::kFatbinMagic || magic_of(input) == image::kWrapperMagic) {
        return check_image(input, capability);
    }
    switch (type) {
        case CU_JIT_INPUT_LIBRARY: return check_archive(input, capability);
        case CU_JIT_INPUT_PTX: return check_text(input, false);
        case CU_JIT_INPUT_CUBIN:
        case CU_JIT_INPUT_FATBINARY:
        case CU_JIT_INPUT_OBJECT:
            return bad("image.format", "an input for the linker that is not what it is called");
        default: return {};  // Intermediate code, or a type that the driver refuses.
    }
}

}  // namespace gantry::worker
