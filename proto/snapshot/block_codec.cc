#include "proto/snapshot/block_codec.h"

#include <lz4.h>
#include <zstd.h>

#include <cstring>

namespace gantry::snapshot {
namespace {

const char* chars(const std::byte* bytes) { return reinterpret_cast<const char*>(bytes); }
char* chars(std::byte* bytes) { return reinterpret_cast<char*>(bytes); }

}  // namespace

std::size_t pack_block(Codec codec, BlockSpan block, std::span<std::byte> to) {
    constexpr int kZstdLevel = 1;
    switch (codec) {
        case Codec::kStored: return 0;
        case Codec::kLz4:
            return static_cast<std::size_t>(
                LZ4_compress_default(chars(block.data()), chars(to.data()),
                                     static_cast<int>(block.size()), static_cast<int>(to.size())));
        case Codec::kZstd: {
            const std::size_t result =
                ZSTD_compress(to.data(), to.size(), block.data(), block.size(), kZstdLevel);
            return ZSTD_isError(result) != 0 ? 0 : result;
        }
    }
    return 0;
}

bool unpack_block(Codec codec, std::span<const std::byte> from, std::span<std::byte> to) {
    switch (codec) {
        case Codec::kStored:
            if (from.size() != to.size()) {
                return false;
            }
            std::memcpy(to.data(), from.data(), to.size());
            return true;
        case Codec::kLz4: {
            const int size = static_cast<int>(to.size());
            return LZ4_decompress_safe(chars(from.data()), chars(to.data()),
                                       static_cast<int>(from.size()), size) == size;
        }
        case Codec::kZstd:
            return ZSTD_decompress(to.data(), to.size(), from.data(), from.size()) == to.size();
    }
    return false;
}

}  // namespace gantry::snapshot
