// Global and generic addresses: whether a kernel may touch them, and what they stand for.
#pragma once

#include <string>

#include "host-daemon/softgpu/engine/reach.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {

/// Where `bytes` bytes at a lane's generic address lie in this process: in the window of shared or
/// local memory or the like (windows.h), or, if the kernel may touch them so, where they say. Keeps
/// the span for the instruction's next access. An address that is out of reach does not return: it
/// ends the launch with kIllegalAddress.
[[nodiscard]] std::uint64_t find_address(Warp& warp, const Inst* inst, Touch touch,
                                         std::uint32_t lane, std::uint64_t address,
                                         std::uint64_t bytes);

/// The same; quick where the instruction was before. `bytes` is below 2^32.
[[gnu::always_inline]] inline std::uint64_t flat_address(Warp& warp, const Inst* inst, Touch touch,
                                                         std::uint32_t lane, std::uint64_t address,
                                                         std::uint64_t bytes) {
    const ReachSpan span = warp.thread->reach.of(inst, touch);
    const std::uint64_t last = address + bytes - 1;
    if (address >= span.begin && last <= span.last && last >= address) [[likely]] {
        return address;
    }
    return find_address(warp, inst, touch, lane, address, bytes);
}

/// Memory of a kernel as one lane of it reads it, for functions that the engine implements. What is
/// out of reach ends the launch: its user holds nothing that needs a destructor.
class LaneMemory {
public:
    LaneMemory(Warp& warp, const Inst* inst, std::uint32_t lane)
        : warp_(warp), inst_(inst), lane_(lane) {}

    void read(std::uint64_t address, void* to, std::uint32_t bytes) const;
    void write(std::uint64_t address, const void* from, std::uint32_t bytes) const;
    /// Appends the text at `address`, without the NUL that ends it; at most kTextBytesMax bytes.
    void append_text(std::uint64_t address, std::string& out) const;

    static constexpr std::uint64_t kTextBytesMax = std::uint64_t{1} << 20;

private:
    Warp& warp_;
    const Inst* inst_;
    std::uint32_t lane_;
};

}  // namespace gantry::softgpu::exec
