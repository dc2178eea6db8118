// ELF cubins. The soft GPU cannot run their machine code; it reads them to name what it cannot run.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "proto/base/result.h"

namespace gantry::softgpu::image {

struct CubinInfo {
    unsigned target = 0;               ///< sm number, 0 when the file does not say.
    std::vector<std::string> kernels;  ///< Names of entry points.
};

/// Size of an ELF file from its headers, looking only at readable bytes; 0 when it is none.
std::size_t elf_bytes(const void* elf);

Result<CubinInfo> read_cubin(std::span<const std::byte> elf);

}  // namespace gantry::softgpu::image
