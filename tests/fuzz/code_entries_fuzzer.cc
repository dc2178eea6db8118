// Hostile images before preflight, which asks them what code they carry.
#include <cstdint>
#include <vector>

#include "host-daemon/state/parts/code_entries.h"
#include "proto/base/assert.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace gantry;
    // A copy of exactly that size, so that the sanitizer sees a read past its end.
    const std::vector<std::uint8_t> exact(data, data + size);
    std::vector<engine::CodeEntry> entries;
    state::append_code(std::as_bytes(std::span(exact)), &entries);
    // A fatbin's entry has a head of 64 bytes at least; other images have one entry at most.
    GANTRY_ASSERT(entries.size() <= size / 64 + 1, "%zu entries of %zu bytes", entries.size(),
                  size);
    for (const engine::CodeEntry& entry : entries) {
        GANTRY_ASSERT(entry.is_ptx || entry.ptx_isa_version == 0, "a version without PTX");
    }
    return 0;
}
