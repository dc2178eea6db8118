// Prints the preamble of a snapshot file (proto/snapshot/FORMAT.md) of the version in argument 1,
// with its right checksum: what a newer Gantry's file would begin with.
#include <cstdio>
#include <cstdlib>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/snapshot/layout.h"

int main(int argc, char** argv) {
    using namespace gantry::snapshot::layout;
    if (argc != 2) {
        std::fprintf(stderr, "usage: preamble VERSION\n");
        return 2;
    }
    std::array<std::byte, kPreambleBytes> preamble{};
    std::memcpy(preamble.data(), kMagic.data(), kMagic.size());
    put(preamble.data() + 8, static_cast<std::uint32_t>(std::strtoul(argv[1], nullptr, 10)));
    put<std::uint64_t>(preamble.data() + 56, XXH3_64bits(preamble.data(), 56));
    return std::fwrite(preamble.data(), 1, preamble.size(), stdout) == preamble.size() ? 0 : 1;
}
