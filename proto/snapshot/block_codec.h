// Blocks as they are stored: whole, or packed by LZ4 or Zstandard. For reader.cc and writer.cc.
#pragma once

#include <cstddef>
#include <span>

#include "proto/snapshot/container.h"

namespace gantry::snapshot {

/// Packs a block into `to`; 0: it does not fit there, or the codec stores blocks whole.
std::size_t pack_block(Codec codec, BlockSpan block, std::span<std::byte> to);

/// False: `from` is not a block of that form. `to` has kBlockBytes.
bool unpack_block(Codec codec, std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace gantry::snapshot
