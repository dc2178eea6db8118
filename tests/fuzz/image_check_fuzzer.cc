// Hostile images before the check that keeps them from a driver. The first byte of an input says
// how it comes: as an image, or as a linker's input of that type. What passes is then used as a
// driver would that believes it: sections are read, relocations change bytes. All of that must stay
// within the image, and what was checked must be there afterwards as it was.
#include <cstdint>
#include <cstring>
#include <vector>

#include "host-daemon/execution/code/elf_check.h"
#include "host-daemon/execution/code/elf_tables.h"
#include "host-daemon/execution/code/image_check.h"
#include "proto/base/assert.h"

namespace {

using namespace gantry;
using worker::image::ElfFile;

using Bytes = std::span<const std::byte>;

/// Reads each byte of a range; the sanitizer sees one that is not there.
unsigned sum_of(Bytes bytes) {
    unsigned sum = 0;
    for (const std::byte b : bytes) {
        sum += std::to_integer<unsigned>(b);
    }
    return sum;
}

/// Where `section` lies, as a driver takes it: unchecked.
std::span<std::byte> place_of(std::vector<std::byte>& image, const Elf64_Shdr& section) {
    return {image.data() + section.sh_offset, section.sh_size};
}

void relocate(std::vector<std::byte>& image, const ElfFile& before, const Elf64_Shdr& section) {
    const Elf64_Shdr& target = before.sections().at(section.sh_info);
    if (!worker::has_bytes_in_file(target) || target.sh_type == worker::kTypeCapsuleCode) {
        return;
    }
    const std::span<const std::byte> records = place_of(image, section);
    for (std::size_t at = 0; at < records.size(); at += section.sh_entsize) {
        Elf64_Rel record;
        std::memcpy(&record, records.data() + at, sizeof(record));
        if (ELF64_R_TYPE(record.r_info) == 2) {  // 64 bits.
            const std::uint64_t value = ~std::uint64_t{0};
            std::memcpy(place_of(image, target).data() + record.r_offset, &value, sizeof(value));
        } else if (ELF64_R_TYPE(record.r_info) == 0x38) {  // A field of an instruction.
            std::memset(place_of(image, target).data() + record.r_offset, 0xff, 16);
        }
    }
}

void use_as_a_driver(Bytes elf) {
    const auto before = ElfFile::open(elf);
    GANTRY_ASSERT(before.ok(), "a cubin that was checked cannot be read");
    std::vector<std::byte> image(elf.begin(), elf.end());
    unsigned sum = 0;
    for (const Elf64_Shdr& section : before->sections()) {
        if (worker::has_bytes_in_file(section)) {
            sum += sum_of(place_of(image, section));
        }
    }
    for (const Elf64_Phdr& segment : before->segments()) {
        sum += sum_of({image.data() + segment.p_offset, segment.p_filesz});
    }
    for (const Elf64_Shdr& section : before->sections()) {
        if (section.sh_type == SHT_RELA || section.sh_type == SHT_REL) {
            relocate(image, *before, section);
        }
    }
    GANTRY_ASSERT(worker::check_cubin(image).ok(), "relocations changed what was checked (%u)",
                  sum);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) {
        return 0;
    }
    // A copy of exactly that size, so that the sanitizer sees a read past its end.
    const std::vector<std::uint8_t> exact(data + 1, data + size);
    const Bytes bytes = std::as_bytes(std::span(exact));
    constexpr std::uint8_t kAsImage = 8;
    const std::uint8_t how = data[0] % (kAsImage + 1);
    const auto result =
        how == kAsImage ? worker::check_image(bytes, 90) : worker::check_link_input(bytes, how, 90);
    GANTRY_ASSERT(result.ok() || !result.error().text.empty(), "a refusal without a text");
    if (worker::check_cubin(bytes).ok()) {
        use_as_a_driver(bytes);
    }
    (void)worker::check_host_object(bytes);
    return 0;
}
