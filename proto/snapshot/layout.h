// Constants and byte-level helpers shared by writer.cc and reader.cc. See FORMAT.md.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "proto/base/result.h"

namespace gantry::snapshot::layout {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");

inline constexpr std::array<char, 8> kMagic = {'G', 'A', 'N', 'T', 'R', 'Y', 'S', 'N'};
inline constexpr std::size_t kPreambleBytes = 64;
inline constexpr std::size_t kSectionHeaderBytes = 32;
inline constexpr std::size_t kEntryBytes = 64;
inline constexpr std::size_t kBlocksHeaderBytes = 8;

enum class Kind : std::uint32_t {
    kHeader = 1,
    kGraph = 2,
    kImage = 3,
    kBlocks = 4,
    kSummary = 5,
    kEnd = 6,
    kMemory = 7,
};

inline constexpr std::uint64_t kSmallBytesMax = 1ULL << 20;
inline constexpr std::uint64_t kGraphBytesMax = 256ULL << 20;
inline constexpr std::uint64_t kImageBytesMax = 2ULL << 30;
inline constexpr std::uint32_t kSectionBlocksMax = 512;
inline constexpr std::size_t kPartsMax = 1024;
/// Of one part: 1 TiB, and the zeros between a table and its contents.
inline constexpr std::uint64_t kMemoryBlocksMax = 1ULL << 24;
inline constexpr std::uint64_t kMemoryPadMax = 2ULL << 20;
inline constexpr std::size_t kMemoryHeadBytes = 40;
inline constexpr std::uint64_t kMemoryAlign = 4096;
inline constexpr std::uint32_t kStoredBytesMask = 0x00FFFFFF;

template <typename T>
void put(std::byte* at, T value) {
    std::memcpy(at, &value, sizeof value);
}

template <typename T>
T get(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

}  // namespace gantry::snapshot::layout
