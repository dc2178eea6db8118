// The generic addresses of what the engine itself lends a kernel. They are numbers above every
// address of a process, so no host address can be told from them, and each window is the same for
// all: a thread names its own local memory and its own block's shared memory with them, nobody
// else's. The low half of an address is the offset in its window.
#pragma once

#include <cstdint>

namespace gantry::softgpu {

inline constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 32;
inline constexpr std::uint64_t kWindows = std::uint64_t{1} << 48;
inline constexpr std::uint64_t kSharedWindow = kWindows;
inline constexpr std::uint64_t kLocalWindow = kSharedWindow + kWindowBytes;
inline constexpr std::uint64_t kParameterWindow = kLocalWindow + kWindowBytes;  ///< Read only.
/// What %envreg1 and %envreg2 point to.
inline constexpr std::uint64_t kGridWindow = kParameterWindow + kWindowBytes;
/// Parameters of grids that the kernel is about to launch, one slot for each.
inline constexpr std::uint64_t kLaunchWindow = kGridWindow + kWindowBytes;
inline constexpr std::uint64_t kLaunchSlotBytes = 32768;
inline constexpr std::uint64_t kWindowsEnd = kLaunchWindow + kWindowBytes;

[[gnu::always_inline]] inline bool in_window(std::uint64_t address, std::uint64_t window) {
    return address - window < kWindowBytes;
}

}  // namespace gantry::softgpu
