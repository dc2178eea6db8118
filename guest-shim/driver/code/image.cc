#include "guest-shim/driver/code/image.h"

#include <elf.h>

#include <cstdlib>
#include <cstring>

#include "guest-shim/session/session.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

using cuda::wire_hand::ImageKind;
using cuda::wire_hand::ImagePart;

constexpr std::uint32_t kWrapperMagic = 0x466243b1;
constexpr std::uint32_t kFatbinMagic = 0xba55ed50;
constexpr std::uint32_t kPrelinked = 2;  // Wrapper version: a list of relocatable inputs follows.
constexpr std::uint64_t kMaxImageBytes = 4ull << 30;

struct Wrapper {
    std::uint32_t magic;
    std::uint32_t version;
    const void* data;
    const void* const* inputs;  ///< Version 2: ended by null.
};

struct FatbinHeader {
    std::uint32_t magic;
    std::uint16_t version;
    std::uint16_t header_bytes;
    std::uint64_t payload_bytes;
};

std::uint32_t first_word(const void* image) {
    std::uint32_t word = 0;
    // Text may be shorter than a word: stop at its end.
    const auto* bytes = static_cast<const unsigned char*>(image);
    for (unsigned i = 0; i < 4; ++i) {
        word |= static_cast<std::uint32_t>(bytes[i]) << (8 * i);
        if (bytes[i] == 0) {
            break;
        }
    }
    return word;
}

bool append(ImageList* list, const void* data, std::uint64_t bytes, ImageKind kind) {
    if (list->count == list->capacity) {
        const std::uint32_t capacity = list->capacity == 0 ? 8 : list->capacity * 2;
        void* grown = std::realloc(list->items, capacity * sizeof(ImageList::Item));
        if (grown == nullptr || capacity > cuda::wire_hand::kMaxImageParts * 2) {
            return false;
        }
        list->items = static_cast<ImageList::Item*>(grown);
        list->capacity = capacity;
    }
    list->items[list->count++] = ImageList::Item{static_cast<const std::byte*>(data),
                                                 ImagePart{list->total_bytes, bytes, kind, 0}};
    list->total_bytes += (bytes + 7) / 8 * 8;
    return true;
}

std::uint64_t larger(std::uint64_t a, std::uint64_t b) { return a > b ? a : b; }

/// End of the last thing that the headers of an ELF file name; 0 when they make no sense.
std::uint64_t elf_bytes(const void* image) {
    Elf64_Ehdr header;
    std::memcpy(&header, image, sizeof(header));
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shoff > kMaxImageBytes ||
        header.e_phoff > kMaxImageBytes) {
        return 0;
    }
    const auto* base = static_cast<const std::byte*>(image);
    std::uint64_t end = sizeof(header);
    if (header.e_phnum != 0 && header.e_phentsize == sizeof(Elf64_Phdr)) {
        end = larger(end, header.e_phoff + header.e_phnum * sizeof(Elf64_Phdr));
    }
    if (header.e_shoff == 0 || header.e_shentsize != sizeof(Elf64_Shdr)) {
        return end;
    }
    std::uint64_t count = header.e_shnum;
    Elf64_Shdr section;
    if (count == 0) {  // More sections than the header's field can count.
        std::memcpy(&section, base + header.e_shoff, sizeof(section));
        count = section.sh_size;
    }
    end = larger(end, header.e_shoff + count * sizeof(Elf64_Shdr));
    for (std::uint64_t i = 0; i < count && end <= kMaxImageBytes; ++i) {
        std::memcpy(&section, base + header.e_shoff + i * sizeof(section), sizeof(section));
        if (section.sh_type != SHT_NOBITS && section.sh_size <= kMaxImageBytes) {
            end = larger(end, section.sh_offset + section.sh_size);
        }
    }
    return end <= kMaxImageBytes ? end : 0;
}

CUresult add_bare(const void* image, ImageList* out) {
    const std::uint32_t word = first_word(image);
    if (word == kFatbinMagic) {
        FatbinHeader header;
        std::memcpy(&header, image, sizeof(header));
        GANTRY_REFUSE_IF(
            header.header_bytes < sizeof(header) || header.payload_bytes > kMaxImageBytes,
            CUDA_ERROR_INVALID_IMAGE);
        return append(out, image, header.header_bytes + header.payload_bytes, ImageKind::kFatbin)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (std::memcmp(&word, ELFMAG, SELFMAG) == 0) {
        const std::uint64_t bytes = elf_bytes(image);
        GANTRY_REFUSE_IF(bytes == 0, CUDA_ERROR_INVALID_IMAGE);
        return append(out, image, bytes, ImageKind::kElf) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    const std::uint64_t bytes = std::strlen(static_cast<const char*>(image)) + 1;
    return append(out, image, bytes, ImageKind::kPtx) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

ImageList::~ImageList() { std::free(items); }

CUresult list_image(const void* image, ImageList* out) noexcept {
    GANTRY_REFUSE_IF(image == nullptr, CUDA_ERROR_INVALID_VALUE);
    if (first_word(image) != kWrapperMagic) {
        return add_bare(image, out);
    }
    Wrapper wrapper;
    std::memcpy(&wrapper, image, sizeof(wrapper));
    GANTRY_REFUSE_IF(wrapper.data == nullptr, CUDA_ERROR_INVALID_IMAGE);
    CUresult result = add_bare(wrapper.data, out);
    if (wrapper.version != kPrelinked || wrapper.inputs == nullptr) {
        return result;
    }
    for (const void* const* input = wrapper.inputs; *input != nullptr; ++input) {
        if (result != CUDA_SUCCESS || out->count > cuda::wire_hand::kMaxImageParts) {
            break;
        }
        result = add_bare(*input, out);
    }
    return result;
}

CUresult add_sized(const void* data, std::uint64_t bytes, ImageKind kind, ImageList* out) noexcept {
    GANTRY_REFUSE_IF(data == nullptr || bytes == 0 || bytes > kMaxImageBytes,
                     CUDA_ERROR_INVALID_VALUE);
    return append(out, data, bytes, kind) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult stage(const ImageList& list, std::uint64_t* image_id) noexcept {
    *image_id = session::new_image_id();
    constexpr std::byte kPadding[8] = {};
    CUresult result = CUDA_SUCCESS;
    for (std::uint32_t i = 0; i < list.count && result == CUDA_SUCCESS; ++i) {
        const ImagePart& part = list.items[i].part;
        result = session::stage_image(*image_id, list.total_bytes, part.offset, list.items[i].data,
                                      part.bytes);
        // The host counts bytes: what aligns the next part is staged as well.
        const std::uint64_t end = part.offset + part.bytes;
        const std::uint64_t next =
            i + 1 < list.count ? list.items[i + 1].part.offset : list.total_bytes;
        if (result == CUDA_SUCCESS && next != end) {
            result = session::stage_image(*image_id, list.total_bytes, end, kPadding, next - end);
        }
    }
    return result;
}

}  // namespace gantry::shim
