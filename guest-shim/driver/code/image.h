// Kernel images as applications hand them over: without a size, in one of four containers. Finds
// their extent without reading past it, and stages them for the host as one run of bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/cuda/abi.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::shim {

struct ImageList {
    struct Item {
        const std::byte* data;
        cuda::wire_hand::ImagePart part;
    };
    Item* items = nullptr;
    std::uint32_t count = 0;
    std::uint32_t capacity = 0;
    std::uint64_t total_bytes = 0;
    ~ImageList();
};

/// Lists the parts of an image: a wrapper, a fatbin, an ELF file or PTX text.
CUresult list_image(const void* image, ImageList* out) noexcept;

/// Adds one part whose size is known (a linker input).
CUresult add_sized(const void* data, std::uint64_t bytes, cuda::wire_hand::ImageKind kind,
                   ImageList* out) noexcept;

/// Sends the parts to the host under a new id.
CUresult stage(const ImageList& list, std::uint64_t* image_id) noexcept;

}  // namespace gantry::shim
