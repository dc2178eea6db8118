// A 2D or 3D copy between linear memory and arrays: its shape, and what its ends are.
// Threads: every function may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "guest-shim/driver/core/objects.h"

namespace gantry::shim {

/// One end of a shaped copy before its memory type has been looked into.
struct ShapedEnd {
    CUmemorytype type;
    std::uint64_t address;  ///< Host, device or unified address.
    std::uint64_t array;
    std::uint64_t x_bytes, y, z, lod, pitch, height;
};

struct ShapedCopy {
    ShapedEnd source;
    ShapedEnd target;
    std::uint64_t width_bytes, height, depth;
};

/// The ABI's structures as a ShapedCopy.
ShapedCopy shaped(const CUDA_MEMCPY2D& copy) noexcept;
ShapedCopy shaped(const CUDA_MEMCPY3D& copy) noexcept;
CUDA_MEMCPY3D unshaped(const ShapedCopy& copy) noexcept;

/// A linear copy in the shaped form.
ShapedCopy shaped(std::uint64_t target, std::uint64_t source, std::uint64_t bytes) noexcept;

/// One end in linear memory.
ShapedEnd linear_end(std::uint64_t address, std::uint64_t bytes) noexcept;

/// Bytes from the first to behind the last that a linear end touches.
std::uint64_t span_of(const ShapedEnd& end, const ShapedCopy& copy) noexcept;
/// False for what native answers with CUDA_ERROR_INVALID_VALUE.
bool is_valid(const ShapedEnd& end, const ShapedCopy& copy) noexcept;
/// An end whose bytes lie in this process's own memory only.
bool is_pageable(const ShapedEnd& end, const ShapedCopy& copy) noexcept;
/// An end in page-locked or managed memory.
bool touches_pool(const ShapedEnd& end) noexcept;
/// Address of a row of a linear end in this process.
std::byte* row_of(const ShapedEnd& end, const ShapedCopy& copy, std::uint64_t y,
                  std::uint64_t z) noexcept;
/// Packed rows in an extent that is as wide as the copy.
ShapedEnd slab_end(void* slab, const ShapedCopy& copy) noexcept;

/// An end that needs no staging as the wire has it; false for pageable memory.
bool wire_end(const ShapedEnd& end, cuda::wire_hand::CopyEnd* out) noexcept;

}  // namespace gantry::shim
