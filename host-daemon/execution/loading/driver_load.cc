#include "host-daemon/execution/loading/driver_load.h"

#include <algorithm>
#include <vector>

#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/code/image_check.h"

namespace gantry::worker {
namespace {

using cuda::wire_hand::ImagePart;

constexpr std::uint32_t kWrapperMagic = 0x466243b1;
constexpr std::uint32_t kPrelinkedVersion = 2;

/// What the driver finds behind the pointer it is given.
struct Wrapper {
    std::uint32_t magic;
    std::uint32_t version;
    const void* data;
    const void* parts;
};
static_assert(sizeof(Wrapper) == 24);

struct DriverImage {
    Wrapper wrapper{};
    std::vector<const void*> parts;
    const void* pointer = nullptr;
};

void describe_to_driver(const Image& image, std::span<const ImagePart> parts, DriverImage* out) {
    const std::byte* base = image.bytes.data();
    out->pointer = base + parts[0].offset;
    if (parts.size() == 1) {
        return;
    }
    for (const ImagePart& part : parts.subspan(1)) {
        out->parts.push_back(base + part.offset);
    }
    out->parts.push_back(nullptr);
    out->wrapper = {kWrapperMagic, kPrelinkedVersion, out->pointer, out->parts.data()};
    out->pointer = &out->wrapper;
}

/// A part starts where the driver may read words, and ends inside the image.
bool lies_in(const Image& image, const ImagePart& part) {
    const std::uint64_t size = image.bytes.size();
    return part.offset % 8 == 0 && part.offset <= size && part.bytes <= size - part.offset &&
           part.bytes >= 16;
}

/// `variable_bytes`: of part 0, which the driver loads, unless it links the others anew.
bool is_sound(GuestProcess& process, const Image& image, std::span<const ImagePart> parts,
              std::uint64_t* variable_bytes) {
    std::uint64_t first = 0;
    std::uint64_t others = 0;
    const unsigned capability = process.device.compute_capability();
    for (const ImagePart& part : parts) {
        if (!lies_in(image, part)) {
            return false;
        }
        const auto bytes = std::span(image.bytes).subspan(part.offset, part.bytes);
        std::uint64_t here = 0;
        if (const auto checked = check_image(bytes, capability, &here); !checked.ok()) {
            log_limited("an image of %zu bytes is kept from the driver: %s", bytes.size(),
                        checked.error().to_string().c_str());
            return false;
        }
        if (&part == parts.data()) {
            first = here;
        } else if (__builtin_add_overflow(others, here, &others)) {
            others = ~std::uint64_t{0};
        }
    }
    *variable_bytes = std::max(first, others);
    return !parts.empty();
}

}  // namespace

CUresult hand_to_driver(GuestProcess& process, const Image& image, std::span<const ImagePart> parts,
                        bool is_library, JitOptions& options, std::uint64_t* native,
                        const Afford& afford) {
    std::uint64_t variable_bytes = 0;
    if (!is_sound(process, image, parts, &variable_bytes)) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (const CUresult result = afford ? afford(variable_bytes) : CUDA_SUCCESS;
        result != CUDA_SUCCESS) {
        return result;
    }
    const driver::DriverApi& api = process.device.api();
    DriverImage described;
    describe_to_driver(image, parts, &described);
    if (!is_library) {
        CUmodule module = nullptr;
        const CUresult result = api.cuModuleLoadDataEx(&module, described.pointer, options.count(),
                                                       options.names(), options.values());
        *native = reinterpret_cast<std::uint64_t>(module);
        return result;
    }
    CUlibrary library = nullptr;
    const CUresult result =
        api.cuLibraryLoadData(&library, described.pointer, options.names(), options.values(),
                              options.count(), nullptr, nullptr, 0);
    *native = reinterpret_cast<std::uint64_t>(library);
    return result;
}

void unload_image(const driver::DriverApi& api, bool library, std::uint64_t native) {
    if (library) {
        api.cuLibraryUnload(reinterpret_cast<CUlibrary>(native));
    } else {
        api.cuModuleUnload(reinterpret_cast<CUmodule>(native));
    }
}

}  // namespace gantry::worker
