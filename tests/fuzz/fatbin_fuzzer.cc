// Hostile fatbins, stored and compressed: as an image to load, and entry by entry.
#include <cstdint>
#include <vector>

#include "host-daemon/softgpu/image/fatbin.h"
#include "host-daemon/softgpu/image/image.h"
#include "proto/base/assert.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace gantry::softgpu;
    // A copy of exactly that size, so that the sanitizer sees a read past its end.
    const std::vector<std::uint8_t> exact(data, data + size);
    const auto contents = image::read_image(exact.data(), exact.size(), 90);
    if (contents.ok()) {
        GANTRY_ASSERT(!contents->units.empty(), "an image that loads has PTX");
    } else {
        GANTRY_ASSERT(!contents.error().text.empty(), "a refusal without a text");
    }
    const auto bytes = std::as_bytes(std::span(exact));
    if (const auto entries = image::list_entries(bytes); entries.ok()) {
        for (const auto& entry : *entries) {
            GANTRY_ASSERT(
                entry.stored.empty() ||
                    (entry.stored.data() >= bytes.data() && entry.stored.size() <= bytes.size() &&
                     entry.stored.data() + entry.stored.size() <= bytes.data() + bytes.size()),
                "an entry leads out of its fatbin");
            (void)image::entry_payload(entry);
        }
    }
    return 0;
}
