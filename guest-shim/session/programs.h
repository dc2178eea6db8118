// The programs that use the VM's GPU: what NVML lists, from the region that they share.
#pragma once

#include <cstdint>

namespace gantry::session {

struct Program {
    static constexpr std::uint64_t kNotKnown = ~0ull;  ///< As NVML has it, too.
    std::uint32_t pid;           ///< As the calling process has it, also of one in a container.
    std::uint64_t device_bytes;  ///< Device memory that it has, as its worker last looked.
};

/// Every process with a channel of this process's region that this one can see (a container's does
/// not see those outside), its own among them; how many. At most `room` are written. 0 while this
/// process has no session. A program over TCP, or on the host, is alone in its region.
std::uint32_t programs(Program* out, std::uint32_t room) noexcept;

}  // namespace gantry::session
