// Hostile kernel images: fatbins (stored, zstd, LZ4), cubins and PTX by their first bytes.
#include <cstdint>
#include <cstring>
#include <vector>

#include "host-daemon/softgpu/image/cubin.h"
#include "host-daemon/softgpu/image/fatbin.h"
#include "host-daemon/softgpu/image/image.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace gantry::softgpu;
    // A copy of exactly that size, so that the sanitizer sees a read past its end.
    std::vector<std::uint8_t> exact(data, data + size);
    (void)image::read_image(exact.data(), exact.size(), 90);
    const auto bytes = std::as_bytes(std::span(exact));
    (void)image::read_cubin(bytes);
    if (const auto entries = image::list_entries(bytes); entries.ok()) {
        for (const auto& entry : *entries) {
            (void)image::entry_payload(entry);
        }
    }
    return 0;
}
