// The fatbin container: its entries, checked and decompressed. Layout facts: every integer is
// little endian; entry header offsets are the constants in fatbin.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "proto/base/result.h"

namespace gantry::softgpu::image {

inline constexpr std::uint32_t kWrapperMagic = 0x466243b1;
inline constexpr std::uint32_t kFatbinMagic = 0xba55ed50;
inline constexpr std::size_t kFatbinHeaderBytes = 16;
inline constexpr std::size_t kWrapperBytes = 24;

enum class EntryKind : std::uint16_t { kPtx = 1, kElf = 2, kNvvm = 8 };

/// Set by pack_linked: all PTX entries of the fatbin are units of one program.
inline constexpr std::uint64_t kFlagLinkedUnits = std::uint64_t{1} << 62;

/// LZ4 and zstd.
inline constexpr std::uint64_t kFlagsCompressed = 0x2000 | 0x8000;

struct FatbinEntry {
    EntryKind kind{};
    unsigned target = 0;
    std::uint64_t flags = 0;
    std::string name;
    std::span<const std::byte> header;  ///< Points into the fatbin.
    std::span<const std::byte> stored;  ///< Points into the fatbin.
    std::uint64_t plain_bytes = 0;      ///< After decompression; 0 when stored as it is.
};

/// Total size (header and payload) that a fatbin's header declares, or 0 when it is none.
/// Reads kFatbinHeaderBytes bytes.
std::uint64_t fatbin_bytes(const void* fatbin);

/// Lists the entries of one fatbin.
Result<std::vector<FatbinEntry>> list_entries(std::span<const std::byte> fatbin);

/// Appends an entry with that header, but not compressed, and counts it in the fatbin's own header,
/// the first kFatbinHeaderBytes of `fatbin`, which is written anew.
void append_stored(std::span<const std::byte> entry_header, std::span<const std::byte> plain,
                   std::vector<std::byte>* fatbin);

/// The entry's bytes, decompressed when it is compressed.
Result<std::string> entry_payload(const FatbinEntry& entry);

}  // namespace gantry::softgpu::image
