#include "host-daemon/softgpu/image/image.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>

#include "host-daemon/softgpu/image/cubin.h"
#include "host-daemon/softgpu/image/fatbin.h"
#include "host-daemon/softgpu/image/readable.h"

namespace gantry::softgpu::image {
namespace {

constexpr std::size_t kPtxBytesMax = std::size_t{512} << 20;
constexpr std::size_t kRelocatableInputsMax = 65536;

using Bytes = std::span<const std::byte>;

Error bad(const char* reason, std::string text) {
    return Error{Code::kInvalidArgument, reason, std::move(text)};
}

/// Lower is better: PTX at or below the device first (highest wins), then above (lowest wins).
std::pair<int, long> rank(unsigned target, unsigned capability) {
    return target <= capability ? std::pair<int, long>{0, -static_cast<long>(target)}
                                : std::pair<int, long>{1, static_cast<long>(target)};
}

Result<PtxUnit> unit_of(const FatbinEntry& entry) {
    GANTRY_ASSIGN(std::string text, entry_payload(entry));
    if (const std::size_t end = text.find('\0'); end != std::string::npos) {
        text.resize(end);  // Stored PTX is padded with zeros.
    }
    PtxUnit unit{entry.name, std::move(text), entry.target};
    return unit;
}

void note(Contents& contents, const FatbinEntry& entry) {
    const char* kind = entry.kind == EntryKind::kPtx   ? "PTX for sm_"
                       : entry.kind == EntryKind::kElf ? "cubin for sm_"
                                                       : "LTO IR for sm_";
    contents.found.push_back(kind + std::to_string(entry.target));
    if (entry.kind != EntryKind::kElf || !contents.cubin_kernels.empty()) {
        return;
    }
    if (auto payload = entry_payload(entry); payload.ok()) {
        const auto bytes = std::as_bytes(std::span(*payload));
        if (auto cubin = read_cubin(bytes); cubin.ok()) {
            contents.cubin_kernels = cubin->kernels;
        }
    }
}

/// Adds the fitting PTX of one fatbin; false when there is none.
Result<bool> add_fatbin(Bytes fatbin, unsigned capability, Contents& contents) {
    GANTRY_ASSIGN(const std::vector<FatbinEntry> entries, list_entries(fatbin));
    const FatbinEntry* best = nullptr;
    bool all_units = false;
    for (const FatbinEntry& entry : entries) {
        if (entry.kind != EntryKind::kPtx) {
            continue;
        }
        all_units |= (entry.flags & kFlagLinkedUnits) != 0;
        if (best == nullptr || rank(entry.target, capability) < rank(best->target, capability)) {
            best = &entry;
        }
    }
    for (const FatbinEntry& entry : entries) {
        if (best == nullptr) {
            note(contents, entry);
        }
        if (entry.kind == EntryKind::kPtx && (&entry == best || all_units)) {
            GANTRY_ASSIGN(PtxUnit unit, unit_of(entry));
            contents.units.push_back(std::move(unit));
        }
    }
    return best != nullptr;
}

Error no_ptx(const Contents& contents, unsigned capability) {
    std::string text = "The image holds ";
    for (std::size_t i = 0; i < contents.found.size() && i < 8; ++i) {
        text += (i ? ", " : "") + contents.found[i];
    }
    text += contents.found.empty() ? "no code" : "";
    if (!contents.cubin_kernels.empty()) {
        text += " (kernel " + contents.cubin_kernels.front() + ")";
    }
    text += "; the soft GPU runs PTX only: build with -gencode arch=compute_" +
            std::to_string(std::min(capability, 90U)) + ",code=compute_" +
            std::to_string(std::min(capability, 90U)) + ".";
    return Error{Code::kFailedPrecondition, "image.no_ptx", text};
}

/// The bytes of the fatbin at `address`, as far as its header says and memory allows.
Result<Bytes> fatbin_at(const void* address) {
    if (readable_bytes(address, kFatbinHeaderBytes) < kFatbinHeaderBytes) {
        return bad("image.truncated", "A fatbin pointer leads to memory that cannot be read.");
    }
    const std::uint64_t total = fatbin_bytes(address);
    if (total == 0) {
        return bad("image.format", "A fatbin pointer leads to something else than a fatbin.");
    }
    if (readable_bytes(address, total) < total) {
        return bad("image.truncated", "The fatbin declares " + std::to_string(total) +
                                          " bytes, but memory ends before.");
    }
    return Bytes(static_cast<const std::byte*>(address), total);
}

/// The relocatable inputs of a version 2 wrapper: a NULL-ended array of fatbin pointers.
Result<bool> add_relocatable(const void* array, unsigned capability, Contents& contents) {
    bool complete = true;
    bool any = false;
    for (std::size_t i = 0; i < kRelocatableInputsMax; ++i) {
        const auto* slot = static_cast<const std::byte*>(array) + i * sizeof(void*);
        if (readable_bytes(slot, sizeof(void*)) < sizeof(void*)) {
            return bad("image.truncated", "The wrapper's list of relocatable inputs has no end.");
        }
        const void* fatbin = nullptr;
        std::memcpy(&fatbin, slot, sizeof fatbin);
        if (fatbin == nullptr) {
            return any && complete;
        }
        any = true;
        GANTRY_ASSIGN(const Bytes bytes, fatbin_at(fatbin));
        GANTRY_ASSIGN(const bool has_ptx, add_fatbin(bytes, capability, contents));
        complete = complete && has_ptx;
    }
    return bad("image.format", "The wrapper lists too many relocatable inputs.");
}

Result<Contents> finish(bool has_ptx, Contents contents, unsigned capability) {
    if (!has_ptx || contents.units.empty()) {
        return no_ptx(contents, capability);
    }
    return contents;
}

Result<Contents> read_wrapper(const void* image, unsigned capability) {
    std::uint32_t version = 0;
    const void* data = nullptr;
    const void* inputs = nullptr;
    const auto* bytes = static_cast<const std::byte*>(image);
    if (readable_bytes(image, kWrapperBytes) < kWrapperBytes) {
        return bad("image.truncated", "Memory ends inside the fatbin wrapper.");
    }
    std::memcpy(&version, bytes + 4, sizeof version);
    std::memcpy(&data, bytes + 8, sizeof data);
    std::memcpy(&inputs, bytes + 16, sizeof inputs);
    Contents contents;
    if (version == 2 && inputs != nullptr) {
        GANTRY_ASSIGN(const bool has_ptx, add_relocatable(inputs, capability, contents));
        if (has_ptx) {
            return contents;
        }
        contents = {};  // Units without PTX: perhaps the linked image has some.
    } else if (version != 1 && version != 2) {
        return bad("image.format", "Fatbin wrapper of unknown version " + std::to_string(version) +
                                       "; versions 1 and 2 are known.");
    }
    GANTRY_ASSIGN(const Bytes fatbin, fatbin_at(data));
    GANTRY_ASSIGN(const bool has_ptx, add_fatbin(fatbin, capability, contents));
    return finish(has_ptx, std::move(contents), capability);
}

Result<Contents> read_elf(Bytes elf, unsigned capability) {
    GANTRY_ASSIGN(CubinInfo cubin, read_cubin(elf));
    Contents contents;
    contents.found.push_back("cubin for sm_" + std::to_string(cubin.target));
    contents.cubin_kernels = std::move(cubin.kernels);
    return no_ptx(contents, capability);
}

Result<Contents> read_text(std::string text) {
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    const bool plausible =
        first != std::string::npos && (text[first] == '.' || text.compare(first, 2, "//") == 0 ||
                                       text.compare(first, 2, "/*") == 0);
    if (!plausible || text.find(".version") == std::string::npos) {
        return bad("image.format",
                   "Not a kernel image: neither a fatbin, nor an ELF cubin, nor PTX text.");
    }
    Contents contents;
    const unsigned target = ptx_target(text);
    contents.units.push_back(PtxUnit{"ptx", std::move(text), target});
    return contents;
}

std::uint32_t magic_of(const void* image) {
    std::uint32_t magic = 0;
    std::memcpy(&magic, image, sizeof magic);
    return magic;
}

bool starts_elf(const void* image) {
    return std::memcmp(image,
                       "\x7f"
                       "ELF",
                       4) == 0;
}

}  // namespace

unsigned ptx_target(const std::string& text) {
    std::size_t at = text.find(".target");
    if (at == std::string::npos || (at = text.find("sm_", at)) == std::string::npos) {
        return 0;
    }
    unsigned target = 0;
    for (at += 3; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0 &&
                  target < 10000;
         ++at) {
        target = target * 10 + static_cast<unsigned>(text[at] - '0');
    }
    return target;
}

Result<Contents> read_image(const void* image, unsigned capability) {
    const std::size_t head = readable_bytes(image, sizeof(std::uint32_t));
    if (image == nullptr || head == 0) {
        return bad("image.format", "The image pointer leads to memory that cannot be read.");
    }
    if (head == sizeof(std::uint32_t)) {
        if (magic_of(image) == kWrapperMagic) {
            return read_wrapper(image, capability);
        }
        if (magic_of(image) == kFatbinMagic) {
            GANTRY_ASSIGN(const Bytes fatbin, fatbin_at(image));
            return read_image(fatbin.data(), fatbin.size(), capability);
        }
        if (starts_elf(image)) {
            const std::size_t bytes = elf_bytes(image);
            if (bytes == 0 || readable_bytes(image, bytes) < bytes) {
                return bad("image.truncated", "Memory ends inside the ELF image.");
            }
            return read_elf(Bytes(static_cast<const std::byte*>(image), bytes), capability);
        }
    }
    const auto* text = static_cast<const char*>(image);
    const std::size_t bytes = text_bytes(text, kPtxBytesMax);
    if (bytes == kPtxBytesMax) {
        return bad("image.format", "The PTX text has no end (no NUL byte in readable memory).");
    }
    return read_text(std::string(text, bytes));
}

Result<Contents> read_image(const void* image, std::size_t bytes, unsigned capability) {
    const Bytes all(static_cast<const std::byte*>(image), bytes);
    if (bytes == 0) {
        return bad("image.format", "An image of 0 bytes.");
    }
    if (bytes >= sizeof(std::uint32_t) && magic_of(image) == kWrapperMagic) {
        return bad(
            "image.format",
            "A fatbin wrapper holds pointers, which bytes with a size cannot carry; pass the "
            "fatbin that it points to.");
    }
    if (bytes >= sizeof(std::uint32_t) && magic_of(image) == kFatbinMagic) {
        Contents contents;
        GANTRY_ASSIGN(const bool has_ptx, add_fatbin(all, capability, contents));
        return finish(has_ptx, std::move(contents), capability);
    }
    if (bytes >= 4 && starts_elf(image)) {
        return read_elf(all, capability);
    }
    const auto* text = static_cast<const char*>(image);
    return read_text(std::string(text, strnlen(text, bytes)));
}

std::string pack_linked(const std::vector<PtxUnit>& units) {
    constexpr std::size_t kEntryHeaderBytes = 0x60;
    std::string body;
    for (const PtxUnit& unit : units) {
        const std::size_t padded = (unit.text.size() + 1 + 7) / 8 * 8;
        std::string entry(kEntryHeaderBytes + padded, '\0');
        const auto put = [&entry](std::size_t offset, auto value) {
            std::memcpy(entry.data() + offset, &value, sizeof value);
        };
        put(0x00, static_cast<std::uint16_t>(EntryKind::kPtx));
        put(0x02, std::uint16_t{0x101});
        put(0x04, static_cast<std::uint32_t>(kEntryHeaderBytes));
        put(0x08, static_cast<std::uint64_t>(padded));
        put(0x1c, static_cast<std::uint32_t>(unit.target));
        put(0x20, std::uint32_t{0x40});
        put(0x24, static_cast<std::uint32_t>(std::min<std::size_t>(unit.name.size(), 31)));
        put(0x28, std::uint64_t{0x11} | kFlagLinkedUnits);
        std::memcpy(entry.data() + 0x40, unit.name.data(),
                    std::min<std::size_t>(unit.name.size(), 31));
        std::memcpy(entry.data() + kEntryHeaderBytes, unit.text.data(), unit.text.size());
        body += entry;
    }
    std::string fatbin(kFatbinHeaderBytes, '\0');
    const std::uint16_t version = 1;
    const std::uint16_t header = kFatbinHeaderBytes;
    const std::uint64_t size = body.size();
    std::memcpy(fatbin.data(), &kFatbinMagic, sizeof kFatbinMagic);
    std::memcpy(fatbin.data() + 4, &version, sizeof version);
    std::memcpy(fatbin.data() + 6, &header, sizeof header);
    std::memcpy(fatbin.data() + 8, &size, sizeof size);
    return fatbin + body;
}

}  // namespace gantry::softgpu::image
