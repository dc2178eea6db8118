// Is an ELF file what a CUDA driver takes it for? Asked before a driver sees it.
//
// WHY. A driver is given a pointer and no length, and believes the file: NVIDIA's (580.159) copies
// whatever lies at a section's offset to the device, writes at a relocation's offset wherever that
// leads, and at some offsets does not come back. All of that is the worker's memory. WHAT. Every
// offset, size, count and index leads to what it should, within the file: tables, sections,
// segments, names, symbols, relocations with the bytes that their kind changes, records of .nv.info
// and of the call graph. Sections share no bytes, so that applying one relocation changes no table
// that was checked. No sum wraps. WHAT NOT. What instructions and debug information say.
// Relocations and symbols of capsule code (.nv.capmerc.text.*, compute capability 10 and later)
// count in code that only the driver unfolds: they are bounded, not held against a size.
//
// The rules were held against NVIDIA's libraries; what those do that one would not expect is said
// where it is allowed. Pure functions; hostile bytes give an Error and nothing else. Failure:
// reasons image.format, image.truncated, image.elf.*. Cost: one pass over the tables, none over
// code.
#pragma once

#include <cstddef>
#include <span>

#include "proto/base/result.h"

namespace gantry::worker {

/// Code for a device.
Result<void> check_cubin(std::span<const std::byte> elf);

/// What a host's compiler made: a linker looks for device code in its sections.
Result<void> check_host_object(std::span<const std::byte> elf);

}  // namespace gantry::worker
