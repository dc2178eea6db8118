// A copy between any two places, resolved to addresses and pitches.
#pragma once

#include <cstdint>
#include <memory>

#include "proto/cuda/abi.h"

namespace gantry::softgpu {

class Array;

struct CopySide {
    std::uint64_t address = 0;  ///< Of the first byte to copy.
    std::uint64_t row_pitch = 0;
    std::uint64_t slice_pitch = 0;
    std::shared_ptr<Array> array;  ///< Kept alive until the copy is done.
};

struct CopyPlan {
    CopySide destination;
    CopySide source;
    std::uint64_t width_bytes = 0;
    std::uint64_t height = 1;
    std::uint64_t depth = 1;

    [[nodiscard]] bool empty() const { return width_bytes == 0 || height == 0 || depth == 0; }
};

/// Copies; the sides may overlap within one row.
void execute_copy(const CopyPlan& plan);

/// Where a side's memory lies, which decides whether the call may return before the copy ends.
/// Managed memory counts as the host's in synchronous calls: the program may look at it right
/// after them.
enum class CopyPlace { kDevice, kManaged, kPinned, kPageable };

struct ResolvedCopy {
    CopyPlan plan;
    CopyPlace source_place = CopyPlace::kDevice;
    CopyPlace destination_place = CopyPlace::kDevice;
};

/// Checks and resolves a 3D copy description (also used for 1D and 2D).
CUresult resolve_copy(const CUDA_MEMCPY3D& copy, ResolvedCopy& resolved);

/// A plain copy of bytes; the addresses' kinds are looked up.
CUresult resolve_copy(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes,
                      ResolvedCopy& resolved);

}  // namespace gantry::softgpu
