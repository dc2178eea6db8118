// Hostile PTX text: it links or is refused with a place; it never brings the process down.
#include <cstdint>
#include <string_view>

#include "host-daemon/softgpu/engine/engine.h"
#include "proto/base/assert.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace gantry::softgpu;
    const PtxSource source{std::string_view(reinterpret_cast<const char*>(data), size), "fuzz"};
    const auto program = Program::link(std::span(&source, 1));
    if (!program.ok()) {
        GANTRY_ASSERT(!program.error().text.empty(), "a refusal without a text");
    }
    return 0;
}
