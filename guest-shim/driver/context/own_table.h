// What libcuda.so.1 tells Gantry's own libraries beside the CUDA driver's API: an export table
// (cuGetExportTable) under an id of ours. So it exports no name that NVIDIA's library has not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "guest-shim/session/programs.h"

namespace gantry::shim {

/// 6e7c1d52-93b4-4f0a-8d1e-67616e747279, as its bytes are written.
inline constexpr unsigned char kOwnTableId[16] = {0x6e, 0x7c, 0x1d, 0x52, 0x93, 0xb4, 0x4f, 0x0a,
                                                  0x8d, 0x1e, 0x67, 0x61, 0x6e, 0x74, 0x72, 0x79};

struct OwnTable {
    std::size_t bytes;  ///< The table's, as NVIDIA's have it in front.
    std::uint32_t (*programs)(session::Program* out, std::uint32_t room) noexcept;
    void (*end)() noexcept;  ///< session::end
    // What NVTX tells (session/profile.h).
    int (*push_range)(const char* name) noexcept;
    int (*pop_range)() noexcept;
    std::uint64_t (*start_range)(const char* name) noexcept;
    void (*end_range)(std::uint64_t range) noexcept;
};

}  // namespace gantry::shim
