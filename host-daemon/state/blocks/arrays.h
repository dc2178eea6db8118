// The guest's CUDA arrays as linear bytes, for capturing and restoring their contents.
//
// An array's number (`order`) is its object's creation number times kLevelsMax plus the mipmap
// level, so that it names the same array in every worker. Rows are packed without padding. Threads:
// any one at a time. Failure: the driver's result.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "host-daemon/execution/process/guest_process.h"

namespace gantry::worker {

struct ArrayShape {
    std::uint64_t order = 0;
    CUarray native = nullptr;
    std::uint64_t width_bytes = 0;
    std::uint64_t height = 1;
    std::uint64_t depth = 1;
    std::uint64_t linear_bytes = 0;
};

inline constexpr std::uint64_t kLevelsMax = 32;

enum class ArrayCopy { kOut, kIn };

[[nodiscard]] std::vector<ArrayShape> list_arrays(GuestProcess& process);
[[nodiscard]] std::optional<ArrayShape> find_array(GuestProcess& process, std::uint64_t order);
/// `linear` holds linear_bytes. Copies on `stream` and waits for it.
CUresult copy_array(GuestProcess& process, const ArrayShape& array, std::span<std::byte> linear,
                    ArrayCopy direction, CUstream stream);

}  // namespace gantry::worker
