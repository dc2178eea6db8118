// Kernel images: everything that cuModuleLoadData, cuLibraryLoadData and cuLink* accept, turned
// into PTX units that the engine can take, plus what the image says about itself.
//
// Accepted: fatbin wrapper (version 1, and 2 with its relocatable inputs), bare fatbin, ELF cubin,
// PTX text. Payloads may be stored, zstd or LZ4. Selection (one PTX per unit): the highest target
// not above the device's compute capability, else the lowest above it.
// Invariant: nothing outside the image's declared and readable bytes is touched; every length,
// offset and count is checked before use, so hostile bytes give an Error and nothing else.
// Failure: Error with a reason that maps to a CUDA error (see cuda_error in code/module.h).
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/result.h"

namespace gantry::softgpu::image {

struct PtxUnit {
    std::string name;  ///< Of the fatbin entry, or made up; for messages.
    std::string text;
    unsigned target = 0;  ///< 75 for .target sm_75.
};

struct Contents {
    std::vector<PtxUnit> units;      ///< One, or all units of an -rdc program, to be linked.
    std::vector<std::string> found;  ///< Every entry seen, such as "cubin sm_90", for messages.
    std::vector<std::string> cubin_kernels;  ///< Entry names of the best cubin, for messages.
};

/// Reads an image whose size is not given. `capability` is 10 x major + minor (90, 130).
/// Reasons of errors: image.format, image.truncated, image.compression, image.no_ptx.
Result<Contents> read_image(const void* image, unsigned capability);

/// The same with a known size, for cuLinkAddData and files: reads these bytes and no others, so a
/// wrapper, which is nothing but pointers, is refused (image.format).
Result<Contents> read_image(const void* image, std::size_t bytes, unsigned capability);

/// Packs PTX units as a fatbin whose PTX entries belong together: the "cubin" of our linker.
std::string pack_linked(const std::vector<PtxUnit>& units);

/// The number after ".target sm_", or 0.
unsigned ptx_target(const std::string& text);

}  // namespace gantry::softgpu::image
