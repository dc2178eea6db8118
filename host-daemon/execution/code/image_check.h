// May this image be given to a CUDA driver? Whatever a guest, a snapshot or another host sent is
// asked this first: elf_check.h says why.
//
// WHAT. A fatbin: its entries lie within it, are of a known kind, expand to what they say, and each
// that the device could run is a sound cubin, or a text. A cubin: elf_check.h. PTX: a text with an
// end. What is put into a linker may also be an object file, or an archive of them, whose sections
// hold fatbins. WHAT NOT. Whether the text is right PTX, whether intermediate code (LTO) is sound:
// a driver compiles those itself.
//
// An ELF entry for another major compute capability is not expanded: no driver does, and most of a
// library's code is for other devices.
//
// Pure functions; hostile bytes give an Error and nothing else. Failure: reasons image.*. Cost:
// expanding what is compressed, one pass over its tables; the memory of one entry at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/base/result.h"

namespace gantry::worker {

/// What an image is tells its first bytes, by which a driver goes, too. `capability`: the device's,
/// 90 for 9.0; 0: every ELF entry is looked into.
/// `variable_bytes`: what its variables take where it is loaded, at most (variable_bytes.h).
Result<void> check_image(std::span<const std::byte> image, unsigned capability,
                         std::uint64_t* variable_bytes = nullptr);

/// `type`: a CUjitInputType. Text may end without a NUL.
Result<void> check_link_input(std::span<const std::byte> input, std::uint32_t type,
                              unsigned capability);

}  // namespace gantry::worker
